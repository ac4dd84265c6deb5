"""What JupyterLab calls after it saved a notebook (scripts/lab.sh), so that `git status` stays as it was.

Set-up's filter lets git see notebooks without outputs. Still git calls a file of another size modified, until it is
told to look: that is done here, where nothing but outputs changed. What is staged never changes.
"""

import subprocess
import threading
from pathlib import Path
from typing import Any

_PATIENCE = 60  # seconds for one call of git


def after_save(model: Any, os_path: str, contents_manager: Any, **_: Any) -> threading.Thread | None:
    """Let git look at a saved notebook, beside the server's work; returns the thread that does."""
    if not isinstance(model, dict) or model.get("type") != "notebook":
        return None
    thread = threading.Thread(target=look_again, args=(Path(os_path),), name="git")  # a server that ends waits for it
    thread.start()
    return thread


def look_again(path: Path) -> bool:
    """Refresh what git knows of a file whose content, as its filter leaves it, is that of the index.

    Returns whether it was: False for a file that says something else, or that git does not track, and without git.
    """
    try:
        staged = _git(path, "ls-files", "--stage", "--", path.name).split()
        if len(staged) < 2 or _git(path, "hash-object", "--", path.name).strip() != staged[1]:
            return False
        _git(path, "add", "--", path.name)
    except (OSError, subprocess.SubprocessError):
        return False
    return True


def _git(path: Path, *words: str) -> str:
    command = ["git", *words]
    done = subprocess.run(command, cwd=path.parent, capture_output=True, text=True, check=True, timeout=_PATIENCE)
    return done.stdout
