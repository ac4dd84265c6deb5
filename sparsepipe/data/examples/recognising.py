"""Tell data sets of examples from clouds, by names of files and folders; only a few of them are looked at."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from ...errors import InputError
from ...util.io.files import expanded
from ...util.io.functions import is_function
from ..folder import find
from ..layouts.base import folders
from ..manifests import CLOUDS, get_manifest

# A kind's file, whose `found(root)` says whether a folder is of it: in this order.
_HOMES = {
    "idx": "images.idx",
    "cifar": "images.cifar",
    "folders": "images.folders",
    "aligned": "texts.aligned",
    "shards": "texts.shard_files",
    "plain": "texts.masking",
}
_DEPTH = 2  # folders around a data set, as archives have: cifar-10-batches-bin/, MNIST/raw/


def is_examples(source: str | Path) -> bool:
    """Return whether a folder, a manifest's name or a function's is a data set of examples, without reading it.

    What is none may be a data set of clouds, or not be there.
    """
    text = str(source)
    if not _is_there(text):
        if is_function(text):
            return True
        try:
            return isinstance(source, str) and get_manifest(text).kind != CLOUDS
        except InputError:
            return False
    return recognised(expanded(text)) is not None


def _is_there(text: str) -> bool:
    try:
        return expanded(text).exists()
    except OSError:  # a name longer than any file's
        return False


def recognised(folder: Path) -> tuple[str, Path] | None:
    """Return the kind of a folder and the folder inside it that has the data; None if it is of no kind."""
    for _ in range(_DEPTH + 1):
        if not folder.is_dir():
            return None
        for kind, home in _HOMES.items():
            if _found(home)(folder):
                return kind, folder
        inside = folders(folder)
        if len(inside) != 1:
            return None
        folder = inside[0]
    return None


def located(source: str | Path) -> tuple[str, Path]:
    """Return the kind and the folder of a data set by path or manifest's name. Raises InputError if it is none."""
    folder = find(source)
    if not folder.is_dir():
        state = "is a file" if folder.exists() else "no such folder"
        raise InputError(
            "dataset.not_found",
            f"{folder}: {state}, expected a data set's folder, its name, or package.module:function",
        )
    found = recognised(folder)
    if found is None:
        raise InputError(
            "dataset.unrecognised",
            f"{folder}: contains no known data set of images or texts, expected train/CLASS/*.jpg, idx files, "
            "CIFAR's *.bin, train.LANGUAGE of two languages, *.txt in train/, or shards with input_ids; check the "
            "path",
        )
    return found


def _found(home: str) -> Callable[[Path], bool]:
    found: Callable[[Path], bool] = import_module(f".{home}", __package__).found
    return found
