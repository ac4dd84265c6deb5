"""Every notebook and panel as browsers draw them, in sheets: `--help` says how, `scripts/sheets/` does it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.sheets.command import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
