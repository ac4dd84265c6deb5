"""SDPipe's configuration: heturun's `nodes:` file as a Cluster, a device_list.py as the devices of several pipelines.

    nodes:                                        pipe_2_4 = [
      - host: w0                                      [rgpu("w0", 0), rgpu("w1", 0)],     stage 0 of both pipelines
        servers: 1       parameter servers            [rgpu("w0", 1), rgpu("w1", 1)],     stage 1
        workers: 8       GPUs, a rank each        ]
        chief: true                               my_device = pipe_2_4

A layout has a row for each stage, in which place k is the GPU of pipeline k. Rows that are on the same GPUs, one after
the other, are one stage here. Cuts are as many layers a stage as are given, the same in every pipeline.
Source: Miao et al., "SDPipe", VLDB 2023; its code, where DistConfig reads the one and scripts import the other.
"""

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...util.io.fields import MOST_DEVICES, complaint, flag, integer, read_yaml, shown
from ...util.io.files import expanded, read_text
from ...util.text.numbers import number_of
from ...values.cluster import Cluster, DeviceType, Link, Node
from ...values.graph import LayerGraph
from ...values.plan import Plan, Stage
from ...values.replication.base import Rule

CHOSEN = "my_device"  # the layout that SDPipe's scripts train with
_MOST_GPUS = 2**20  # of all layouts of a file together


@dataclass(frozen=True)
class HetuNode:
    """One entry of `nodes:`."""

    host: str
    servers: int = 0  # parameter servers
    workers: int = 0
    chief: bool = False  # where the scheduler runs


def load_nodes(path: Path | str) -> tuple[HetuNode, ...]:
    """Read the file that `heturun -c` takes. Raises InputError in one line that names the file and the entry."""
    path = expanded(path)
    document = read_yaml(path, what="heturun file")
    entries = document.get("nodes") if isinstance(document, Mapping) else None
    if not isinstance(entries, list) or not entries:
        raise InputError("sdpipe.no_nodes", f"{path}: expected a key nodes with a list of hosts, each with workers")
    try:
        nodes = tuple(_node(k, entry) for k, entry in enumerate(entries))
    except InputError as error:
        raise error.within(f"{path}: ") from None
    hosts = [node.host for node in nodes]
    if len(set(hosts)) < len(hosts):
        raise InputError(
            "hostfile.host_twice",
            f"{path}: host {shown(max(hosts, key=hosts.count))} is listed twice; merge its entries",
        )
    if (chiefs := sum(node.chief for node in nodes)) != 1:
        raise InputError(
            "sdpipe.several_chiefs", f"{path}: {number_of(chiefs, 'node')} have chief: true, expected only one"
        )
    if (count := sum(node.workers for node in nodes)) > MOST_DEVICES:
        raise InputError(
            "hostfile.too_many_devices",
            f"{path}: {count} workers, expected at most {MOST_DEVICES}: correct the device counts",
        )
    return nodes


def cluster_of(
    nodes: Sequence[HetuNode],
    *,
    device_type: str,
    memory_bytes: float = float("inf"),
    link: Link | None = None,
    network: Link | None = None,
) -> Cluster:
    """The hosts that have workers, as nodes of like devices: the file tells neither their type nor their links.

    Ranks are as mpirun numbers them: host by host.
    """
    kind = DeviceType(device_type, memory_bytes)
    link_used = link or Link()
    made = [Node(node.host, (kind,) * node.workers, link_used, address=node.host) for node in nodes if node.workers]
    if not made:
        raise InputError("sdpipe.no_workers", "no host has workers; set workers to at least 1 for one host")
    return Cluster(tuple(made), network or Link())


def _node(k: int, entry: object) -> HetuNode:
    where = f"nodes[{k}]"
    if not isinstance(entry, Mapping):
        raise InputError(
            "sdpipe.node_malformed", f"{where} is {shown(entry)}, expected host, servers, workers and chief"
        )
    if unknown := [key for key in entry if key not in HetuNode.__dataclass_fields__]:
        raise InputError(
            "sdpipe.key_unknown",
            f"{where} has the unknown key {shown(unknown[0])}, expected host, servers, workers and chief",
        )
    host = entry.get("host")
    if not isinstance(host, str) or not host:
        raise InputError("hostfile.host_malformed", f"{where} has host {shown(host)}, expected a name or an address")
    counts = {
        key: integer(entry.get(key, 0), f"{where} ({host}): {key}", most=MOST_DEVICES) for key in ("servers", "workers")
    }
    return HetuNode(host, chief=flag(entry.get("chief", False), f"{where} ({host}): chief"), **counts)


Gpu = tuple[str | None, int]  # (host, number on it); without a host: on the only one
Layout = tuple[tuple[Gpu, ...], ...]  # stage → its GPU in each pipeline


