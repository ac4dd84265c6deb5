"""Measure what a change of the plan costs a running job: `--help` says how, `scripts/bench/replan/` does it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.bench.replan.command import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
