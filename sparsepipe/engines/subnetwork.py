"""The layers of one pipeline stage as a module, from the tensors alive before the stage to those alive after it."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ..errors import InputError
from ..networks.base import PARTS_APART, LayerRow, run_layers
from ..networks.batch_norm import Group, GroupBatchNorm, TooFewVoxels
from ..networks.freezing import RUNNING_MEAN, check_trains, in_epoch, matching
from ..networks.rows import INPUT, Network, Row
from ..util.derived import derived_seed
from .base import Engine

SEEDED_KINDS = frozenset(
    {"dropout", "drop_path", "serialised_attention"}
)  # their modules take `seed=`: what they draw depends on the minibatch


class StageModule(Protocol):
    """Some layers of any network as a module: what a stage runs. Called as torch calls modules."""

    engine: Engine

    @property
    def table(self) -> Sequence[LayerRow]:
        """Its layers in the order in which they run."""
        ...

    @property
    def layer_ids(self) -> tuple[str, ...]: ...

    def enter(self, inputs: Any) -> dict[str, Any]:
        """Return the values that a minibatch brings, by name, of what `Engine.tensor` made of it."""
        ...

    def result(self, tensors: Mapping[str, Any]) -> Any:
        """Return the network's output, as its forward gives it, of the values that it is made of."""
        ...

    def run_layer(self, row: Any, tensors: Mapping[str, Any], *, minibatch: int) -> dict[str, Any]: ...


def build(network: Any, engine: Engine, layer_ids: Collection[str] | None = None, *, seed: int = 0) -> Any:
    """Return some layers of any network, by default all, as a `StageModule` that is an nn.Module.

    Of a table's rows the engine makes the layers; a traced network has its own. Raises InputError for unknown layers.
    """
    if isinstance(network, Network):
        return Subnetwork(network, engine, layer_ids, seed=seed)
    return network.build(layer_ids, engine=engine, seed=seed)


class Subnetwork(nn.Module):
    """Some layers of a network, run in row order by one engine.

    Modules are registered under their layer ids, so a state_dict is keyed by layer ("conv1_1.kernel") and loads under
    any partition. Parameters depend on (seed, layer id), dropout masks on (seed, layer id, minibatch), never on the
    cut.
    Raises InputError for a layer the network does not have.
    """

    def __init__(
        self, network: Network, engine: Engine, layer_ids: Collection[str] | None = None, *, seed: int = 0
    ) -> None:
        super().__init__()
        wanted = {row.id for row in network.rows} if layer_ids is None else set(layer_ids)
        if unknown := wanted - {row.id for row in network.rows}:
            raise InputError(
                "plan.layer_unknown",
                f"{network.name} has no layer {min(unknown)!r}: the plan belongs to another network; give a plan of "
                "this one",
                name=network.name,
            )
        self.network, self.engine, self.seed = network, engine, seed
        self.table = tuple(row for row in network.rows if row.id in wanted)
        for row in self.table:
            module = engine.layer(row)
            initialise(module, row, seed)
            self.add_module(row.id, module)
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(name not in network.frozen)
        self.train()

    @property
    def layer_ids(self) -> tuple[str, ...]:
        return tuple(row.id for row in self.table)

    def enter(self, inputs: Any) -> dict[str, Any]:
        return {INPUT: inputs}

    def result(self, tensors: Mapping[str, Any]) -> Any:
        return tensors[self.network.outputs[0]]

    def train(self, mode: bool = True) -> "Subnetwork":
        """Set the mode; a batch norm whose statistics are frozen stays as in evaluation."""
        super().train(mode)
        for name, _ in self.named_buffers():
            if name in self.network.frozen and name.endswith(f".{RUNNING_MEAN}"):
                self.get_submodule(name.removesuffix(f".{RUNNING_MEAN}")).training = False
        return self

    def synchronise(self, group: Group | None) -> int:
        """Share the statistics of batch norms in training with the other processes of `group`; None ends it.

        Returns how many layers do. From then on every process of the group must run the same passes in the same order.
        Gradients of their weights, like all others, are those of the own rows, to be averaged over the group.
        """
        norms = [module for module in self.modules() if isinstance(module, GroupBatchNorm)]
        for norm in norms:
            norm.group = group
        return len(norms)

    def forward(
        self, alive: Mapping[str, Any], *, minibatch: int, keep: Collection[str] | None = None
    ) -> dict[str, Any]:
        """Run the layers on the tensors `alive` at the boundary before ("input" names the network's input).

        What it returns `run_layers` (networks/base.py) says.
        """
        return run_layers(self, alive, minibatch=minibatch, keep=keep)

    def run_layer(self, row: Row, tensors: Mapping[str, Any], *, minibatch: int) -> dict[str, Any]:
        """Run one layer on its inputs among `tensors`; return its output by its name.

        Raises InputError if one of them is missing, or has one voxel alone left for a batch norm in training.
        """
        inputs = [_find(tensors, name, row.id) for name in row.inputs]
        module = self.get_submodule(row.id)
        if row.kind in SEEDED_KINDS:
            return {row.id: module(*inputs, seed=derived_seed(self.seed, row.seed_name, minibatch))}
        try:
            return {row.id: module(*inputs)}
        except TooFewVoxels as error:
            raise error.within(f"layer {row.id!r} in minibatch {minibatch % PARTS_APART}: ") from None


