"""Whether a run can use every sample of a split: read once before the run, then remembered by what decides it."""

from collections.abc import Callable

import numpy as np

from ..util.text.numbers import scaled_bytes
from .cache import cache_key, open_cache
from .digest import files_digest
from .layouts import DataFolder
from .presence import look_at
from .recipe import Recipe

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
