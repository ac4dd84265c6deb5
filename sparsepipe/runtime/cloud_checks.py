"""Whether a run can use every point cloud of the splits that it reads: asked before it begins, without torch."""

from collections.abc import Iterable

from ..data.augmentation import named_augmentation
from ..data.layouts import DataFolder
from ..data.recipe import Recipe
from ..data.soundness import check_split
from ..io.told import tell
from ..models import is_table, network
from .config import DataConfig


def check_clouds(folder: DataFolder, config: DataConfig, splits: Iterable[str], *, engine: str, seed: int) -> None:
    """Raise InputError for the first sample of these splits that a run of the settings would refuse.

    See `data.soundness.check_split` for what it costs.
    """
    steps = network(config.model, num_classes=2).coarsest_stride if is_table(config.model) else None
    for split in splits:
        asked = config.of_clouds(split)
        augmentation = named_augmentation(asked["augmentation"])
        recipe = Recipe(asked["voxel_size"], asked["num_points"], seed, asked["features"], augmentation)
        check_split(
            folder, split, recipe=recipe, task=asked["task"], engine=engine, steps=steps, cache=config.cache, tell=tell
        )
