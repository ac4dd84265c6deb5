"""Measure pipelines between hosts: `--help` says how, `scripts/bench/hosts/` does it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.bench.hosts.command import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
