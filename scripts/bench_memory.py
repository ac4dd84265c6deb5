"""Train scenes of very different size under a limit of memory: `--help` says how, `scripts/bench/memory/` does it."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault("OMP_NUM_THREADS", "1")

from scripts.bench.memory.command import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
