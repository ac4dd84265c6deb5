#!/usr/bin/env bash
# Set up, then run every check and every test; what follows the options goes to pytest.
#
#   scripts/test.sh [--fast] [PYTEST ARGUMENT...]     --fast: without the slow tests
#
# Real data is looked for in SPARSEPIPE_DATA, else in shared/data beside the repository; tests skip aloud without it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/setup.sh

# More than the two cores there are at least: tests wait for processes of theirs, the slow ones most.
select=(-n 4)
if [ "${1:-}" = --fast ]; then
  select=(-n 3 -m "not slow")
  shift
fi
if [ -z "${SPARSEPIPE_DATA:-}" ] && [ -d ../shared/data ]; then
  SPARSEPIPE_DATA=$(cd ../shared/data && pwd)
  export SPARSEPIPE_DATA
fi
export OMP_NUM_THREADS=1 # tests start processes of their own on few cores

failed=()
check() { # check WHAT COMMAND...: go on after a failure, so that one run shows all
  local what=$1
  shift
  echo "== $what" >&2
  "$@" >&2 || failed+=("$what")
}

# Types are checked beside all else, on one core, in half of the tests' time.
types=$(mktemp)
.venv/bin/mypy >"$types" 2>&1 &
checker=$!
trap 'kill "$checker" 2>/dev/null || true; rm -f "$types"' EXIT
# Tests start hundreds of processes. Where PYTHONDONTWRITEBYTECODE is set, each would compile the package again.
check "compile" .venv/bin/python -m compileall -q sparsepipe scripts tests
# Likewise each of pytest's workers would rewrite all assertions, a third of what it takes to collect the tests.
check "rewrite" .venv/bin/python -c '
from pathlib import Path
from types import SimpleNamespace
from _pytest.assertion import rewrite
for path in Path("tests").resolve().glob("test_*.py"):
    kept = rewrite.get_cache_dir(path) / (path.stem + rewrite.PYC_TAIL)
    if rewrite._read_pyc(path, kept) is None:
        source, code = rewrite._rewrite_test(path, None)
        rewrite._write_pyc(SimpleNamespace(trace=print), code, source, kept)
'
check "ruff check" .venv/bin/ruff check .
check "ruff format" .venv/bin/ruff format --check .
shopt -s nullglob
notebooks=(notebooks/*.ipynb notebooks/*/*.ipynb)
if [ ${#notebooks[@]} -gt 0 ]; then
  check "notebooks without outputs" .venv/bin/nbstripout --verify --keep-id \
    --extra-keys "metadata.papermill cell.metadata.papermill cell.metadata.execution metadata.language_info" "${notebooks[@]}"
fi
check "tests" .venv/bin/python -m pytest "${select[@]}" "$@"
told_types() {
  local code=0
  wait "$checker" || code=$?
  cat "$types"
  return "$code"
}
check "types" told_types

if [ ${#failed[@]} -gt 0 ]; then
  printf 'test.sh: failed: %s\n' "$(IFS=,; echo "${failed[*]}")" >&2
  exit 1
fi
