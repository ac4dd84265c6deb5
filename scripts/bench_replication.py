"""Compare the replication rules of several pipelines: `--help` says how, `scripts/bench/replication/` does it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.bench.replication.command import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
