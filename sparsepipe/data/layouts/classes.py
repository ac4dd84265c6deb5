"""ModelNet's layout, CLASS/{train,test}/FILE, in any format; NAME.seg beside it holds each face's or point's part."""

import io
from pathlib import Path

import numpy as np

from ...errors import InputError
from ..formats import READERS, Cloud, Mesh, Reading, read
from ..formats.base import one_line, read_bytes, whole_labels
from .base import MARKER, SPLITS, DataFolder, SampleFile, folders, formats, sample_of

SEGMENTS = ".seg"  # one whole number a line, as the Princeton segmentation benchmark writes them


def found(root: Path) -> bool:
    """Say whether a folder is of this layout: what no other layout claims is held to it."""
    return True


def opened(root: Path, marker: dict) -> DataFolder:
    """List the samples. Raises InputError where a class has none, or a sample is there in two formats."""
    classes = tuple(folder.name for folder in folders(root))
    files: list[SampleFile] = []
    for label, name in enumerate(classes):
        samples = _class_files(root, name, label)
        if not samples:
            splits = ", ".join(f"{split}/" for split in SPLITS)
            raise InputError(f"{root / name}: no {formats()} file in {splits}; add files or remove the class folder")
        files += samples
    if not files:
        raise InputError(f"{root}: no class folder, expected CLASS/{{train,test}}/FILE; check the path")
    metric = marker.get("metric", False)
    if not isinstance(metric, bool):
        raise InputError(f"{root / MARKER}: 'metric' is {metric!r}, expected true or false; correct or remove it")
    return DataFolder(
        marker.get("name", root.name),
        root,
        classes,
        tuple(files),
        marker,
        "classes",
        _read,
        parts=_parts(root, marker),
        metric=metric,
    )


def _class_files(root: Path, name: str, label: int) -> list[SampleFile]:
    files = []
    for split in SPLITS:
        folder = root / name / split
        stems: dict[str, Path] = {}
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if path.name.startswith(".") or path.suffix.lower() not in READERS or not path.is_file():
                continue
            twin = stems.setdefault(path.stem, path)
            if twin != path:
                raise InputError(f"{twin}: the same sample is there as {path.name}; keep one format")
            segments = path.with_suffix(SEGMENTS)
            companions = (segments,) if segments.is_file() else ()
            files.append(sample_of(path, root, label=label, split=split, companions=companions))
    return files


def _parts(root: Path, marker: dict) -> tuple[str, ...]:
    parts = marker.get("parts", [])
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        raise InputError(f"{root / MARKER}: 'parts' is {parts!r}, expected a list of names; correct or remove it")
    return tuple(parts)


def _read(file: SampleFile, reading: Reading) -> Mesh | Cloud:
    content = read(file.path, reading)
    if not file.companions:
        return content
    labels = _segments(file.companions[0], reading)
    try:
        return content.with_labels(labels)
    except InputError as error:
        raise InputError(f"{file.companions[0]}: {error}") from None


def _segments(path: Path, reading: Reading) -> np.ndarray:
    data = read_bytes(path, what="a list of labels")
    try:
        labels = np.loadtxt(io.StringIO(data.decode("utf-8", errors="replace")), ndmin=1)
    except ValueError as error:
        raise InputError(f"{path}: not one whole number a line ({one_line(error)}); repair or remove it") from None
    if labels.ndim != 1:
        raise InputError(f"{path}: {labels.shape[1]} numbers a line, expected one; repair or remove it")
    return whole_labels(path, labels, reading)
