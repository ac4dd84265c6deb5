"""Describe and check a data set, whatever its samples are: clouds, or examples (images, texts, one's own).

Whether a run can use every sample of a split is read once before the run, then remembered by what decides it.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..util.text.numbers import number_of, scaled_bytes
from . import folder
from .cache import cache_key, open_cache
from .examples import is_examples
from .folder import files_digest, find, look_at
from .layouts.base import COMPANION_SUFFIXES, UNREAD, DataFolder
from .recipe import Recipe

if TYPE_CHECKING:
    from .examples.inspection import ExampleReport
    from .inspection import Report


def info(source: Path | str, **options: Any) -> dict[str, Any]:
    """Describe a data set by its folder, the name of its manifest, or a function of your own.

    The result can be written as JSON.

    Clouds are not read: see `folder.info`. Other data sets take the `options` of `examples.inspection.info`.
    """
    if is_examples(source):
        from .examples import inspection  # here: it waits for torch

        return inspection.info(source, **options)
    return folder.info(find(source), **options)


def check(
    source: Path | str, *, progress: Callable[[str], None] | None = None, **options: Any
) -> "Report | ExampleReport":
    """Read every sample of a data set once, and report the problems that would stop a run.

    `options` are those of `inspection.check` for clouds, and of `examples.inspection.check` for other data sets.
    """
    if is_examples(source):
        from .examples import inspection as of_examples  # here: it waits for torch

        return of_examples.check(source, progress=progress, **options)
    from . import inspection

    return inspection.check(find(source), progress=progress, **options)


def unread_files(source: Path | str, opened: Callable[[Path | str], DataFolder] = folder.open_folder) -> Iterator[str]:
    """Yield a line for files among the samples of a folder that are of no format that is read, and are no samples.

    `opened`: returns the folder's files, where somebody has listed them before.
    """
    if not Path(source).is_dir() or is_examples(source):
        return
    for entry in opened(source).left_out:
        if entry.why == UNREAD and Path(entry.path).suffix.lower() not in COMPANION_SUFFIXES:
            yield (
                f"{Path(source) / entry.path}: {number_of(entry.files, 'file')} {UNREAD}, skipped; `sparsepipe data "
                "info` lists the skipped files"
            )


_MOST_BYTES = 256 * 2**20  # of a split's files, which are read in seconds


def check_split(
    folder: DataFolder,
    split: str,
    *,
    recipe: Recipe,
    task: str | None,
    engine: str,
    steps: tuple[int, ...] | None,
    cache: str | None,
    tell: Callable[[str], None],
) -> None:
    """Raise InputError for the first sample of a split that a run would refuse, naming its file and point.

    What it costs is bounded. A split of more than 256 MiB is not read, which `tell` receives; a run then refuses
    such a sample when it reads it, in the same words. What was read is in the cache for the run, and a split without a
    fault is not read again while its files and these settings stay.
    """
    files = folder.split(split)
    paths = dict.fromkeys(path for file in files for path in (file.path, *file.companions))
    look_at(paths, split)
    sizes = {path: path.stat().st_size for path in paths}
    if sum(sizes.values()) > _MOST_BYTES:
        tell(
            f"{folder.path}: {scaled_bytes(sum(sizes.values()))} in split {split} were not checked before the run; "
            "`sparsepipe data check` checks all files"
        )
        return
    store = open_cache(cache)
    facts: dict[str, object] = {"what": "sound", "engine": engine, "steps": steps, "recipe": recipe.facts()}
    facts |= {"task": task, "parts": folder.parts, "layout": folder.layout, "metric": folder.metric}
    facts |= {"reading": folder.reading.facts(), "names": [(file.name, file.label, file.entry) for file in files]}
    facts |= files_digest(sizes, [(path.name, size) for path, size in sizes.items()])
    key = cache_key((), facts)
    if store is not None and store.load(key) is not None:
        return
    from .dataset import VoxelDataset  # here: it brings torch, for which nobody who launches again need wait
    from .reach import reach

    dataset = VoxelDataset(folder, split, recipe=recipe, task=task, cache=cache)
    dataset = dataset.near_origin(steps, reach=reach(engine, 3))
    for index in range(len(dataset)):
        dataset.placed(index)
    if store is not None:
        store.save(key, {"samples": np.array([len(dataset)])})
