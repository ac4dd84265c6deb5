"""Sizes of samples: of real data in voxels, and drawn."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from scripts.bench.document import say
from scripts.bench.sizes.rounds import tiles, varied_clouds
from sparsepipe.data import load
from sparsepipe.errors import InputError

CVS = (0.25, 0.5, 0.8)  # of the lognormal ones
REAL = {"tiles": 0.02, "modelnet10-sample": 0.03, "varied": 0.01}  # voxel sizes


def lognormal(cv: float, count: int, seed: int) -> list[float]:
    """Sizes around 1 with a coefficient of variation."""
    variance = np.log1p(cv**2)
    return np.random.default_rng((seed, 57)).lognormal(-variance / 2, variance**0.5, count).tolist()


def real(folder: Path, seed: int) -> Iterator[tuple[str, list[float]]]:
    """Yield the voxels of each sample of real data sets: tiles of scans, shapes, and clouds of many extents."""
    made = {"tiles": tiles(folder / "tiles", seed=seed), "varied": varied_clouds(folder / "varied", seed=seed)}
    for name, voxel_size in REAL.items():
        try:
            data = load(made.get(name, name), split="train", voxel_size=voxel_size, num_points=50_000)
        except InputError as error:
            say(f"left out: {name}: {error}")
            continue
        yield name, list(map(float, data.sample_sizes()))
