"""Open one split of a data set of examples, whatever it is and wherever it lies."""

from pathlib import Path
from typing import Any

from ...errors import InputError
from ...fields import given_integer
from ...functions import UserFunction, is_function
from ..cache import SampleCache, open_cache
from .base import ExampleDataset
from .files import check_options
from .images import cifar, folders, idx
from .images.base import Pictures
from .images.dataset import ImageExamples
from .own import OwnExamples
from .recognising import located

SPLITS = ("train", "test")


def open_examples(
    source: str | Path,
    *,
    split: str,
    seed: int = 0,
    cache: Path | str | None = None,
    augmentation: str | None = None,
    **options: Any,
) -> ExampleDataset:
    """Open split "train" or "test" of a folder, of a data set that a manifest names, or of a function's of one's own.

    `augmentation` names how training samples change from epoch to epoch, `cache` a folder for what is prepared (as for
    clouds; "off" keeps nothing). Options by kind: image_size; for texts see `texts`; a function gets them as arguments.
    Raises InputError for a source, split or option that is none now, for a bad file when it is read.
    """
    if split not in SPLITS:
        raise InputError(f"split {split!r} asked, expected one of {', '.join(SPLITS)}")
    given_integer(seed, "seed", least=0)
    if is_function(str(source)) and not Path(source).exists():
        if augmentation is not None:
            raise InputError(
                f"{source}: augmentation {augmentation!r} given, but items of a function change by its own"
            )
        return OwnExamples(UserFunction.parse(str(source)), split, seed, options)
    kind, root = located(source)
    check_options(options, ("image_size",), str(source))
    pictures = _pictures(kind, root, split, open_cache(cache))
    return ImageExamples(pictures, root, split, seed, augmentation, **options)


def _pictures(kind: str, root: Path, split: str, cache: SampleCache | None) -> Pictures:
    if kind == "folders":
        return folders.opened(root, split, cache)
    return {"idx": idx, "cifar": cifar}[kind].opened(root, split)
