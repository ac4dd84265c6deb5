#!/usr/bin/env bash
# Set up, then run the main job: every notebook in order, from point clouds to figures. Arguments go to `sparsepipe reproduce`.
# Notebooks that use MinkowskiEngine come last while it is still being built.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/setup.sh --no-wait
echo "set-up took $SECONDS s" >&2
exec .venv/bin/sparsepipe reproduce "$@" # says where the figures are and how long it took
