"""Time the engines against each other and bare products: `--help` says how, `scripts/bench/engines/` does it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.bench.engines.command import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
