"""ShapeNetPart with normals: SYNSET/NAME.txt, x y z nx ny nz part; 16 categories, 50 parts numbered through."""

from functools import partial
from pathlib import Path

from ...errors import InputError
from ...util.io.fields import shown
from ...util.io.files import read_json
from ..formats import Cloud, Reading
from ..formats.base import LABEL, NORMAL, POSITION
from ..formats.text import read_text_cloud
from ..labels import SEGMENTATION
from .base import MARKER, DataFolder, Listing, Marker, SampleFile, entries, folders, listed_lines, sample_of

_NAMES = "synsetoffset2category.txt"
_LISTS = "train_test_split"
_SPLITS = {"train": "train", "val": "validation", "test": "test"}  # in file names: here
_NUM_PARTS = {  # of each category; parts are numbered through in this order
    "Airplane": 4,
    "Bag": 2,
    "Cap": 2,
    "Car": 4,
    "Chair": 4,
    "Earphone": 3,
    "Guitar": 3,
    "Knife": 2,
    "Lamp": 4,
    "Laptop": 2,
    "Motorbike": 6,
    "Mug": 2,
    "Pistol": 3,
    "Rocket": 3,
    "Skateboard": 3,
    "Table": 3,
}
PARTS = tuple(f"{name} {number}" for name, count in _NUM_PARTS.items() for number in range(1, count + 1))


def found(root: Path) -> bool:
    """Return whether a folder is of this layout."""
    return (root / _NAMES).is_file() and (root / _LISTS).is_dir()


def opened(root: Path, marker: Marker) -> DataFolder:
    """List the samples. Raises InputError if a list is malformed or names a file that does not exist."""
    categories = _categories(root / _NAMES)
    classes = tuple(categories.values())
    listing = Listing(root)
    lists = {root / _LISTS / f"shuffled_{word}_file_list.json": split for word, split in _SPLITS.items()}
    for path, split in lists.items():
        if not path.is_file():
            continue
        named = read_json(path, what="list of samples")
        if not isinstance(named, list):
            raise InputError(
                "shapenetpart.list_malformed",
                f"{path}: expected a list of 'shape_data/SYNSET/NAME'; fetch the data set again",
            )
        for entry in named:
            words = entry.replace("\\", "/").split("/") if isinstance(entry, str) else []
            if len(words) < 2 or words[-2] not in categories or words[-1] in ("", ".", "..") or "\0" in words[-1]:
                listing.faults.append(
                    f"{path}: {shown(entry)}, expected 'shape_data/SYNSET/NAME' with a synset of {_NAMES}"
                )
                continue
            label, file = classes.index(categories[words[-2]]), root / words[-2] / f"{words[-1]}.txt"
            listing.attempt(partial(sample_of, file, root, label=label, split=split))
    if not listing.files:
        raise listing.empty(f"{root / _LISTS}: no shuffled_train_file_list.json, expected lists of the splits")
    files = sorted(listing.files, key=lambda file: (file.label, file.name))
    _note_left_out(listing, {*lists, *(file.path for file in files)}, categories)
    return DataFolder(
        marker.get("name", root.name),
        root,
        classes,
        tuple(files),
        marker,
        "shapenetpart",
        _read,
        parts=PARTS,
        default_task=SEGMENTATION,
        left_out=tuple(listing.left_out),
        faults=tuple(listing.faults),
    )


def _note_left_out(listing: Listing, used: set[Path], categories: dict[str, str]) -> None:
    """Note the samples that no list names, and what else lies next to them."""
    for folder in folders(listing.root):
        if folder.name in categories or folder.name == _LISTS:
            listing.leave_files((path for path in entries(folder) if path not in used), "in no list")
        else:
            listing.leave(folder, f"no synset of {_NAMES}")
    loose = [path for path in entries(listing.root) if not path.is_dir() and path.name not in (_NAMES, MARKER)]
    listing.leave_files(loose, "not read")


def _categories(path: Path) -> dict[str, str]:
    """Return {synset: category}, categories in alphabetical order."""
    pairs = [line.split() for line in listed_lines(path)]
    for words in pairs:
        if len(words) != 2:
            raise InputError(
                "shapenetpart.category_malformed",
                f"{path}: {' '.join(words)!r}, expected 'CATEGORY SYNSET'; fetch the data set again",
            )
    return {synset: name for name, synset in sorted(pairs)}


def _read(file: SampleFile, reading: Reading) -> Cloud:
    return read_text_cloud(file.path, reading, columns=(*POSITION, *NORMAL, LABEL))
