#!/usr/bin/env bash
# Set up, then build the site into figures/site: guides, background, notebooks, command line and Python names.
#
#   scripts/site.sh [FIGURES]     FIGURES: where `sparsepipe reproduce` exported to (default: figures)
#
# It asks no network, and the site opens from disk. Executed notebooks are shown with their outputs, others with the
# pictures of the gallery. A broken link, or a page that no other page links to, is an error.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/setup.sh
exec .venv/bin/python scripts/docs/build.py "$@"