def _find(tensors: Mapping[str, Any], name: str, layer_id: str) -> Any:
    if name not in tensors:
        source = "the network's input" if name == INPUT else f"the output of {name!r}"
        raise InputError(
            "layer.input_missing",
            f"layer {layer_id!r} needs {source}, but only {', '.join(tensors) or 'nothing'} is available",
            layer=layer_id,
        )
    return tensors[name]


def frozen_network(network: Network, engine: Engine, patterns: Sequence[str]) -> Network:
    """Return a table of rows whose tensors that match a pattern are not trained in any epoch.

    Raises InputError for a pattern that matches no tensor, and if none is left to train in the first epoch.
    """
    modules = {row.id: engine.layer(row) for row in network.rows}
    trained = {id: [f"{id}.{name}" for name, _ in module.named_parameters()] for id, module in modules.items()}
    names = [f"{id}.{name}" for id, module in modules.items() for name in module.state_dict()]
    at_first = matching(in_epoch(patterns, 0), names, setting="freeze")
    frozen = matching(in_epoch(patterns, None), names, setting="freeze")
    rows = frozenset(id for id, parameters in trained.items() if parameters and frozen.issuperset(parameters))
    check_trains(at_first, [name for parameters in trained.values() for name in parameters])
    return replace(network, frozen=frozen, frozen_rows=rows)


def initialise(module: nn.Module, row: Row, seed: int) -> None:
    """Draw the parameters of one layer, as the networks that ours are compared with do.

    Convolutions: normal with variance 2 / fan-out (He et al., "Delving Deep into Rectifiers"), as MinkowskiEngine's
    examples and torchvision's VGG; the biases of sparse ones keep MinkowskiEngine's default, uniform within
    1 / sqrt(kernel volume x input channels), those of dense ones are 0. Transposed convolutions, which the examples
    leave alone, keep its default too: kernel and bias uniform within 1 / sqrt(kernel volume x output channels). Linear
    layers, those of attention too: torch's default, uniform within 1 / sqrt(input channels), in VGG also: torchvision's
    normal of deviation 0.01 is meant for its widths alone, in a narrow network the signal would die out. Norms: scale
    1, shift 0.
    """
    generator = torch.Generator().manual_seed(derived_seed(seed, row.id))
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            bound = _bound(row, name)
            if bound:
                parameter.uniform_(-bound, bound, generator=generator)
            elif name in ("kernel", "weight") and row.kind.endswith("convolution"):
                parameter.normal_(0, math.sqrt(2 / _fan_out(parameter, row)), generator=generator)
            else:
                parameter.fill_(float(name.endswith("weight")))  # the scale of a norm; shifts, biases


def _bound(row: Row, name: str) -> float:
    """Return the bound of a parameter that is drawn uniformly; 0 for one that is not."""
    if row.kind in ("linear", "serialised_attention"):
        return 1 / math.sqrt(row.args["channels" if row.kind == "serialised_attention" else "in_channels"])
    if row.kind == "transposed_convolution":
        return 1 / math.sqrt(row.kernel_volume * row.args["out_channels"])
    if row.kind == "convolution" and name == "bias":
        return 1 / math.sqrt(row.kernel_volume * row.args["in_channels"])
    return 0.0


def _fan_out(kernel: Tensor, row: Row) -> int:
    """Return the kernel volume times the output channels.

    Of a kernel of one matrix, [C_in, C_out], it is C_in: MinkowskiEngine's helper takes it for the weight of a linear
    layer, [C_out, C_in]. A mistake, but its networks start so, and ours are to start like them.
    """
    return int(row.args["in_channels"] if kernel.dim() == 2 else kernel.numel() // row.args["in_channels"])
