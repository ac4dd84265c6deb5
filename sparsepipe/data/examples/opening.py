"""Open one split of a data set of examples, whatever it is and wherever it lies."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...util.io.fields import given_integer
from ...util.io.files import expanded
from ...util.io.functions import UserFunction, is_function
from ..cache import SampleCache, open_cache
from ..folder import check_options
from .base import ExampleDataset
from .images import cifar, idx
from .images import folders as image_folders
from .images.base import Pictures
from .images.dataset import ImageExamples
from .own import OwnExamples
from .recognising import located
from .texts.bert import PlainTextExamples, PlainTextSettings
from .texts.shards import ShardExamples, ShardSettings
from .texts.translation import TranslationExamples, TranslationSettings

SPLITS = ("train", "test")

_IMAGES: Mapping[str, Callable[[Path, str, SampleCache | None], Pictures]] = {
    "idx": lambda root, split, cache: idx.opened(root, split),
    "cifar": lambda root, split, cache: cifar.opened(root, split),
    "folders": image_folders.opened,
}
# kind: its options, and what opens it with (root, split, options, seed, cache)
_TEXTS: Mapping[str, tuple[type, Callable[..., ExampleDataset]]] = {
    "aligned": (
        TranslationSettings,
        lambda root, split, given, seed, cache: TranslationExamples(root, split, given, cache),
    ),
    "plain": (PlainTextSettings, PlainTextExamples),
    "shards": (ShardSettings, lambda root, split, given, seed, cache: ShardExamples(root, split, given)),
}


def open_examples(
    source: str | Path,
    /,  # an option of the user's own may be called source, too
    *,
    split: str,
    seed: int = 0,
    cache: Path | str | None = None,
    augmentation: str | None = None,
    collate: str | None = None,
    **options: Any,
) -> ExampleDataset:
    """Open split "train" or "test" of a folder, of a data set that a manifest names, or of a function of one's own.

    `augmentation` names the changes of training images (see images/augmentation). `cache` is a folder of prepared
    samples ("off": none). `collate` names a function that makes a minibatch of a function's items. Options: image_size
    of images; of texts those of TranslationSettings, PlainTextSettings, ShardSettings; a function gets them as
    arguments.
    Raises InputError for a source, split or option that is none now, for a bad file when it is read.
    """
    if split not in SPLITS:
        raise InputError("dataset.split_unknown", f"unknown split {split!r}, expected one of {', '.join(SPLITS)}")
    given_integer(seed, "seed", least=0)
    if is_function(str(source)) and not expanded(source).exists():
        if augmentation is not None:
            raise InputError(
                "dataset.no_augmentation",
                f"{source}: augmentation {augmentation!r} given, but a data function augments its own items; omit "
                "the augmentation",
            )
        own_collate = None if collate is None else UserFunction.parse(collate)
        return OwnExamples(UserFunction.parse(str(source)), split, seed, options, own_collate)
    if collate is not None:
        raise InputError(
            "dataset.no_collate", f"{source}: collate {collate} given, but it applies only to a data function; omit it"
        )
    kind, root = located(source)
    if kind in _IMAGES:
        check_options(options, ("image_size",), str(source))
        pictures = _IMAGES[kind](root, split, open_cache(cache))
        return ImageExamples(pictures, root, split, seed, augmentation, **options)
    if augmentation is not None:
        raise InputError(
            "dataset.no_augmentation",
            f"{source}: augmentation {augmentation!r} given, but texts have none; omit the augmentation",
        )
    settings, build = _TEXTS[kind]
    check_options(options, [option.name for option in fields(settings)], str(source))
    return build(root, split, settings(**options), seed, open_cache(cache))
