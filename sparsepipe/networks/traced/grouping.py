"""Makes layers of a recording's operations: who does what, what is read from others, what is given to them."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from torch import Tensor, fx, nn

from .copies import module_at
from .recording import Recording, example_of
from .rows import holds_tensors, is_cheap, is_small, is_view, name_of, of_numbers
from .statements import Call, module_called, paths_called
from .values import Structure, is_of_spconv


@dataclass
class Layer:
    """Operations that go together in one mode of a network."""

    id: str
    kind: str
    nodes: list[fx.Node]  # its own, in order
    steps: list[fx.Node] = field(default_factory=list)  # those and what it does again, in order
    reads: list[fx.Node] = field(default_factory=list)  # others' values, inputs and parameters
    gives: list[fx.Node] = field(default_factory=list)
    path: str = ""
    name: str = ""  # the id without the number that it has in its mode

    @property
    def modules(self) -> list[str]:
        """Paths of the modules that it calls, each once."""
        return list(dict.fromkeys(path for node in self.nodes for path in paths_called(node)))


class Grouping:
    """The layers of one recording."""

    def __init__(
        self,
        recording: Recording,
        root: nn.Module,
        *,
        whole: Callable[[fx.Node], str],
        written: Collection[str] = (),
        trained: Collection[str] = (),
    ) -> None:
        """`whole`: the path of the module that a node is one layer with, "" for none: an exported graph's.

        `written`: buffers that a forward changes, which one layer alone may hold. `trained`: names of parameters.
        """
        self.recording, self.root, self.whole = recording, root, whole
        self.trained, self.written = frozenset(trained), frozenset(written)
        self.position = {node: i for i, node in enumerate(recording.nodes)}
        self.leaves = {node for node in recording.outputs if isinstance(node, fx.Node)}
        self.origin: dict[fx.Node, int] = {}  # the last layer that a value comes from
        self.late: set[fx.Node] = set()  # done by each layer that reads it
        self.home: dict[fx.Node, int] = {}
        self.groups: list[list[fx.Node]] = []
        self.checks: list[fx.Node] = []  # of inputs: they go with the next layer
        self._place()
        self._merge_written(written)
        self._merge_what_cannot_cross()
        self.layers = self._named()

    # Which layer does what

    def _place(self) -> None:
        for node in self.recording.nodes:
            if node.op in ("placeholder", "get_attr"):
                continue
            sources = node.all_input_nodes
            origin = max((self.origin[source] for source in sources if source in self.origin), default=None)
            path = self.whole(node)
            if path:
                self._join_or_open(node, path)
            elif origin is None and self._is_floating(node) and node not in self.leaves:
                self.late.add(node)
            elif origin is None and self._is_check(node):
                self.checks.append(node)
            elif origin is not None and is_small(node) and not self._effect_of_inputs(node):
                self.origin[node] = origin
                if self._is_late(node):
                    self.late.add(node)
                else:
                    self._own(node, origin)
            else:
                self._open(node)

    def _open(self, node: fx.Node) -> None:
        self.groups.append([])
        for each in (*self.checks, node):
            self._own(each, len(self.groups) - 1)
        self.checks.clear()

    def _own(self, node: fx.Node, group: int) -> None:
        self.groups[group].append(node)
        self.home[node] = self.origin[node] = group

    def _join_or_open(self, node: fx.Node, path: str) -> None:
        """Join the layer before, if it is the same module's."""
        if self.groups and self.whole(self.groups[-1][0]) == path:
            self._own(node, len(self.groups) - 1)
        else:
            self._open(node)

    def _is_check(self, node: fx.Node) -> bool:
        """Return whether a node passes nothing on and may raise."""
        value = node.meta["value"]
        return name_of(node) == "same_answer" or (
            isinstance(node.target, Call) and isinstance(value, dict | tuple) and not value
        )

    def _is_floating(self, node: fx.Node) -> bool:
        """Return whether it reads but inputs, parameters and constants, and little work."""
        if self._reads_written(node):
            return False
        reads_parameter = any(source.op == "get_attr" for source in node.all_input_nodes)
        sparse = any(not isinstance(s.meta["value"], Tensor) for s in node.all_input_nodes if s.op == "placeholder")
        if node.meta["written"] or name_of(node) == "same_answer" or isinstance(node.target, Call):
            return False
        return is_small(node) if reads_parameter or sparse else is_cheap(node)

    def _reads_written(self, node: fx.Node) -> bool:
        """Return whether it reads a buffer that a forward changes: one layer alone has it, and does what reads it
        once.
        """
        return any(source.op == "get_attr" and source.target in self.written for source in node.all_input_nodes)

    def _effect_of_inputs(self, node: fx.Node) -> bool:
        return bool(node.meta["written"])

    def _is_late(self, node: fx.Node) -> bool:
        """Return whether a view is left to its readers: they read what it is a view of anyway, or it cannot cross
        itself.
        """
        if node in self.leaves or not is_view(node) or self._reads_written(node):
            return False
        if name_of(node) == "getattr" and is_of_spconv(example_of(node.args[0])):
            return True  # its features and indices would cross twice
        if self._is_of_state(node):
            return True
        if not of_numbers(node) and Structure.of(node.meta["value"]) is not None:
            bases = [source for source in node.all_input_nodes if holds_tensors(source.meta["value"])]
            return len(bases) == 1 and (
                bases[0] in self.leaves or any(self._is_anchor(user) for user in bases[0].users)
            )
        return Structure.of(node.meta["value"]) is None

    def _is_of_state(self, node: fx.Node) -> bool:
        """Return whether a view shows parameters or buffers, and sizes alone come from layers."""
        sources = [source for source in node.all_input_nodes if not of_numbers(source)]
        return bool(sources) and all(
            source.op == "get_attr" or (source in self.late and self._is_of_state(source)) for source in sources
        )

    def _is_anchor(self, node: fx.Node) -> bool:
        return module_called(node) is not None or (node.op != "output" and not is_small(node))

    # What may not be in two layers

    def _merge(self, first: int, last: int) -> None:
        """Make one layer of those from `first` to `last`."""
        merged = [node for group in self.groups[first : last + 1] for node in group]
        merged.sort(key=self.position.__getitem__)
        self.groups[first : last + 1] = [merged]
        shift = last - first
        for where in (self.home, self.origin):
            for node, group in where.items():
                where[node] = group if group < first else first if group <= last else group - shift

    def _merge_written(self, written: Collection[str]) -> None:
        for name in sorted(written):
            holders = [i for i, group in enumerate(self.groups) if any(self._holds(node, name) for node in group)]
            if len(holders) > 1:
                self._merge(holders[0], holders[-1])

    def _holds(self, node: fx.Node, name: str) -> bool:
        if any(name.startswith(f"{path}.") for path in paths_called(node)) or name in node.meta["buffers"]:
            return True
        return module_called(node) is None and any(
            source.op == "get_attr" and source.target == name for source in node.all_input_nodes
        )

    def _merge_what_cannot_cross(self) -> None:
        while True:
            for i in range(len(self.groups)):
                for node in self._needs(i)[1]:
                    if node in self.home and Structure.of(node.meta["value"]) is None:
                        self._merge(self.home[node], i)
                        break
                else:
                    continue
                break
            else:
                return

    # What is read and given

    def _needs(self, group: int) -> tuple[list[fx.Node], list[fx.Node]]:
        """Return the steps of a layer, and the values that it reads."""
        own, steps, reads = set(self.groups[group]), set(self.groups[group]), set()
        numbers: list[fx.Node] = []

        def read(node: fx.Node) -> None:
            for source in node.all_input_nodes:
                if source in steps:
                    continue
                if source in self.late:
                    steps.add(source)
                    read(source)
                elif of_numbers(source) and source in self.home:
                    numbers.append(source)
                else:
                    reads.add(source)

        for node in self.groups[group]:  # not `own`: a set has another order in another process
            read(node)
        while numbers:
            number = numbers.pop()
            chain = self._again(number, reads | own)
            if chain is None:
                reads.add(number)
            else:
                for node in sorted(chain - steps, key=self.position.__getitem__):
                    steps.add(node)
                    read(node)
        return sorted(steps, key=self.position.__getitem__), sorted(reads, key=self.position.__getitem__)

    def _again(self, number: fx.Node, there: set[fx.Node]) -> set[fx.Node] | None:
        """Return the operations that make a number of tensors that are there anyway; None if some are not."""
        chain: set[fx.Node] = set()
        waiting = [number]
        while waiting:
            node = waiting.pop()
            if node in chain:
                continue
            chain.add(node)
            for source in node.all_input_nodes:
                if of_numbers(source) and source.op not in ("placeholder", "get_attr"):
                    waiting.append(source)
                elif source not in there and source.op != "placeholder" and source not in self.late:
                    return None
        return chain

    def _named(self) -> list[Layer]:
        layers, counts = [], dict[str, int]()
        for i, group in enumerate(self.groups):
            path, kind, name = self._identity(group)
            counts[name] = counts.get(name, 0) + 1
            id = name if counts[name] == 1 else f"{name}-{counts[name]}"
            steps, reads = self._needs(i)
            layers.append(Layer(id, kind, group, steps, reads, path=path, name=name))
        wanted = {node for layer in layers for node in layer.reads} | self.leaves
        for layer in layers:
            layer.gives = [node for node in layer.nodes if node in wanted]
        return layers

    def _identity(self, group: list[fx.Node]) -> tuple[str, str, str]:
        """Return path, kind and name of a layer."""
        functions = [node for node in group if module_called(node) is None and not self.whole(node)]
        read = {str(s.target) for node in functions for s in node.all_input_nodes if s.op == "get_attr"}
        if kept := sorted(read & self.written):
            return "", "buffer's update", kept[0]  # by a name that it has in both modes
        anchors = [node for node in group if self._is_anchor(node) or self.whole(node)] or group[:1]
        paths = [str(self.whole(n) or module_called(n) or n.meta["path"]) for n in anchors]
        places = list(dict.fromkeys(paths))
        if len(places) == 1 and (self.whole(anchors[0]) or module_called(anchors[0]) is not None):
            kind = type(module_at(self.root, places[0])).__name__
            return places[0], kind, places[0] or kind
        if len(anchors) > 1:
            shared = _common(paths)
            modules = list(dict.fromkeys(filter(None, map(module_called, anchors))))
            if not shared and len(modules) == 1:
                shared = modules[0]
            if shared:
                return shared, type(module_at(self.root, shared)).__name__, shared
            return "", type(self.root).__name__, f"{places[0] or name_of(anchors[0])}"
        name = name_of(anchors[0])
        path = anchors[0].meta["path"]
        return path, name, f"{path}.{name}" if path else name


def _common(paths: list[str]) -> str:
    parts = [path.split(".") for path in paths]
    shared = []
    for column in zip(*parts, strict=False):
        if len(set(column)) > 1:
            break
        shared.append(column[0])
    return ".".join(shared)
