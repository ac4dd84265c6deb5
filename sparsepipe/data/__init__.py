"""Point clouds from disk to minibatches of voxels; images, texts and data sets of one's own: see `examples`.

Names are imported when first asked for: listing data sets waits for neither torch nor the libraries that read meshes.
"""

from typing import TYPE_CHECKING

from ..util.lazy_names import lazy_names

if TYPE_CHECKING:
    from .augmentation import AUGMENTATIONS, Augmentation
    from .batch import PointBatch, Sample, collate
    from .dataset import VoxelDataset, load
    from .describing import check, info
    from .downloads import fetch
    from .folder import find, open_folder
    from .inspection import Report
    from .labels import IGNORED
    from .layouts import DataFolder
    from .manifests import Manifest, list_datasets
    from .minibatch_sizes import LAST_MINIBATCH, sizes
    from .order import (
        ORDERS,
        bucketed_minibatches,
        class_balanced_minibatches,
        compose,
        minibatches,
        voxel_balanced_minibatches,
    )
    from .predicted_points import to_points, vote
    from .preparing import make_digits
    from .shapes import make_shapes
    from .voxels import unit_cube, voxelize

_HOMES = {  # a file of this folder: what it gives
    "augmentation": ("AUGMENTATIONS", "Augmentation"),
    "batch": ("PointBatch", "Sample", "collate"),
    "dataset": ("VoxelDataset", "load"),
    "describing": ("check", "info"),
    "downloads": ("fetch",),
    "folder": ("find", "open_folder"),
    "inspection": ("Report",),
    "labels": ("IGNORED",),
    "layouts": ("DataFolder",),
    "manifests": ("Manifest", "list_datasets"),
    "minibatch_sizes": ("LAST_MINIBATCH", "sizes"),
    "order": (
        "ORDERS",
        "bucketed_minibatches",
        "class_balanced_minibatches",
        "compose",
        "minibatches",
        "voxel_balanced_minibatches",
    ),
    "predicted_points": ("to_points", "vote"),
    "preparing": ("make_digits",),
    "shapes": ("make_shapes",),
    "voxels": ("unit_cube", "voxelize"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "AUGMENTATIONS",
    "IGNORED",
    "LAST_MINIBATCH",
    "ORDERS",
    "Augmentation",
    "DataFolder",
    "Manifest",
    "PointBatch",
    "Report",
    "Sample",
    "VoxelDataset",
    "bucketed_minibatches",
    "check",
    "class_balanced_minibatches",
    "collate",
    "compose",
    "fetch",
    "find",
    "info",
    "list_datasets",
    "load",
    "make_digits",
    "make_shapes",
    "minibatches",
    "open_folder",
    "sizes",
    "to_points",
    "unit_cube",
    "vote",
    "voxel_balanced_minibatches",
    "voxelize",
]

__getattr__, __dir__ = lazy_names(globals(), _HOME, folders=("examples",))
