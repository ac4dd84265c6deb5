"""Networks that are torch modules, by name: where each is built, without importing torch to know that it exists."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ModuleNetwork:
    """A builder: `function` of the file `home` below sparsepipe.networks, called with `args` and facts of the data.

    Facts of the data (num_classes, in_channels, image_size, vocabulary_size, ...) are given to builders whose
    parameters have these names. What the user gives as model arguments comes last, over both.
    """

    home: str  # "images.resnet"
    function: str  # "resnet"
    args: Mapping[str, Any] = field(default_factory=dict)
    summary: str = ""  # one line for `sparsepipe models`
    takes: str = ""  # what data it is made for, in a few words: "images 224 x 224"
