"""Check a whole data set: read every file, count by split, list what would stop a run and which samples are equal."""

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError, one_line
from ..util.text.numbers import as_given, number_of
from .dataset import VoxelDataset
from .folder import list_folder, missing_classes
from .formats import Cloud, Mesh
from .layouts import DataFolder, LeftOut, SampleFile
from .reach import reach
from .recipe import ALL, OCCUPANCY, Recipe

_USUAL_STRIDE = (32, 32, 32)  # the coarsest of our networks: clouds are moved by multiples of it
_MOST_PAIRS = 20  # of samples that are there twice, in the text


@dataclass(frozen=True)
class Fault:
    """A fault that would stop a run: the file (or folder), what is wrong with it, and where known a remedy."""

    file: str
    problem: str
    remedy: str = ""

    def __str__(self) -> str:
        return "; ".join(part for part in (f"{self.file}: {self.problem}", self.remedy) if part)


@dataclass(frozen=True)
class SplitCounts:
    """Count the content of one split's files. `points` are of clouds, `faces` of meshes, `voxels` of the samples made.

    `unlabelled` and `unmeasured` count the points (or faces) that dataset.json or the layout declare to be so.
    """

    samples: int = 0
    faulty: int = 0
    points: int = 0
    faces: int = 0
    voxels: int = 0
    unlabelled: int = 0
    unmeasured: int = 0


@dataclass(frozen=True)
class Twins:
    """Two samples with the same content, by name, and their splits."""

    first: str
    second: str
    splits: tuple[str, str]


