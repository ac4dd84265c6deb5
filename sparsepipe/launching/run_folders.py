"""Numbered folders for runs: NAME-001, NAME-002, … below one folder; none is ever overwritten."""

import re
from pathlib import Path


def folders(runs: Path, name: str) -> list[Path]:
    """The folders of the runs called `name`, the newest first."""
    return [path for _, path in sorted(_numbered(runs, name), reverse=True) if (path / "plan.json").exists()]


def new_folder(runs: Path, name: str) -> Path:
    """A folder that does not exist yet: NAME-004 after NAME-003."""
    number = max((number for number, _ in _numbered(runs, name)), default=0) + 1
    return runs / f"{_plain(name)}-{number:03d}"


def _numbered(runs: Path, name: str) -> list[tuple[int, Path]]:
    whole = re.compile(re.escape(_plain(name)) + r"-(\d{3,})")
    paths = runs.iterdir() if runs.is_dir() else ()
    return [(int(found[1]), path) for path in paths if (found := whole.fullmatch(path.name))]


def _plain(name: str) -> str:
    """The name without what would make it more than one folder."""
    return re.sub(r"[/\\:]+", "-", name)
