"""The commit of this code, and whether it was changed since: a notebook that was only run counts for unchanged."""

import json
import subprocess
from pathlib import Path
from typing import Any

from ..host.git import git

_ROOT = Path(__file__).parents[2]


def commit(root: Path = _ROOT) -> str | None:
    """Return the commit of the checkout `root` with "+" when changed since; None outside a checkout.

    Of notebooks only what their cells say counts: opening and running one writes outputs, counts and metadata into it.
    """
    if not (root / ".git").exists():
        return None
    try:
        head = git(root, "rev-parse", "HEAD").decode().strip()
        rows = git(root, "status", "--porcelain", "-z", "-uno", "--no-renames", "--ignore-submodules=all").split(b"\0")
        changed = [(row[:2].decode(), row[3:].decode(errors="surrogateescape")) for row in rows if row]
        return head + ("+" if any(_differs(root, state, name) for state, name in changed) else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _differs(root: Path, state: str, name: str) -> bool:
    """Whether a file that git calls changed says something else than in the commit."""
    if not name.endswith(".ipynb") or set(state) - {"M", " "}:
        return True
    try:
        return _cells(git(root, "cat-file", "blob", f"HEAD:{name}")) != _cells((root / name).read_bytes())
    except (ValueError, KeyError, TypeError, AttributeError):
        return True  # no notebook


def _cells(text: bytes) -> list[Any]:
    """The kinds and sources of a notebook's cells."""
    cells = json.loads(text)["cells"]
    return [(cell["cell_type"], "".join(cell["source"]), cell["metadata"].get("tags", [])) for cell in cells]
