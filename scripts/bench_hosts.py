"""Measure pipelines between hosts: `--help` says how, `scripts/bench/hosts/` does it."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from scripts.bench.hosts.command import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
