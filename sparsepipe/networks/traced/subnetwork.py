"""Some layers of a traced network as a module, from the values alive before a stage to those alive after it."""

import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn

from ...errors import InputError
from ...util.derived import SHARED_GENERATORS, derived_seed
from ...util.host.limits import is_out_of_memory
from ...values.graph import Layer as GraphLayer
from ...values.graph import LayerGraph
from ..base import PARTS_APART, run_layers
from ..batch_norm import GroupBatchNorm
from .building import without_checkpoints
from .copies import Tree, lent_keys, module_at, tensor_at
from .inputs import ForwardInputs
from .recording import filled, own_draws, run
from .rows import LayerProgram, Result, Sizes, TracedRow, reads_pairs
from .values import features, is_of_spconv, is_tensor

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, GroupBatchNorm)

# What layers raise for tensors that they cannot take, such as batch norm for a single sample.
_OF_MODULES = (ValueError, TypeError, IndexError, KeyError, AttributeError, AssertionError, RuntimeError)


class LayerFailed(InputError):
    """A layer of the user's raised on tensors that it cannot take."""


class TracedSubnetwork(nn.Module):
    """Offers what `engines.Subnetwork` does, for a traced network; see there.

    Parameters and buffers have the names that they have in the user's module. They are copies: the module that was
    traced stays as it is. What a layer draws depends on (seed, layer id, minibatch), never on the cut.
    """

    def __init__(self, network: Any, rows: Sequence[TracedRow], *, engine: Any, seed: int) -> None:
        """`network`: the TracedNetwork that the rows are of."""
        super().__init__()
        self.network, self.engine, self.seed = network, engine, seed
        self.table = tuple(rows)
        self.draws_by_layer = True  # else from torch's generator as it stands, as the whole module would
        tree = Tree(self, network.module)
        programs = [program for row in rows for program in row.programs.values()]
        lent = dict.fromkeys(key for program in programs for key in sorted(lent_keys(program.borrowed)))
        tree.lend([tensor_at(network.module, key) for key in lent])
        # In an order that every process finds alike: what replicas average goes by it.
        paths = sorted({path for row in rows for path in row.modules}, key=lambda path: (path.count("."), path))
        for path in paths:
            if not any(not above or path.startswith(f"{above}.") for above in paths if above != path):
                tree.add_module(path)
        for key in lent:
            tree.remove(key)
        inside = tuple(f"{path}." if path else "" for path in paths)
        for row in rows:
            for key in row.keys:
                if not key.startswith(inside) or row.kind in ("parameter", "buffer"):
                    tree.add_tensor(key)
        self._whole = [tree.whole]  # in a list: it holds the same parts as the stage, not parts of its own
        self._constants = {name: network.constants[name] for program in programs for name in program.constants.values()}
        self.train()

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute of the stage itself: parts of the user's module may have the same name."""
        self.__dict__[name] = value

    @property
    def layer_ids(self) -> tuple[str, ...]:
        return tuple(row.id for row in self.table)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "TracedSubnetwork":
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._constants = {
            name: fn(each.detach().clone()) if isinstance(each, Tensor) else each
            for name, each in self._constants.items()
        }
        return self

    def train(self, mode: bool = True) -> "TracedSubnetwork":
        """Set the mode, as the module's own train() and eval() did: it may keep parts of it from training."""
        super().train(mode)
        own = self.network.modes[mode]
        for path, part in self.named_modules():
            if path:
                part.training = own.get(path, mode)
        if self._whole[0] is not None:
            self._whole[0].training = own.get("", mode)
        return self

    def synchronise(self, group: Any) -> int:
        """Share the statistics of batch norms in training with the other processes of `group`; None ends it.

        Returns how many layers do. See `engines.Subnetwork.synchronise`.
        """
        return synchronise(self, group)

    def enter(self, inputs: Any) -> dict[str, Any]:
        """Return the tensors of a minibatch by the names of the network's inputs.

        `inputs` is made as the example of `trace` was, without what is not needed here.
        Raises InputError for other sizes, where the network was made for those of the example alone.
        """
        tensors = self.network.arguments.bind(inputs)
        self.network.sizes.check(tensors)
        return tensors

    def result(self, tensors: Mapping[str, Any]) -> Any:
        """Return what the module itself returns, made of the network's outputs."""
        return self.network.results[self.training].join(tensors)

    def forward(
        self, alive: Mapping[str, Any], *, minibatch: int, keep: Collection[str] | None = None
    ) -> dict[str, Any]:
        """Run the layers on the values at the boundary before; see `run_layers` (networks/base.py).

        Raises InputError for a phase in which the module's own forward raises.
        """
        if self.training not in self.network.phases:
            phase = "training" if self.training else "evaluation"
            raise InputError(
                "module.no_layers",
                f"{self.network.name}: in {phase} its forward raises an error on the example, so it cannot be split "
                "into layers",
            )
        return run_layers(self, alive, minibatch=minibatch, keep=keep)

    def run_layer(self, row: TracedRow, tensors: Mapping[str, Any], *, minibatch: int) -> dict[str, Any]:
        """Run one layer on its inputs among `tensors`; return its outputs by name.

        Raises InputError if an input is missing.
        """
        program = row.programs.get(self.training)
        if program is None:
            return {}
        if row.kind in ("parameter", "buffer"):
            own = tensor_at(self, row.keys[0])
            # What leaves is no leaf of autograd; without a graph a view would still say that it wants a gradient.
            given = own.view_as(own) if torch.is_grad_enabled() else own.detach()
            return {row.outputs[0]: given} if row.outputs else {}
        for name in program.inputs:
            if name not in tensors:
                there = ", ".join(tensors) or "nothing"
                raise InputError(
                    "layer.input_missing",
                    f"layer {row.id!r} needs {name!r}, but only {there} is available",
                    layer=row.id,
                )
        with ExitStack() as stack:
            if program.draws and self.draws_by_layer:
                stack.enter_context(_seeded(derived_seed(self.seed, row.id, minibatch), tensors, program))
            if any(path in self.network.opaque_paths for path in row.modules):
                stack.enter_context(without_checkpoints())
            stack.enter_context(self._lent(program, tensors))
            try:
                return self._run(program, tensors, self.network.pairs_read[row.id])
            except Exception as error:
                # A rank that is lost in a batch norm, or memory that is used up, is no fault of the layer.
                if type(error) not in _OF_MODULES or is_out_of_memory(error):
                    raise
                what = f"{type(error).__name__} in minibatch {minibatch % PARTS_APART}: {' '.join(str(error).split())}"
                raise LayerFailed(
                    "layer.raises",
                    f"layer {row.id!r} of {self.network.name} raises {what}",
                    layer=row.id,
                    name=self.network.name,
                ) from error

    def _run(
        self, program: LayerProgram, tensors: Mapping[str, Any], pairs_read: frozenset[str] | None
    ) -> dict[str, Any]:
        values: dict[fx.Node, Any] = {node: tensor_at(self, key) for node, key in program.state.items()}
        values.update({node: self._constants[name] for node, name in program.constants.items()})
        for port in program.reads:
            values[port.node] = port.structure.join(iter([tensors[name] for name in port.names]))
        device = _device(tensors, program)

        def value(given: Any) -> Any:
            """Return the value of a node, with this process's device instead of the traced one."""
            return values[given] if isinstance(given, fx.Node) else given if device is None else device

        ambient = torch.is_grad_enabled()
        for node in program.steps:
            args, kwargs = filled(node.args, value), filled(node.kwargs, value)
            with torch.set_grad_enabled(ambient and not node.meta["no_grad"]):
                values[node] = run(node, args, kwargs, self._module)
        given = {
            name: tensor
            for port in program.gives
            for name, tensor in zip(port.names, port.structure.split(values[port.node]), strict=True)
        }
        for tensor in given.values():
            if pairs_read is not None and is_of_spconv(tensor):  # no stage is sent what no layer reads
                entries = vars(tensor)["indice_dict"]
                vars(tensor)["indice_dict"] = {key: each for key, each in entries.items() if key in pairs_read}
        return given

    def _module(self, path: str) -> nn.Module:
        if not path and self._whole[0] is not None:
            return self._whole[0]
        return module_at(self, path)

    @contextmanager
    def _lent(self, program: LayerProgram, tensors: Mapping[str, Any]) -> Iterator[None]:
        """Have modules hold the parameters that come to them as values, while the block runs."""
        places = []
        for path, own in program.borrowed.items():
            for name, value in own.items():
                holder, _, last = name.rpartition(".")
                places.append((module_at(self._module(path), holder)._parameters, last, tensors[value]))
        before = [parameters.get(name) for parameters, name, _ in places]
        try:
            for parameters, name, tensor in places:
                parameters[name] = tensor
            yield
        finally:
            for (parameters, name, _), tensor in zip(places, before, strict=True):
                parameters[name] = tensor


