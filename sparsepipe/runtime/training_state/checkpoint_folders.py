"""Folders of checkpoints: their names, and how they come and go, in single steps: a kill leaves none half done.

By name alone: no one who removes one waits for torch.
"""

import os
import shutil
from pathlib import Path

FOLDER = "checkpoints"  # in a run's folder
MANIFEST = "manifest.json"
INITIAL = "initial.safetensors"  # in a run's folder: the weights that it starts from
_NAME = "minibatch-"
WHOLE, PARTIAL = f"{_NAME}*", f".{_NAME}*"  # patterns of the folders there
ASIDE = "-aside"  # ends the name of a whole checkpoint, until another has come in its place
GONE = "-gone"  # ends the name of one whose files are being removed: nobody reads it


def folder_of(run_dir: Path, minibatches: int) -> Path:
    """Return the folder of the complete checkpoint after some minibatches."""
    return run_dir / FOLDER / f"{_NAME}{minibatches:08d}"


def partial_folder(run_dir: Path, minibatches: int) -> Path:
    """Return the folder of a checkpoint's shards until it is complete."""
    return run_dir / FOLDER / f".{_NAME}{minibatches:08d}"


def checkpoint_name(folder: Path) -> str:
    """The name of a whole checkpoint, that of one set aside included."""
    return folder.name.removeprefix(".").removesuffix(ASIDE)


def put_in_place(whole: Path, folder: Path) -> None:
    """Give a whole checkpoint its name. One that has this name already counts until then, and is removed."""
    aside = folder.with_name(f".{folder.name}{ASIDE}")
    if folder.exists():
        remove(aside)
        folder.rename(aside)
    whole.rename(folder)
    _sync_folder(folder.parent)
    remove(aside)


def remove(folder: Path) -> None:
    """Take a checkpoint away in one step, if it exists: to remove its files takes many."""
    if not folder.exists():
        return
    gone = folder.with_name(f".{checkpoint_name(folder)}{GONE}")
    shutil.rmtree(gone, ignore_errors=True)
    folder.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def remove_partial(run_dir: Path) -> None:
    """Remove shards of checkpoints that were never completed, or not removed whole. No rank is at work."""
    for path in (run_dir / FOLDER).glob(PARTIAL):
        if not path.name.endswith(ASIDE):
            shutil.rmtree(path, ignore_errors=True)


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