def load_layouts(path: Path | str, hosts: Sequence[str] = ()) -> dict[str, Layout]:
    """Read all layouts in SDPipe's device_list.py. The file is parsed, not executed.

    Lists of `gpu(i)` and `rgpu(host, i)`, also repeated or named ones, are read. Other statements are ignored.

    Args:
        path: The file.
        hosts: Hosts for names that are assigned by a function call, in order, as in `m0, m1 = get_machine_name()`.

    Returns:
        Name → layout: GPUs (host, number) of each pipeline. SDPipe trains with the layout "my_device".

    Raises:
        InputError: A malformed file. The message names the line.

    Example:
        >>> from sparsepipe.records.formats.sdpipe import load_layouts
        >>> rows = '[[rgpu("a", 0), rgpu("a", 1)], [rgpu("b", 0), rgpu("b", 1)]]'
        >>> _ = Path("device_list.py").write_text(f"my_device = {rows}")
        >>> sorted(load_layouts("device_list.py"))
        ['my_device']

    See also:
        guides/import_from_other_systems, `records.formats.sdpipe.pipelines_of`
    """
    text = read_text(path, what="device list")
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InputError(
            "sdpipe.not_python", f"{path}: not Python ({complaint(error)}), expected lists of rgpu(host, number)"
        ) from None
    names: dict[str, Any] = {}
    layouts: dict[str, Layout] = {}
    count = 0
    for statement in tree.body:
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            continue
        target = statement.targets[0]
        try:
            _assign(target, statement.value, names, hosts)
        except InputError as error:
            raise error.within(f"{path}:{statement.lineno}: ") from None
        name = target.id if isinstance(target, ast.Name) else ""
        if isinstance(value := names.get(name), list) and name not in layouts:
            layouts[name] = _layout(f"{path}:{statement.lineno}", name, value)
            count += len(value) * len(value[0])
            if count > _MOST_GPUS:
                raise InputError(
                    "sdpipe.too_many_devices",
                    f"{path}:{statement.lineno}: its lists have more than {_MOST_GPUS} GPUs; shorten them",
                )
    if not layouts:
        raise InputError(
            "sdpipe.no_layout",
            f"{path}: contains no layout, expected one such as my_device = [[rgpu('w0', 0)], [rgpu('w0', 1)]]",
        )
    return layouts


def _assign(target: ast.expr, value: ast.expr, names: dict[str, Any], hosts: Sequence[str]) -> None:
    unpacked = isinstance(target, ast.Tuple) and all(isinstance(one, ast.Name) for one in target.elts)
    if isinstance(target, ast.Tuple) and unpacked and isinstance(value, ast.Call):
        wanted = [one.id for one in target.elts if isinstance(one, ast.Name)]
        if len(hosts) < len(wanted):
            raise InputError(
                "sdpipe.host_count",
                f"the file computes {', '.join(wanted)} hosts by a function call, but {len(hosts)} are given; give "
                f"{len(wanted)}, in order",
            )
        names |= dict(zip(wanted, hosts, strict=False))
    elif isinstance(target, ast.Name) and isinstance(value, ast.List | ast.BinOp | ast.Name):
        names[target.id] = _value(value, names)


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """A list, a GPU, a string or a number that an expression says; nothing is run."""
    if isinstance(node, ast.Constant) and type(node.value) in (str, int):
        return node.value
    if isinstance(node, ast.Name):
        if node.id not in names:
            raise InputError("sdpipe.name_unknown", f"unknown name {shown(node.id)}, expected a name assigned above")
        return names[node.id]
    if isinstance(node, ast.List):
        return _bounded([_value(argument, names) for argument in node.elts])
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        left, right = _value(node.left, names), _value(node.right, names)
        if isinstance(left, list) and type(right) is int and right >= 1 and len(left) * right <= MOST_DEVICES:
            return _bounded(left * right)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        arguments = [_value(argument, names) for argument in node.args]
        kinds = [type(argument) for argument in arguments]
        if (node.func.id, kinds) == ("gpu", [int]):
            return None, arguments[0]
        if (node.func.id, kinds) == ("rgpu", [str, int]):
            return arguments[0], arguments[1]
    raise InputError(
        "sdpipe.not_lists", f"{shown(ast.unparse(node))}: expected lists of gpu(number) and rgpu(host, number)"
    )


def _bounded(values: list[Any]) -> list[Any]:
    """The list, if it has no more GPUs than a cluster can have. A list within lists is the same one over and over."""
    count, left = 0, [values]
    while left:
        inner = left.pop()
        count += len(inner)
        if count > MOST_DEVICES:
            raise InputError("sdpipe.too_many_devices", f"a list has more than {MOST_DEVICES} GPUs; shorten it")
        left += [inner_value for inner_value in inner if isinstance(inner_value, list)]
    return values


