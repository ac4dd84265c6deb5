"""What a merge does with what its members contribute: one member for each arithmetic that is done after the step."""

from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from ....values.replication.base import Merge


@dataclass(frozen=True, eq=False)
class Contribution:
    """Contribution of a rank, on its way to a merge."""

    number: int  # among those of its pipeline
    update: int  # after which its pipeline contributed
    snapshot: Tensor  # float32 [elements]: weights and buffers as they were then
    change: Tensor | None = None  # by what they had changed, for a rule that counts this


@dataclass(frozen=True, eq=False)
class Merged:
    """Result of a merge for one rank."""

    correction: Tensor  # what to add to the newest weights and buffers
    result: Tensor | None = None  # what is to be where the snapshot was: to be taken as it is where nobody trained on
    facts: dict[str, Any] = field(default_factory=dict)


class Merging(Protocol):
    """One stage's part in the merges of a rule: `contribute` and `applied` in the thread that trains, `merge` in
    another.

    What training needs of it besides weights is its state, float32 and named KIND:NAME like an optimizer's.
    """

    def contribute(self, number: int, update: int, snapshot: Tensor) -> Contribution:
        """Put forward what a stage has now."""
        ...

    def merge(self, merge: Merge, contribution: Contribution) -> Merged:
        """Carry out a merge with its other members. Raises CalledOff if it comes to nothing for this rank."""
        ...

    def applied(self, contribution: Contribution, merged: Merged | None) -> None:
        """Note that the result of a merge is now in the weights; None: it has no result."""
        ...

    def state(self) -> dict[str, Tensor]:
        """Return what whoever takes this stage's weights needs, too."""
        ...

    def kept(self) -> dict[str, Tensor]:
        """Return what whoever holds these layers next needs in the same pipeline, alongside their weights."""
        ...

    def load(self, state: dict[str, Tensor]) -> None:
        """Go on from another pipeline's state. Names that are not this stage's are left alone."""
        ...


def distance(difference: Tensor, mean: Tensor) -> float:
    """Return by how much weights are away from their mean: ||difference|| / ||mean||, 0 if there are none."""
    norm = float(mean.norm())
    return float(difference.norm()) / norm if norm else 0.0
