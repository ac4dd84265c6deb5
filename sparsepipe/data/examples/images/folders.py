"""Pictures in folders of their classes, train/CLASS/*.jpg and val/CLASS or test/CLASS, as ImageNet's usually lie.

Classes are ordered by name, as torchvision's ImageFolder has them; folders inside a class's are searched too.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from ....errors import InputError
from ...cache import SampleCache, sample_key
from ...formats import READERS, suffix_of
from ...layouts.base import duplicate_names, entries, folders, is_litter, split_of
from .base import SUFFIXES, Style, decoded

_STYLE = Style((0.485, 0.456, 0.406), (0.229, 0.224, 0.225), 224, margin=256 / 224)  # of ImageNet's training images
_CLOUDS = set(READERS) - {".txt", ".csv"}
_MOST_KEPT_BYTES = 2**29  # of decoded pictures in memory; what comes after is read again


@dataclass(frozen=True, eq=False)
class FolderPictures:
    """The pictures of one split's folder. `classes` are those of the training split."""

    folder: Path
    split: str
    classes: tuple[str, ...]
    cache: SampleCache | None = None
    style = _STYLE
    _kept: dict[tuple[int, int], np.ndarray] = field(default_factory=dict)

    @cached_property
    def _samples(self) -> list[tuple[Path, int]]:
        labels = {name: label for label, name in enumerate(self.classes)}
        inside = [folder for folder in folders(self.folder) if folder.name in labels]
        found = [(path, labels[folder.name]) for folder in inside for path in _pictures(folder)]
        missing = sorted(set(self.classes) - {folder.name for folder in inside})
        if missing:
            raise InputError(
                "images.class_folder_missing",
                f"{self.folder}: has no folder {missing[0]}, although the training split has this class; add the "
                "folder",
            )
        if not found:
            raise InputError(
                "images.none", f"{self.folder}: its class folders contain no pictures ({', '.join(SUFFIXES)}); add some"
            )
        return found

    @cached_property
    def files(self) -> Sequence[Path]:
        return [path for path, _ in self._samples]

    @cached_property
    def labels(self) -> tuple[int, ...]:
        return tuple(label for _, label in self._samples)

    def name(self, index: int) -> str:
        return self.file(index).relative_to(self.folder.parent).as_posix()

    def file(self, index: int) -> Path:
        return self._samples[index][0]

    def picture(self, index: int, least_side: int) -> np.ndarray:
        known = self._kept.get((index, least_side))
        if known is not None:
            return known
        picture = self._read(self.file(index), least_side)
        if len(self._kept) * picture.nbytes < _MOST_KEPT_BYTES:  # they are of about one size
            self._kept[index, least_side] = picture
        return picture

    def _read(self, path: Path, least_side: int) -> np.ndarray:
        key = sample_key(self.cache, (path,), {"what": "picture", "least_side": least_side})
        if self.cache is None or key is None:
            return decoded(path, least_side)
        arrays = self.cache.load(key)
        if arrays is not None and "picture" in arrays:
            return arrays["picture"]
        picture = decoded(path, least_side)
        self.cache.save(key, {"picture": picture})
        return picture


def found(root: Path) -> bool:
    """Return whether a folder has a training split with folders of pictures in it; a few of them are looked at.

    Pictures that lie alongside clouds or meshes are views of these.
    """
    train = _split_folders(root).get("train")
    some = [] if train is None else folders(train)[:3]
    if any(suffix_of(path) in _CLOUDS for folder in some for path in entries(folder)):
        return False
    return any(next(_pictures_lazily(folder), None) for folder in some)


def opened(root: Path, split: str, cache: SampleCache | None) -> FolderPictures:
    """Open a split; split test is the folder test, or where that has other classes (or none) val.

    Raises InputError if there is no such folder, or it has classes that the training split lacks.
    """
    there = _split_folders(root)
    classes = _classes(there["train"])
    candidates = [there[name] for name in ("test", "validation") if name in there]
    for folder in (there["train"], *candidates):
        if twins := duplicate_names(sorted({*classes, *_classes(folder)})):
            raise InputError(
                "images.classes_alike",
                f"{folder}: classes {twins}; rename one, or merge them",
            )
    if split == "train":
        return FolderPictures(there["train"], split, classes, cache)
    strange: list[str] = []
    for folder in candidates:
        inside = _classes(folder)
        if inside and set(inside) <= set(classes):
            return FolderPictures(folder, split, classes, cache)
        strange += [f"{folder.name}/{name}" for name in inside if name not in classes]
    if strange:
        raise InputError(
            "images.class_unknown",
            f"{root}: class {strange[0]} does not occur in {there['train'].name}; give both splits the same classes",
            name=there["train"].name,
        )
    raise InputError("images.no_test_folder", f"{root}: has no folder test or val with class folders; add one")


def _split_folders(root: Path) -> dict[str, Path]:
    return {split: folder for folder in folders(root) if (split := split_of(folder.name))}


def _classes(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(inside.name for inside in folders(folder)))


def _pictures(folder: Path) -> list[Path]:
    return sorted(_pictures_lazily(folder))


def _pictures_lazily(folder: Path) -> Iterator[Path]:
    for place, inside, names in os.walk(folder, followlinks=False):
        inside[:] = [name for name in inside if not is_litter(name)]
        yield from (Path(place, n) for n in names if n.lower().endswith(SUFFIXES) and not is_litter(n))
