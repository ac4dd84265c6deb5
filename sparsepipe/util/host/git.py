"""Git in a checkout, without any program that the checkout's own configuration names.

A folder that was sent with its `.git` may name hooks, filters, a file system monitor or a command of a remote there:
git would run them when it is only asked what has changed.
"""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

_PATIENCE = 60  # seconds for one call
_ENVIRONMENT = {"GIT_OPTIONAL_LOCKS": "0", "GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": "none"}
_SETTINGS = {"core.fsmonitor": "", "core.hooksPath": os.devnull}


def git(root: Path, *words: str, filters: Mapping[str, str] | None = None) -> bytes:
    """Return what `git words` prints in the checkout whose top folder is `root`.

    Of its filters those in `filters` alone are used, as {"filter.NAME.clean": COMMAND}, if the checkout has them.
    Raises OSError without git, and subprocess.SubprocessError if it fails or takes more than a minute.
    """
    listed = _run(root, ("config", "--null", "--name-only", "--get-regexp", r"^filter\."), _SETTINGS, check=False)
    known = dict.fromkeys(filter(None, os.fsdecode(listed).split("\0")), "")
    if any("=" in name for name in known):  # git would read it as another setting
        raise subprocess.SubprocessError(f"{root}: a filter has '=' in its name")
    given = {name: command for name, command in (filters or {}).items() if name in known}
    return _run(root, words, {**_SETTINGS, **known, **given})


def _run(root: Path, words: tuple[str, ...], settings: Mapping[str, str], *, check: bool = True) -> bytes:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment |= _ENVIRONMENT | {"GIT_CEILING_DIRECTORIES": str(root.parent)}  # a repository above is another one
    options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    return subprocess.run(
        ["git", "--no-pager", *options, *words],
        cwd=root,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=check,
        timeout=_PATIENCE,
    ).stdout
