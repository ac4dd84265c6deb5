"""Measure the pipeline runtime against its competitors: `--help` says how, `scripts/bench/runtime/` does it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.bench.runtime.command import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
