"""What JupyterLab calls after it saved a notebook (scripts/lab.sh), so that `git status` stays as it was.

Set-up's filter lets git see notebooks without outputs. Still git calls a file of another size modified, until it is
asked to look: that is done here, if only outputs changed. What is staged never changes. Notebooks outside this checkout
are left alone.
"""

import shlex
import subprocess
import threading
from pathlib import Path
from typing import Any

from ..util.host.git import git
from ..util.host.imports import python_command

_ROOT = Path(__file__).parents[2]
OPTIONS = (  # those of the filter that set-up configures
    "--keep-id",
    "--extra-keys",
    "metadata.papermill cell.metadata.papermill cell.metadata.execution metadata.language_info",
)
_FILTER = {"filter.notebooks.clean": shlex.join(python_command("nbstripout", *OPTIONS))}


def after_save(model: object, os_path: str, contents_manager: object, **_: Any) -> threading.Thread | None:
    """Let git look at a saved notebook in the background; returns the thread that does."""
    if not isinstance(model, dict) or model.get("type") != "notebook":
        return None
    thread = threading.Thread(target=look_again, args=(Path(os_path),), name="git")  # a server that ends waits for it
    thread.start()
    return thread


def look_again(path: Path, root: Path = _ROOT) -> bool:
    """Refresh what git knows of a file whose content, as the filter leaves it, is that of the index.

    Returns whether it was: False for a file that says something else, or that git does not track in the checkout
    `root`, and without git.
    """
    try:
        name = path.resolve().relative_to(root.resolve()).as_posix()
        if not (root / ".git").exists():
            return False
        staged = git(root, "ls-files", "--stage", "--", f":(literal){name}").split()
        if len(staged) < 2 or git(root, "hash-object", "--", name, filters=_FILTER).strip() != staged[1]:
            return False
        git(root, "add", "--", f":(literal){name}", filters=_FILTER)
    except (OSError, ValueError, subprocess.SubprocessError):
        return False
    return True
