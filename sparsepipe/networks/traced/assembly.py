"""Puts the layers of both modes together as rows of a network: who has which parameter, how values are named."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Any

from torch import fx, nn

from ...values.graph import Layer as GraphLayer
from ...values.graph import LayerGraph
from .copies import module_at
from .grouping import Grouping, Layer
from .recording import CannotBeTraced, Recording, names_of
from .rows import LayerPort, LayerProgram, Result, TracedRow, is_rectified
from .values import Structure, features

OUTPUT = ""  # reads what the forward returns, as a layer reads its inputs


@dataclass
class Assembled:
    """The rows of a network and what is known of their values."""

    rows: list[TracedRow]
    results: dict[bool, Result]
    differentiable: frozenset[str]
    rectified: frozenset[str]
    constants: dict[str, Any]


@dataclass
class Assembly:
    """One network in the making. `groupings`: by whether it trains."""

    module: nn.Module
    groupings: Mapping[bool, Grouping]
    inputs: tuple[str, ...]
    constants: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.names = names_of(self.module)
        both = (self.module.named_parameters(remove_duplicate=False), self.module.named_buffers(remove_duplicate=False))
        self.tensors = {name: tensor for named in both for name, tensor in named}
        self.canonical = {name: self.names[id(tensor)] for name, tensor in self.tensors.items()}
        self.saved = frozenset(self.module.state_dict(keep_vars=True))
        self.trained = {self.names[id(parameter)] for parameter in self.module.parameters() if parameter.requires_grad}
        self._share_ids()
        self.layers = {
            training: {layer.id: layer for layer in grouping.layers} for training, grouping in self.groupings.items()
        }
        self.written = frozenset[str]().union(*(grouping.written for grouping in self.groupings.values()))
        self.order = self._order()
        self._check_written()
        self.readers = self._readers()
        self.state_rows = self._state_rows()
        self.value_names: dict[tuple[bool, fx.Node], tuple[str, ...]] = {}
        for training, grouping in self.groupings.items():
            for name, node in grouping.recording.inputs.items():
                self.value_names[training, node] = (name,)
        for layer_id in self.order:
            self._name_values(layer_id)

    def assembled(self) -> Assembled:
        rows = [row for id in self.order for row in (*self._rows_before(id), self._row(id))]
        rows += [*self._rows_before(OUTPUT), *self._constant_rows()]
        rows += self._unread(rows)
        results = {training: self._result(training, each.recording) for training, each in self.groupings.items()}
        return Assembled(rows, results, self._differentiable(), self._rectified(), self.constants)

    # Order and ownership

    def _share_ids(self) -> None:
        """Give a layer of both modes one id. Which layers are the same goes by their order, not by a count of uses.

        An operation of one mode alone would shift the count of every later one, and make a cycle of both orders.
        """
        if len(self.groupings) < 2:
            return
        trained, evaluated = self.groupings[True].layers, self.groupings[False].layers
        partners = _aligned(trained, evaluated)
        for i, layer in enumerate(trained):
            if i in partners:
                continue
            before = max(
                (j for other, j in partners.items() if other < i and trained[other].name == layer.name), default=-1
            )
            after = min(
                (j for other, j in partners.items() if other > i and trained[other].name == layer.name),
                default=len(evaluated),
            )
            for j in range(before + 1, after):
                if evaluated[j].name == layer.name and self._is_acyclic({**partners, i: j}):
                    partners[i] = j
                    break
        taken = {layer.id for layer in trained}
        ids = {j: trained[i].id for i, j in partners.items()}
        for j, layer in enumerate(evaluated):
            if j in ids:
                layer.id = ids[j]
                continue
            number = 1
            while layer.id in taken:
                number += 1
                layer.id = f"{layer.name}-{number}"
            taken.add(layer.id)

    def _is_acyclic(self, partners: Mapping[int, int]) -> bool:
        """Return whether the layers of both modes have an order if these pairs of them are one layer each."""
        first = {j: i for i, j in partners.items()}
        sources: dict[tuple[bool, int], set[tuple[bool, int]]] = {}
        for training, grouping in self.groupings.items():
            place = {
                node: (True, i) if training else (True, first[i]) if i in first else (False, i)
                for i, layer in enumerate(grouping.layers)
                for node in layer.nodes
            }
            for layer in grouping.layers:
                here = sources.setdefault(place[layer.nodes[0]], set())
                here.update(place[node] for node in layer.reads if node in place)
        try:
            TopologicalSorter(sources).prepare()
        except CycleError:
            return False
        return True

    def _check_written(self) -> None:
        """Raise CannotBeTraced for a buffer that the forward changes and several layers hold, or that it returns."""
        written = {
            name for each in self.groupings.values() for node in each.recording.nodes for name in node.meta["buffers"]
        }
        for name in sorted(written):
            holders = [
                id
                for id in self.order
                if name in self._read_tensors(id)
                or name.startswith(tuple(f"{path}." if path else "" for path in self._modules(id)))
            ]
            if len(holders) > 1:
                raise CannotBeTraced(
                    "module.order_of_reading",
                    f"{name} is changed, but training and evaluation read it in different orders",
                )
            if name in self._returned():
                raise CannotBeTraced("module.returns_changed", f"the forward returns {name}, which it changes")

    def _returned(self) -> dict[str, None]:
        """Return the names of the parameters and buffers that a forward returns as they are."""
        leaves = [leaf for each in self.groupings.values() for leaf in each.recording.outputs]
        nodes = [leaf for leaf in leaves if isinstance(leaf, fx.Node) and leaf.op == "get_attr"]
        return dict.fromkeys(str(node.target) for node in nodes if node.meta["registered"])

    def _order(self) -> list[str]:
        """Return the ids of both modes' layers in an order that suits both."""
        first, *others = self.layers.values()
        ids = list(first)
        for previous, id in ((before, id) for each in others for before, id in zip([None, *each], each, strict=False)):
            if id not in first:
                ids.insert(ids.index(previous) + 1 if previous is not None else 0, id)
        edges = []
        for training, grouping in self.groupings.items():
            home = {node: layer.id for layer in grouping.layers for node in layer.nodes}
            for layer in self.layers[training].values():
                edges += [(home[node], layer.id) for node in layer.reads if node in home]
        if not ids:
            raise CannotBeTraced("module.does_nothing", "the module computes nothing")
        graph = LayerGraph.from_ids([GraphLayer(id) for id in ids], edges)
        return [layer.id for layer in graph.layers]

    def _modules(self, id: str) -> list[str]:
        both = [path for layers in self.layers.values() if id in layers for path in layers[id].modules]
        return list(dict.fromkeys(both))

    def _read_tensors(self, id: str) -> list[str]:
        """Return the names of registered tensors that functions of a layer read."""
        return list(
            dict.fromkeys(
                str(node.target)
                for layers in self.layers.values()
                if id in layers
                for node in layers[id].reads
                if node.op == "get_attr" and node.meta["registered"]
            )
        )

    def _held(self, path: str) -> dict[str, str]:
        """Return local name → name in the root of the parameters of a module."""
        module = module_at(self.module, path)
        return {name: self.names[id(each)] for name, each in module.named_parameters(remove_duplicate=False)}

    def _readers(self) -> dict[str, list[str]]:
        """Return the layers that read each parameter or buffer."""
        found: dict[str, list[str]] = {}
        for id in self.order:
            keys = [key for path in self._modules(id) for key in self._held(path).values()]
            for key in dict.fromkeys([*keys, *self._read_tensors(id)]):  # in one order in every process
                found.setdefault(key, []).append(id)
        for key in self._returned():
            found.setdefault(key, []).append(OUTPUT)
        return found

    def _state_rows(self) -> dict[str, str]:
        """Return the tensors that are layers of their own → the kind of layer."""
        found: dict[str, str] = {}
        for id in self.order:
            for key in self._read_tensors(id):
                if not self._is_own(key, id) and (key in self.trained or key in self.saved):
                    found[key] = "parameter" if key in self.trained else "buffer"
        for key in self._returned():
            found[key] = "parameter" if key in self.trained else "buffer"
        for key, ids in self.readers.items():
            if key in self.trained and len(ids) > 1:
                found[key] = "parameter"
        return found

    def _is_own(self, key: str, id: str) -> bool:
        """Return whether a tensor is in a layer, not a layer itself: no other reads it, and the layer is its module's.

        Raises CannotBeTraced if several layers have a buffer that a forward changes: each would change its own.
        """
        if key in self.written and key not in self.trained:
            if self.readers[key] != [id]:
                raise CannotBeTraced("module.changes_shared", f"the forward changes {key}, which several layers read")
            return True
        return self.readers[key] == [id] and key.startswith(f"{id}.")

    # Values

    def _name_values(self, id: str) -> None:
        """Name what a layer gives: by its id, and a number where it gives several; in the order that they are made."""
        given = [
            (training, node, sum(_structure(node).crosses()))
            for training, layers in self.layers.items()
            for node in (layers[id].gives if id in layers else ())
        ]
        most = max((sum(count for mode, _, count in given if mode is training) for training in self.layers), default=0)
        names = [id] if most == 1 and id not in self.inputs else [f"{id}:{i}" for i in range(most)]
        used = dict.fromkeys(self.layers, 0)
        for training, node, count in given:
            self.value_names[training, node] = tuple(names[used[training] : used[training] + count])
            used[training] += count

    def _port(self, training: bool, node: fx.Node) -> LayerPort:
        names = (str(node.target),) if node.op == "get_attr" else self.value_names[training, node]
        return LayerPort(node, _structure(node), names)

    def _program(self, training: bool, layer: Layer) -> LayerProgram:
        reads, state, constants = [], {}, {}
        for node in layer.reads:
            key = str(node.target)
            if node.op != "get_attr" or key in self.state_rows:
                reads.append(self._port(training, node))
            elif node.meta["registered"] and self._is_own(key, layer.id):
                state[node] = key
            else:
                name = key if node.meta["registered"] else f"{training}.{key}"
                self.constants[name] = node.meta["value"]
                constants[node] = name
        borrowed = {}
        for path in layer.modules:
            lent = {
                name: key for name, key in self._held(path).items() if key in self.state_rows and key in self.trained
            }
            if lent:
                borrowed[path] = lent
        gives = [self._port(training, node) for node in layer.gives]
        draws = any(node.meta["draws"] for node in layer.nodes)
        return LayerProgram(tuple(layer.steps), tuple(reads), tuple(gives), state, constants, borrowed, draws)

    # Rows

    def _row(self, id: str) -> TracedRow:
        programs = {
            training: self._program(training, layers[id]) for training, layers in self.layers.items() if id in layers
        }
        layer = next(layers[id] for layers in self.layers.values() if id in layers)
        modules = self._modules(id)
        keys = self._keys(id, modules)
        owned = {self.canonical[key]: self.tensors[key] for key in keys if self.canonical[key] in self.trained}
        return TracedRow(
            id,
            layer.kind,
            self._description(layer, modules),
            sum(each.numel() for each in owned.values()),
            sum(each.numel() * each.element_size() for each in owned.values()),
            tuple(keys),
            tuple(modules),
            programs,
        )

    def _keys(self, id: str, modules: list[str]) -> list[str]:
        inside = tuple(f"{path}." if path else "" for path in modules)
        keys = [key for key in self.tensors if key.startswith(inside)] if inside else []
        keys += [key for key in self._read_tensors(id) if self._is_own(key, id)]
        lent = {key for key in keys if self.canonical[key] in self.state_rows and self.canonical[key] in self.trained}
        return [key for key in dict.fromkeys(keys) if key not in lent]

    def _rows_before(self, id: str) -> list[TracedRow]:
        return [self._state_row(key) for key in self.state_rows if self.readers[key][0] == id]

    def _constant_rows(self) -> list[TracedRow]:
        """Return a row for each tensor that is the same in every minibatch and that a forward returns as it is."""
        programs: dict[str, dict[bool, LayerProgram]] = {}
        for training, grouping in self.groupings.items():
            for node in dict.fromkeys(leaf for leaf in grouping.recording.outputs if isinstance(leaf, fx.Node)):
                if node.op == "get_attr" and not node.meta["registered"]:
                    name = f"{training}.{node.target}"
                    self.constants[name] = node.meta["value"]
                    program = LayerProgram(gives=(self._port(training, node),), constants={node: name})
                    programs.setdefault(str(node.target), {})[training] = program
        return [
            TracedRow(id, "constant", "constant", 0, 0, (), (), programs_of_row)
            for id, programs_of_row in programs.items()
        ]

    def _state_row(self, key: str) -> TracedRow:
        tensor, kind = self.tensors[key], self.state_rows[key]
        count = tensor.numel() if kind == "parameter" else 0
        node = fx.Graph().create_node("get_attr", "value")
        structure = Structure.of(tensor)
        assert structure is not None
        programs = {training: LayerProgram(gives=(LayerPort(node, structure, (key,)),)) for training in (True, False)}
        text = f"{kind}({', '.join(map(str, tensor.shape))})"
        return TracedRow(key, kind, text, count, count * tensor.element_size(), (key,), (), programs)

    def _unread(self, rows: list[TracedRow]) -> list[TracedRow]:
        """Return rows for what no layer has, so that nothing of the module's state is lost."""
        held = {self.canonical[key] for row in rows for key in row.keys}
        left = {key for key in self.saved if key in self.tensors and self.canonical[key] not in held}
        found: dict[str, list[str]] = {}
        for key in (key for key in self.tensors if key in left):
            found.setdefault(self._unread_home(key, held), []).append(key)
        made = []
        for id, keys in found.items():
            tensors = {self.canonical[key]: self.tensors[key] for key in keys if self.canonical[key] in self.trained}
            count = sum(each.numel() for each in tensors.values())
            size = sum(each.numel() * each.element_size() for each in tensors.values())
            kind = "parameter" if id in keys else type(module_at(self.module, id)).__name__
            modules = () if id in keys else (id,)
            made.append(TracedRow(id, kind, f"{kind}, which no layer reads", count, size, tuple(keys), modules, {}))
        return made

    def _unread_home(self, key: str, held: set[str]) -> str:
        """Return the outermost module that has this name and nothing that is read; the name itself if there is none."""
        parts = key.split(".")
        for i in range(1, len(parts)):
            path = ".".join(parts[:i])
            if not any(self.canonical[each] in held for each in self.tensors if each.startswith(f"{path}.")):
                return path
        return key

    def _description(self, layer: Layer, modules: list[str]) -> str:
        if len(modules) == 1 and layer.path == modules[0]:
            return " ".join(repr(module_at(self.module, modules[0])).split())[:200]
        return f"{layer.kind}({', '.join(modules)})" if modules else layer.kind

    # What is known of values

    def _result(self, training: bool, recording: Recording) -> Result:
        leaves = [self._port(training, leaf) if isinstance(leaf, fx.Node) else leaf for leaf in recording.outputs]
        return Result(recording.output_spec, tuple(leaves))

    def _values(self, training: bool) -> list[tuple[fx.Node, tuple[str, ...]]]:
        given = {node for layer in self.groupings[training].layers for node in layer.gives}
        return [(node, names) for (mode, node), names in self.value_names.items() if mode is training and node in given]

    def _differentiable(self) -> frozenset[str]:
        """Trained parameters, and values that the example needed gradients for: as it trained, if it gave them."""
        known = {key: kind == "parameter" and key in self.trained for key, kind in self.state_rows.items()}
        for training in self.groupings:
            for node, names in self._values(training):
                for name, each in zip(names, _structure(node).split(node.meta["value"]), strict=True):
                    known.setdefault(name, features(each).requires_grad)
        return frozenset(name for name, wanted in known.items() if wanted)

    def _rectified(self) -> frozenset[str]:
        found: dict[bool, set[str]] = {}
        others: set[str] = set()
        for training, grouping in self.groupings.items():
            known: set[fx.Node] = set()
            for node in grouping.recording.nodes:
                if is_rectified(node, known, self.module):
                    known.add(node)
            for node, names in self._values(training):
                (found.setdefault(training, set()) if node in known else others).update(names)
        return frozenset(set().union(*found.values()) - others) if found else frozenset()


def _aligned(trained: Sequence[Layer], evaluated: Sequence[Layer]) -> dict[int, int]:
    """Pair layers of one name in the order of both: those that call modules, then functions between them.

    Returns place in training → place in evaluation.
    """

    def paired(first: Iterable[int], second: Iterable[int]) -> list[tuple[int, int]]:
        a, b = list(first), list(second)
        blocks = SequenceMatcher(
            None, [trained[i].name for i in a], [evaluated[j].name for j in b], autojunk=False
        ).get_matching_blocks()
        return [(a[i + k], b[j + k]) for i, j, size in blocks for k in range(size)]

    calls = [[i for i, layer in enumerate(layers) if layer.modules] for layers in (trained, evaluated)]
    fixed = paired(*calls)
    bounds = [(-1, -1), *fixed, (len(trained), len(evaluated))]
    between = [pair for (i, j), (k, m) in pairwise(bounds) for pair in paired(range(i + 1, k), range(j + 1, m))]
    return dict([*fixed, *between])


def _structure(node: fx.Node) -> Structure:
    found = Structure.of(node.meta["value"])
    assert found is not None, node
    return found
