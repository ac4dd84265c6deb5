"""PipeDream's graph.txt: nodes with their costs, then edges; read and written without loss.

node := ID " -- " DESC " -- forward_compute_time=" ms ", backward_compute_time=" ms
        ", activation_size=" ACT ", parameter_size=" bytes [" -- stage_id=" int]
ACT  := bytes | "[" bytes ("; " bytes)* "]"
edge := TAB ID " -- " ID

Editors write tabs as blanks, and blanks as tabs: a line of two parts is an edge, however it is indented.
"""

import re
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from ..errors import InputError
from ..util.io.fields import number, shown
from ..util.io.files import read_text, write_atomic
from .graph import Layer, LayerGraph

_FIELD = re.compile(r", (?=[a-z_]+=)")  # not a comma within a list of sizes
FIELDS = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")


@dataclass(frozen=True, slots=True)
class GraphTextNode:
    id: str
    description: str
    forward_ms: float
    backward_ms: float
    activation_bytes: tuple[float, ...]  # one number, or those of an "[a; b]" list
    parameter_bytes: float
    stage_id: int | None = None

    def __str__(self) -> str:
        sizes = [_decimal(size) for size in self.activation_bytes]
        activation = sizes[0] if len(sizes) == 1 else f"[{'; '.join(sizes)}]"
        numbers = (_decimal(self.forward_ms), _decimal(self.backward_ms), activation, _decimal(self.parameter_bytes))
        facts = ", ".join(f"{name}={value}" for name, value in zip(FIELDS, numbers, strict=True))
        stage = "" if self.stage_id is None else f" -- stage_id={self.stage_id}"
        return f"{self.id} -- {self.description} -- {facts}{stage}"


@dataclass(frozen=True)
class GraphText:
    """Store the content of a graph.txt, PipeDream's file of layers and their costs.

    Attributes:
        nodes: Layers in file order, with costs (times in milliseconds, sizes in bytes).
        edges: Pairs of layer ids. The first layer feeds the second.

    Example:
        >>> text = profile.to_graph_text("cpu")
        >>> print(text.save("graph.txt").name, len(sp.GraphText.load("graph.txt").nodes))
        graph.txt 4

    See also:
        guides/import_from_other_systems, `Profile`
    """

    nodes: tuple[GraphTextNode, ...]
    edges: tuple[tuple[str, str], ...]

    @cached_property
    def graph(self) -> LayerGraph:
        """The layers in topological order."""
        layers = (Layer(node.id, node.description, node.parameter_bytes) for node in self.nodes)
        return LayerGraph.from_ids(layers, self.edges)

    def with_stages(self, stage_of: dict[str, int]) -> "GraphText":
        """Return a copy in which each node has its stage, as in PipeDream's gpus=N.txt."""
        return replace(self, nodes=tuple(replace(node, stage_id=stage_of.get(node.id)) for node in self.nodes))

    def __str__(self) -> str:
        lines = [*map(str, self.nodes), *(f"\t{source} -- {target}" for source, target in self.edges)]
        return "\n".join(lines) + "\n"

    def save(self, path: Path | str) -> Path:
        return write_atomic(path, str(self))

    @classmethod
    def load(cls, path: Path | str) -> "GraphText":
        """Read a graph.txt. Raises InputError with file and line if the text does not follow the grammar."""
        nodes: dict[str, GraphTextNode] = {}
        edges: list[tuple[str, str]] = []
        for place, line in enumerate(read_text(path, what="graph.txt").splitlines(), start=1):
            if not line.strip():
                continue
            try:
                parts = _parts(line)
                if line[0].isspace() and len(parts) < 3 or len(parts) == 2 and set(parts) <= nodes.keys():
                    edges.append(_edge(parts, nodes))
                else:
                    node = _node(parts)
                    if node.id in nodes:
                        raise InputError(
                            "graph_text.node_twice", f"node {node.id!r} is listed twice; give each node a unique id"
                        )
                    nodes[node.id] = node
            except InputError as error:
                raise error.within(f"{path}:{place}: ") from None
        try:
            text = cls(tuple(nodes.values()), tuple(edges))
            text.graph  # noqa: B018 - a cycle is found here, where the file can still be named
        except InputError as error:
            raise error.within(f"{path}: ") from None
        return text


def _parts(line: str) -> list[str]:
    parts = line.strip().split(" -- ")
    return parts if len(parts) > 1 else re.split(r"\s+--\s+", line.strip())


def _node(parts: list[str]) -> GraphTextNode:
    if len(parts) not in (3, 4):
        raise InputError(
            "graph_text.parts",
            f"{len(parts)} parts are separated by ' -- ', expected 'ID -- DESCRIPTION -- {FIELDS[0]}=…, …'",
        )
    given = {name: value for name, _, value in (item.partition("=") for item in _FIELD.split(parts[2]))}
    if missing := [name for name in FIELDS if name not in given]:
        raise InputError(
            "graph_text.field_missing", f"{parts[2]!r} lacks {', '.join(missing)}, expected {', '.join(FIELDS)}"
        )
    activation = given["activation_size"]
    listed = re.fullmatch(r"\[(.*)\]", activation)
    sizes = re.split(r"\s*[;,]\s*", listed[1].strip()) if listed else [activation]
    stage_id = None
    if len(parts) == 4:
        found = re.fullmatch(r"stage_id=(\d{1,9})", parts[3], flags=re.ASCII)
        if not found:
            raise InputError("graph_text.no_stage", f"{parts[3]!r} given, expected stage_id=<number>")
        stage_id = int(found[1])
    return GraphTextNode(
        parts[0],
        parts[1],
        _number("forward_compute_time", given["forward_compute_time"]),
        _number("backward_compute_time", given["backward_compute_time"]),
        tuple(_number("activation_size", size) for size in sizes),
        _number("parameter_size", given["parameter_size"]),
        stage_id,
    )


def _edge(ends: list[str], nodes: dict[str, GraphTextNode]) -> tuple[str, str]:
    if len(ends) != 2:
        raise InputError("graph_text.edge_malformed", f"edge {' -- '.join(ends)!r}: expected 'ID -- ID' after the tab")
    for id in ends:
        if id not in nodes:
            raise InputError(
                "graph_text.node_unknown",
                f"an edge names {id!r} before its definition; define nodes before their edges",
            )
    return ends[0], ends[1]


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise InputError("graph_text.not_a_number", f"{name}={shown(text)} is not a number") from None
    return number(value, name)


def _decimal(value: float) -> str:
    """Three decimals as PipeDream writes them, more where three would lose something."""
    short = f"{value:.3f}"
    return short if float(short) == value else repr(value)