@dataclass(frozen=True)
class Report:
    """Result of `check`. A run can use the data set if `faults` is empty."""

    name: str
    path: str
    layout: str
    tasks: tuple[str, ...]
    voxel_size: float
    splits: dict[str, SplitCounts]
    faults: tuple[Fault, ...]
    across_splits: tuple[Twins, ...] = ()
    within_split: tuple[Twins, ...] = ()
    left_out: tuple[LeftOut, ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON document. A sample that occurs twice in one split is only counted."""
        document = asdict(self)
        document["within_split"] = len(self.within_split)
        return {"ok": not self.faults, **document}

    def __str__(self) -> str:
        lines = [
            f"{self.name}: {number_of(sum(counts.samples for counts in self.splits.values()), 'sample')}, {self.layout}"
        ]
        lines += [f"{split}: {_counts_text(counts, self.voxel_size)}" for split, counts in self.splits.items()]
        if "test" not in self.splits and "validation" in self.splits:
            lines.append("note: no split test, so a run needs --validation-split validation")
        elif "test" not in self.splits:
            lines.append("note: no split test, so a run needs --no-validation")
        for twins in self.across_splits[:_MOST_PAIRS]:
            lines.append(f"warning: {twins.second} is identical to {twins.first}, so one sample is in two splits")
        if len(self.across_splits) > _MOST_PAIRS:
            lines.append(
                f"warning: {number_of(len(self.across_splits) - _MOST_PAIRS, 'more sample')} in two splits, see --json"
            )
        if self.within_split:
            first = self.within_split[0]
            lines.append(
                f"note: {number_of(len(self.within_split), 'sample')} "
                f"{'is' if len(self.within_split) == 1 else 'are'} duplicated in their split, such as {first.first} "
                f"and {first.second}"
            )
        lines += [str(fault) for fault in self.faults] or ["no problems found"]
        return "\n".join(map(one_line, lines))


def check(
    path: Path | str,
    *,
    voxel_size: float = 0.05,
    num_points: int | str | None = ALL,
    task: str | None = None,
    features: Sequence[str] = (OCCUPANCY,),
    engine: str = "auto",
    progress: Callable[[str], None] | None = None,
) -> Report:
    """Read every file of a data set once, make the sample that a run would, and report; nothing is kept on disk.

    What `engine` ("auto", "native" or "minkowski") cannot hold at this voxel size is a fault: a point far away.
    Without a `task` the samples are made for all that the data set allows. One is in memory at a time. `progress`
    receives how far it is, in words. Raises InputError for a bad setting, and if the folder is no data set; what is
    wrong with files is in the report, each fault of them.
    """
    recipe = Recipe(voxel_size, num_points, 0, tuple(features))
    folder = list_folder(path)
    faults = [_fault(text, folder.path) for text in folder.faults]
    faults += [
        Fault(str(folder.path), f"no sample of class {one['class']} in split {one['split']}", "add some or remove it")
        for one in missing_classes(folder)
    ]
    if "train" not in folder.splits:
        faults.append(
            Fault(str(folder.path), f"no split train, only {', '.join(folder.splits)}", "add training samples")
        )
    tasks = (task,) if task else folder.tasks
    reader = _CloudReader(folder, recipe, tasks, reach(engine, 3), progress or (lambda line: None))
    splits = {split: reader.read_split(split) for split in folder.splits}
    return Report(
        name=folder.name,
        path=str(path),
        layout=folder.layout,
        tasks=tasks,
        voxel_size=voxel_size,
        splits=splits,
        faults=(*faults, *reader.faults),
        across_splits=tuple(twins for twins in reader.twins if twins.splits[0] != twins.splits[1]),
        within_split=tuple(twins for twins in reader.twins if twins.splits[0] == twins.splits[1]),
        left_out=folder.left_out,
    )


class _CloudReader:
    """Reads the files of a data set one after the other and gathers what is wrong and what is there twice."""

    def __init__(
        self, folder: DataFolder, recipe: Recipe, tasks: Sequence[str], limit: int, tell: Callable[[str], None]
    ) -> None:
        self.folder, self.recipe, self.tasks, self.limit, self.tell = folder, recipe, tasks, limit, tell
        self.faults: list[Fault] = []
        self.twins: list[Twins] = []
        self._first: dict[bytes, SampleFile] = {}  # by what a sample holds
        self._done = 0

    def read_split(self, split: str) -> SplitCounts:
        """Read the samples of one split."""
        files = self.folder.of_split(split)
        datasets = [
            VoxelDataset(self.folder, split, recipe=self.recipe, task=task, cache="off", files=files).near_origin(
                _USUAL_STRIDE, reach=self.limit
            )
            for task in self.tasks
        ]
        counts: Counter[str] = Counter(samples=len(files))
        for file in files:
            try:
                content = self.folder.read(file)
                self._compare(file, content)
                counts.update(_measured(content))
                samples = [dataset.examined(file, content) for dataset in datasets]
                counts["voxels"] += len(samples[0])
            except InputError as error:
                counts["faulty"] += 1
                self.faults.append(_fault(str(error), self.folder.path, file))
            except MemoryError:
                counts["faulty"] += 1
                self.faults.append(
                    Fault(str(file.path), "needs more memory than is available", "split it into smaller files")
                )
            self._done += 1
            self.tell(f"{self._done} of {len(self.folder.files)} samples read, {number_of(len(self.faults), 'fault')}")
        return SplitCounts(**counts)

    def _compare(self, file: SampleFile, content: Mesh | Cloud) -> None:
        first = self._first.setdefault(_digest(content), file)
        if first is not file:
            self.twins.append(Twins(first.name, file.name, (first.split, file.split)))


def _measured(content: Mesh | Cloud) -> dict[str, int]:
    size = {"faces": len(content.faces)} if isinstance(content, Mesh) else {"points": len(content)}
    return size | {"unlabelled": content.num_unlabelled, "unmeasured": content.num_unmeasured}


def _digest(content: Mesh | Cloud) -> bytes:
    """Hash what was measured: the same in another file, format or list has the same hash."""
    digest = hashlib.blake2b(digest_size=16)
    for array in _arrays(content):
        digest.update(str(array.shape).encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.digest()


def _arrays(content: Mesh | Cloud) -> Iterator[np.ndarray]:
    if isinstance(content, Mesh):
        yield content.vertices
        yield content.faces
        return
    yield content.points
    if content.attributes is not None:
        yield content.attributes


def _fault(text: str, root: Path, file: SampleFile | None = None) -> Fault:
    """Divide a message (place: what is the matter; what to do) into its parts; `file` is where it was met."""
    place, rest = _place(text, root, file)
    rest = re.sub(r"^(\d+): ", r"line \1: ", rest)
    problem, semicolon, remedy = rest.rpartition("; ")
    return Fault(place, problem, remedy) if semicolon else Fault(place, rest)


def _place(text: str, root: Path, file: SampleFile | None) -> tuple[str, str]:
    """Return the file that a message begins with, and what follows."""
    if file is not None:
        for path in (file.path, *file.companions):
            if text.startswith(start := f"{one_line(path)}:"):
                return str(path), text.removeprefix(start).lstrip()
        return str(file.path), text
    start = one_line(root)
    colon = text.find(": ", len(start) if text.startswith(start) else 0)
    return (str(root), text) if colon < 0 else (text[:colon], text[colon + 2 :])


def _counts_text(counts: SplitCounts, voxel_size: float) -> str:
    parts = [number_of(counts.samples, "sample")]
    parts += [f"{count} {what}" for what, count in (("points", counts.points), ("faces", counts.faces)) if count]
    parts.append(f"{counts.voxels} voxels of {as_given(voxel_size)}")
    parts += [f"{counts.unlabelled} points of no class"] if counts.unlabelled else []
    parts += [f"{counts.unmeasured} not measured and left out"] if counts.unmeasured else []
    parts += [f"{counts.faulty} that cannot be used"] if counts.faulty else []
    return ", ".join(parts)