def _device(tensors: Mapping[str, Any], program: LayerProgram) -> torch.device | None:
    """Return where a layer's inputs are; None for one without."""
    return next((features(tensors[name]).device for name in program.inputs if is_tensor(tensors[name])), None)


@contextmanager
def _seeded(seed: int, tensors: Mapping[str, Any], program: LayerProgram) -> Iterator[None]:
    """Let the block draw from a seed of its own; torch's generators are as before afterwards."""
    devices = {features(tensors[name]).device for name in program.inputs}
    numbers = sorted({device.index or 0 for device in devices if device.type == "cuda"})
    with SHARED_GENERATORS, own_draws(devices=numbers):
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.default_generator.manual_seed(seed)
        for number in numbers:
            with torch.cuda.device(number):
                torch.cuda.manual_seed(seed)
        yield


def synchronise(stage: nn.Module, group: Any) -> int:
    """Give `group` to every batch norm of a stage that has weights; return how many there are.

    Each becomes a GroupBatchNorm, which is torch's own if there is no group.
    """
    norms = [module for module in stage.modules() if type(module) in _NORMS and module.weight is not None]
    for norm in norms:
        norm.__class__ = GroupBatchNorm
        norm.group = group
    return len(norms)


# A network made of any torch module: its layers, what crosses between them, and how stages of it are built
@dataclass(frozen=True, eq=False)
class TracedNetwork:
    """A torch module as layers that can be profiled, planned for, cut and run: see `trace`.

    It keeps the module, which it does not change: stages are built of copies of its parts.
    """

    name: str
    module: nn.Module
    arguments: ForwardInputs
    rows: tuple[TracedRow, ...]
    results: Mapping[bool, Result]
    direct_inputs: tuple[str, ...]
    differentiable: frozenset[str]
    rectified: frozenset[str]
    opaque: tuple[str, ...]  # what could not be looked into, in a line each
    opaque_paths: frozenset[str]
    modes: Mapping[bool, Mapping[str, bool]]  # training? → path of a module → its own flag
    sizes: Sizes
    constants: Mapping[str, Any] = field(default_factory=dict)
    phases: tuple[bool, ...] = (True, False)  # whether it can train, whether it can evaluate
    num_classes: int = 0
    in_channels: int = 0
    coarsest_stride: None = None

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        return tuple(self.arguments.tensors)

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for result in self.results.values() for name in result.names))

    @cached_property
    def layer_of(self) -> dict[str, str]:
        """Each name in the module's state_dict → the layer that has it."""
        return {key: row.id for row in reversed(self.rows) for key in row.keys}

    @cached_property
    def pairs_read(self) -> Mapping[str, frozenset[str] | None]:
        """Each layer → the keys of spconv's `indice_dict` that layers behind it read.

        None: it may be any, as one of those layers runs code that was not looked into.
        """
        keys: frozenset[str] | None = frozenset()
        keys_behind = {}
        for row in reversed(self.rows):
            keys_behind[row.id] = keys
            parts = [part for path in row.modules for part in module_at(self.module, path).modules()]
            reads_any = any(reads_pairs(node) for program in row.programs.values() for node in program.steps)
            if keys is None or reads_any or not self.opaque_paths.isdisjoint(row.modules):
                keys = None
            else:
                keys |= {vars(part)["indice_key"] for part in parts if _reads_pairs_of_a_key(part)}
        return keys_behind

    def alive(self, before: Collection[str], *, training: bool = True) -> tuple[str, ...]:
        """Return the values that cross the boundary behind the layers `before`, in the layers' order."""
        before = set(before)
        given = [name for name in self.inputs if name not in self.direct_inputs]
        needed = set(self.results[training].names) if training in self.results else set()
        for row in self.rows:
            program = row.programs.get(training, LayerProgram())
            if row.id in before:
                given += program.outputs
            else:
                needed.update(program.inputs)
        return tuple(name for name in dict.fromkeys(given) if name in needed)

    def graph(self) -> LayerGraph:
        """Return the layer graph: one layer a row, an edge from each layer that gives what another reads."""
        position = {name: i for i, row in enumerate(self.rows) for name in row.outputs}
        edges = {
            (position[name], j)
            for j, row in enumerate(self.rows)
            for name in row.inputs
            if name in position and position[name] != j
        }
        layers = tuple(GraphLayer(row.id, row.description, row.parameter_bytes) for row in self.rows)
        return LayerGraph(layers, tuple(sorted(edges)))

    def build(self, layer_ids: Collection[str] | None = None, *, engine: Any, seed: int = 0) -> TracedSubnetwork:
        """Return some of the layers as a module, with copies of the parameters and buffers that they have.

        Raises InputError for a layer that the network does not have.
        """
        ids = {row.id for row in self.rows}
        wanted = ids if layer_ids is None else set(layer_ids)
        if unknown := wanted - ids:
            raise InputError(
                "plan.layer_unknown",
                f"{self.name} has no layer {min(unknown)!r}: the plan belongs to another network; give a plan of "
                "this one",
            )
        return TracedSubnetwork(self, [row for row in self.rows if row.id in wanted], engine=engine, seed=seed)


def _reads_pairs_of_a_key(part: nn.Module) -> bool:
    """Return whether a module reads an entry of `indice_dict`: spconv's SubM and inverse layers, others make theirs."""
    makes = vars(part).get("subm") is False and not vars(part).get("inverse", False)
    return vars(part).get("indice_key") is not None and not makes
