"""A rank's part of the scenes that a stage's ranks share: what enters and leaves its layers, its part of the loss."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ...engines import Engine
from ...errors import InputError
from ...networks import Network
from ...networks.base import AnyNetwork
from ...networks.losses import Outcome
from ...util.text.numbers import number_of
from ...values.plan import Plan
from ..replication.base import StatisticsGroup
from ..transport.packet import Packet

_OF_WHOLE_SCENES = frozenset({"serialised_attention"})  # looks farther than a halo


def check_shares_scenes(network: AnyNetwork, engine: Engine, plan: Plan, *, own_loss: bool) -> None:
    """Raise InputError unless the ranks of a stage can share scenes: of this network, by this engine and plan.

    `own_loss`: the loss is a function of the user's own.
    """
    if not engine.shares_scenes:
        raise InputError(
            "sharding.engine",
            f"engine {engine.name!r} keeps each scene on one device: choose engine 'native', or replicas",
            engine=engine.name,
        )
    if len(plan.stages) > 1 and not engine.divides_packets:
        raise InputError(
            "sharding.stages",
            f"engine {engine.name!r} shares scenes in plans of one stage: choose engine 'native' for "
            f"{number_of(len(plan.stages), 'stage')}",
            engine=engine.name,
        )
    if not isinstance(network, Network):
        raise InputError(
            "sharding.network",
            f"{network.name} is a torch module, whose layers need whole scenes: choose a network of "
            "`sparsepipe models`, or replicas",
        )
    for row in network.rows:
        if row.kind in _OF_WHOLE_SCENES:
            raise InputError(
                "sharding.layer",
                f"layer {row.id!r} ({row.kind}) needs whole scenes: use replicas instead of sharding",
                layer=row.id,
            )
    grids: set[str] = set()
    for row in network.rows:
        if row.kind == "dense_grid" or (row.kind != "flatten" and grids.intersection(row.inputs)):
            grids.add(row.id)
    before: set[str] = set()
    for stage in plan.stages:
        for name in sorted(grids.intersection(network.alive(before))):
            raise InputError(
                "sharding.grid",
                f"dense grid {name!r} crosses a stage boundary: keep the layers from dense_grid to flatten in one "
                "stage",
                layer=name,
            )
        before.update(stage.layers)
    if own_loss:
        raise InputError("sharding.loss", "a loss function of your own needs whole scenes: use replicas")


@dataclass(frozen=True, eq=False)
class SceneParts:
    """The part of each scene that one of a stage's ranks computes."""

    group: StatisticsGroup
    shares: Sequence[int]  # of the work, by part
    step: Sequence[int]  # the coarsest tensor stride of the network's sparse layers
    engine: Any  # one that shares scenes

    def part(self, tensor: Any) -> Any:
        """Return this rank's part of a minibatch. All ranks come here with the whole of it."""
        return self.engine.part(tensor, self.group, shares=self.shares, step=self.step)

    def rows(self, tensors: Iterable[Any]) -> tuple[Any, ...]:
        """Return which rows of all parts this one has, of each tensor; None of one that every part has whole."""
        return tuple(map(self.engine.part_rows, tensors))

    def divide(self, packet: Packet, device: torch.device, *, like: Any = None) -> Any:
        """Return how a packet's coordinate sets are divided; all ranks have the same packet. `like`: as a part is."""
        sets = [own._replace(coordinates=own.coordinates.to(device)) for own in packet.coordinate_sets]
        return self.engine.divide(sets, self.group, shares=self.shares, step=self.step, like=like)

    def select(self, gradient: Tensor, rows: Any) -> Tensor:
        """Return this part of the gradient of an output of all parts; `rows`: the part's, None if each part has all.

        Gradients of parts add up: so the first part has the whole of what each part has.
        """
        if rows is not None:
            mine: Tensor = rows.select(gradient)
            return mine
        return gradient if self.group.part == 0 else torch.zeros_like(gradient)

    def gather(
        self, gradients: Sequence[Tensor | None], leaves: Sequence[Tensor], rows: Sequence[Any]
    ) -> list[Tensor | None]:
        """Return the gradients of all parts, of this part's. None if no part has one. All ranks come here."""
        if not leaves:
            return []
        counts = torch.tensor([gradient is not None for gradient in gradients], dtype=torch.float32)
        counts = counts.to(leaves[0].device)
        self.group.sum(counts)
        gathered: list[Tensor | None] = []
        for gradient, leaf, own, count in zip(gradients, leaves, rows, counts.tolist(), strict=True):
            if not count:
                gathered.append(None)
                continue
            mine = torch.zeros_like(leaf) if gradient is None else gradient
            if own is None:
                mine = mine.clone()
                self.group.sum(mine)
            gathered.append(mine if own is None else own.gather(mine))
        return gathered

    def loss(
        self,
        output: Any,
        labels: Any,
        judge: Callable[..., tuple[Tensor, Outcome]],
        items: Callable[[Any], tuple[float, ...]] | None,
        *,
        detailed: bool,
        weights: Sequence[float] | None,
    ) -> tuple[Tensor, Outcome]:
        """Return this rank's part of the loss, and what to report; the parts add up to the loss.

        `detailed`: what to report of this part alone, since a validation adds up over ranks. Else of all parts.
        """
        first, rows = self.group.part == 0, self.engine.rows_of_part(output)
        if rows is None:  # dense rows, which every rank has
            loss, outcome = judge(output, labels, detailed=detailed, weights=weights)
            if detailed and not first:
                nothing = None if outcome.details is None else torch.zeros_like(outcome.details)
                outcome = replace(outcome, samples=0, counted=0, correct=0, details=nothing)
            return loss / self.group.num_parts, outcome
        assert items is not None, "the loss of voxels counts them"
        mine = labels[rows.cpu()]
        parts = [own / all if all else 0.0 for own, all in zip(items(mine), items(labels), strict=True)]
        of_step = weights or (1.0,) * len(parts)
        scaled = tuple(part * weight for part, weight in zip(parts, of_step, strict=True))
        loss, outcome = judge(self.engine.features(output), mine, detailed=detailed, weights=scaled)
        if detailed:
            return loss, outcome if first else replace(outcome, samples=0)
        sums = torch.tensor([(outcome.loss or 0.0) * parts[0], outcome.counted, outcome.correct], dtype=torch.float64)
        sums = sums.to(loss.device)
        self.group.sum(sums)
        mean, counted, correct = sums.tolist()
        return loss, Outcome(mean if counted else None, outcome.samples, int(counted), int(correct))

    def whole(self, output: Any) -> Tensor:
        """Return the rows of all voxels of an output, [N, C], to the first of the ranks; none to the others."""
        rows, own = self.engine.rows_of_part(output), self.engine.features(output).detach()
        sizes = [int(size) for size in self.group.gather(torch.tensor([len(rows)], device=rows.device))]
        received = sizes if self.group.part == 0 else [0] * len(sizes)
        sent = [len(rows), *[0] * (len(sizes) - 1)]
        values = self.group.exchange(own, sent, received)
        order = self.group.exchange(rows.unsqueeze(1), sent, received).flatten()
        return torch.empty_like(values).index_copy_(0, order, values)
