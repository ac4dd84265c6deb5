"""What is shown and checked of a plan's stages, as structural types: `plan.Plan`, which has it all, stands above."""

from typing import Protocol


class StageShape(Protocol):
    """Which layers a stage has, and which ranks at which shares of the minibatches."""

    @property
    def layers(self) -> tuple[str, ...]: ...
    @property
    def ranks(self) -> tuple[int, ...]: ...
    @property
    def shares(self) -> tuple[int, ...]: ...


class StageCosts(Protocol):
    """What is expected of a stage: seconds of a minibatch, and bytes."""

    @property
    def compute_seconds(self) -> float: ...
    @property
    def transfer_seconds(self) -> float: ...
    @property
    def averaging_seconds(self) -> float: ...
    @property
    def memory_bytes(self) -> float: ...
