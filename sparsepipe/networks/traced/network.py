"""A network made of any torch module: its layers, what crosses between them, and how stages of it are built."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import nn

from ...errors import InputError
from ...values.graph import Layer as GraphLayer
from ...values.graph import LayerGraph
from .copies import module_at
from .inputs import ForwardInputs
from .operations import reads_pairs
from .rows import LayerProgram, Result, Sizes, TracedRow
from .subnetwork import TracedSubnetwork


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