def _layout(where: str, name: str, rows: list[Any]) -> Layout:
    if not rows or not all(isinstance(row, list) and row for row in rows):
        raise InputError(
            "sdpipe.layout_malformed",
            f"{where}: {name} is not a list of lists, expected a list per stage with one GPU per pipeline",
        )
    for row in rows:
        if unknown := [entry for entry in row if not isinstance(entry, tuple)]:
            raise InputError(
                "sdpipe.device_malformed",
                f"{where}: {name} contains {shown(unknown[0])}, expected gpu(number) or rgpu(host, number)",
            )
    lengths = {len(row) for row in rows}
    if len(lengths) > 1:
        raise InputError(
            "sdpipe.stages_differ",
            f"{where}: {name} has stages with {min(lengths)} and {number_of(max(lengths), 'GPU')}, expected one GPU "
            "per pipeline in each stage",
        )
    return tuple(map(tuple, rows))


def pipelines_of(
    layout: Layout,
    cluster: Cluster,
    graph: LayerGraph,
    replication: Rule,
    *,
    layers: Sequence[int] | None = None,
    schedule: str = "1f1b",
) -> Plan:
    """Convert a layout of SDPipe to a plan of pipeline replicas.

    Args:
        layout: GPUs of each pipeline, one row per stage.
        cluster: The devices.
        graph: The layers of the network.
        replication: Synchronization scheme.
        layers: Number of layers of each stage, in topological order. Default: nearly equal numbers.
        schedule: Name of the schedule.

    Returns:
        The plan.

    Raises:
        InputError: A GPU that is not in the cluster, or numbers of layers with a wrong sum.

    Example:
        >>> from sparsepipe.records.formats.sdpipe import load_layouts, pipelines_of
        >>> from sparsepipe.values.replication import parse_rule
        >>> rows = '[[rgpu("a", 0), rgpu("a", 1)], [rgpu("b", 0), rgpu("b", 1)]]'
        >>> _ = Path("device_list.py").write_text(f"my_device = {rows}")
        >>> nodes = tuple(sp.Node(name, (sp.DeviceType("gpu"),) * 2) for name in ("a", "b"))
        >>> layout = load_layouts("device_list.py")["my_device"]
        >>> len(pipelines_of(layout, sp.Cluster(nodes), profile.graph, parse_rule("ad-psgd")).pipelines)
        2

    See also:
        guides/import_from_other_systems, guides/pipeline_replicas
    """
    ids = [layer.id for k, layer in enumerate(graph.layers) if k not in graph.input_layers]
    counts = tuple(layers) if layers is not None else _even(len(ids), len(layout))
    if len(counts) != len(layout) or sum(counts) != len(ids) or min(counts) < 1:
        raise InputError(
            "sdpipe.layer_counts",
            f"layers {list(counts)} given for {number_of(len(layout), 'stage')}, expected {len(layout)} counts of at "
            f"least 1 that add up to {len(ids)}",
        )
    bounds = [sum(counts[:k]) for k in range(len(counts) + 1)]
    plans = tuple(_plan(layout, k, cluster, ids, bounds, schedule) for k in range(len(layout[0])))
    return Plan.together(plans, replication)


def _plan(layout: Layout, k: int, cluster: Cluster, ids: Sequence[str], bounds: Sequence[int], schedule: str) -> Plan:
    ranks = [_rank(row[k], cluster) for row in layout]
    stages, first = [], 0
    for rank, rows in groupby(ranks):
        last = first + len(list(rows))
        device = cluster.devices[rank]
        stage_ids = tuple(ids[bounds[first] : bounds[last]])
        stages.append(Stage(stage_ids, (rank,), (), (device.type.name,), (device.node.name,)))
        first = last
    return Plan(tuple(stages), schedule, planner="imported")


def _rank(gpu: Gpu, cluster: Cluster) -> int:
    host, number = gpu
    if host is None and len(cluster.nodes) > 1:
        raise InputError(
            "sdpipe.host_needed",
            f"gpu({number}) names no host, but the cluster has {len(cluster.nodes)}; use rgpu(host, number)",
        )
    first = 0
    for node in cluster.nodes:
        if host in (None, node.name):
            if 0 <= number < len(node.device_types):
                return first + number
            raise InputError(
                "sdpipe.device_unknown", f"GPU {number} of {node.name!r}: expected 0 to {len(node.device_types) - 1}"
            )
        first += len(node.device_types)
    names = ", ".join(node.name for node in cluster.nodes[:8])
    raise InputError("sdpipe.host_unknown", f"host {shown(host)} is not in the cluster, which has {names}")


def _even(num_layers: int, num_stages: int) -> tuple[int, ...]:
    return tuple(num_layers * (k + 1) // num_stages - num_layers * k // num_stages for k in range(num_stages))
