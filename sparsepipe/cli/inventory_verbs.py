"""Commands about data sets, networks and clusters."""

import argparse
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .. import data
from ..data.examples import is_examples
from ..data.manifests import manifests_folder
from ..errors import InputError, one_line
from ..launching.probes import check_cluster, measure_cluster
from ..launching.probes.check import HostFacts
from ..networks import MODULE_NETWORKS
from ..networks.base import Entry, catalogue, table_parameters
from ..records.formats.clusters import load_cluster, load_cluster_file
from ..util.host.ssh import is_loopback
from ..util.io.fields import json_object
from ..util.io.files import write_atomic
from ..util.io.quantities import meant
from ..util.text.numbers import as_measured, counted, duration, number_of, sizes_spread, spread_text
from ..values.cluster import Cluster, Link, Node
from ..values.profile import Profile
from ..views.values import link_text
from .options import given, known_cluster
from .output import Answer, Progress, progress_line, table, warn
from .without_effect import of_other_data

_MOST_CLASSES = 30  # named in the text
_VOXEL_SIZE = 0.05  # where nobody says
_LEAST_SAMPLES, _MOST_SAMPLES, _READ_SECONDS = 8, 1000, 3.0  # whose voxels `data info` counts, and for how long


def data_list(options: argparse.Namespace) -> Answer:
    damaged: list[str] = []
    rows: list[dict[str, object]] = [
        {
            "name": entry.name,
            "title": entry.title,
            "licence": entry.licence,
            "homepage": entry.homepage,
            "kind": entry.kind,
            "splits": dict(entry.splits),
            "fetchable": entry.verifiable,
        }
        for entry in [
            *data.list_datasets(damaged=damaged),
            *data.list_datasets(manifests_folder().parent / "traces", damaged=damaged),
        ]
    ]
    rows += map(_shipped_profile, sorted((manifests_folder().parent / "profiles").glob("*.json")))
    for text in damaged:
        progress_line(f"warning: left out: {text}")
    columns = ("name", "kind", "title", "licence", "fetchable")
    return Answer(rows, table([columns, *([str(row[c]) for c in columns] for row in rows)]))


def _shipped_profile(path: Path) -> dict[str, object]:
    """The row of a profile that is part of the package: nothing is to be fetched."""
    profile = Profile.load(path)
    made = profile.origin.get("published") or f"{profile.origin.get('model')}, measured"
    title = f"{made}, on {', '.join(profile.device_types)}: --profile {path.stem}"
    row: dict[str, object] = {"name": path.stem, "title": title, "licence": "", "homepage": "", "kind": "profile"}
    return row | {"splits": {}, "fetchable": False}


def data_fetch(options: argparse.Namespace) -> Answer:
    def tell(name: str, done: int, total: int | None) -> None:
        progress.tell(f"{name}: {done / 1e6:.1f}{f' of {total / 1e6:.1f}' if total else ''} MB")

    with Progress() as progress:
        folder = data.fetch(options.name, options.out, progress=tell)
    return Answer({"name": options.name, "folder": str(folder)}, f"{options.name} is in {folder}")


def data_make(options: argparse.Namespace) -> Answer:
    folder = data.make_shapes(options.out, num_train=options.train, num_test=options.test, seed=options.seed)
    found = data.info(folder)
    return Answer(found, f"{found['samples']} synthetic shapes of {len(found['classes'])} families are in {folder}")


def data_info(options: argparse.Namespace) -> Answer:
    found = data.info(options.path, **_options_of_examples(options))
    lines = [f"{found['name']}{' (synthetic)' if found['synthetic'] else ''}: {number_of(found['samples'], 'sample')}"]
    lines += [_counted("splits", found["splits"])]
    if "facts" in found:
        lines += _of_examples(found)
    else:
        lines += _of_clouds(found)
        voxel_size = options.voxel_size or _VOXEL_SIZE
        sizes = _sample_sizes(options.path, next(iter(found["splits"])), options.voxel_size)
        if options.voxel_size is not None:
            found |= {"voxel_size": voxel_size, "sample_voxels": sizes}
        if sizes:
            lines.append(f"{spread_text(sizes, 'voxels')} (voxel size {voxel_size:g}, {sizes['samples']} samples read)")
    lines += [f"missing: no sample of class {one['class']} in split {one['split']}" for one in found["missing"]]
    return Answer(found, "\n".join([*map(one_line, lines), *_left_out(found.get("left_out", ()))]))


def _sample_sizes(path: str, split: str, asked: float | None) -> dict[str, Any] | None:
    """Count the voxels of samples of a split, for as many as can be read in a few seconds.

    None where one is faulty, unless a voxel size is `asked`: then that raises InputError.
    """
    began, counts = time.perf_counter(), list[int]()
    try:
        samples = data.load(path, split=split, voxel_size=asked or _VOXEL_SIZE, cache="off")
        step = max(1, len(samples) // _MOST_SAMPLES)
        for index in range(0, len(samples), step):
            counts.append(len(samples.sample(index)))
            if len(counts) >= _LEAST_SAMPLES and time.perf_counter() - began > _READ_SECONDS:
                break
    except InputError:
        if asked is not None:
            raise
        return None  # `data check` says what is wrong
    return sizes_spread(counts)


def _of_clouds(found: Mapping[str, Any]) -> list[str]:
    return [_counted("formats", found["formats"]), f"classes: {', '.join(found['classes'])}"]


def _of_examples(found: Mapping[str, Any]) -> list[str]:
    lines, names = [], found["classes"]
    if names:
        more = f", … ({len(names)})" if len(names) > _MOST_CLASSES else ""
        lines += [f"classes: {', '.join(names[:_MOST_CLASSES])}{more}"]
    if found["size_unit"] != "samples":
        lines += [
            f"{found['size_unit']} of a sample, {split}: {size['least']} to {size['most']}, median {size['median']:g}"
            for split, size in found["sizes"].items()
        ]
    return lines + [f"{name}: {value}" for name, value in {**found["facts"], **found["example"]}.items()]


def _counted(what: str, counts: Mapping[str, int]) -> str:
    return f"{what}: {', '.join(f'{name} {count}' for name, count in counts.items())}"


def _options_of_examples(options: argparse.Namespace) -> dict[str, Any]:
    given = json_object(options.data_args, "--data-args")
    if given and not is_examples(options.path):
        raise InputError("option.of_examples", f"{options.path}: --data-args does not apply to point clouds; omit it")
    return given


def data_check(options: argparse.Namespace) -> Answer:
    asked = _options_of_examples(options)
    settings = given(options, ("task", "features", "num_points", "voxel_size", "engine"))
    warn(of_other_data(settings, options.path))
    if not is_examples(options.path):
        asked = {"voxel_size": _VOXEL_SIZE} | settings
    with Progress() as progress:
        report = data.check(options.path, progress=progress.tell, **asked)
    document = report.to_json()
    text = "\n".join([str(report), *_left_out(document.get("left_out", ()))])
    return Answer(document, text, _stopping(options, report.faults))


def _stopping(options: argparse.Namespace, faults: Sequence[Any]) -> str:
    count = len(faults)
    return f"{options.path}: {number_of(count, 'fault')} would prevent a run" if count else ""


def _many(files: int) -> str:
    return f" ({files} files)" if files > 1 else ""


def _left_out(entries: Sequence[Mapping[str, Any]], most: int = 30) -> list[str]:
    """A line for each thing that a data set's folder holds beside its samples."""
    lines = [one_line(f"left out: {one['path']}{_many(one['files'])}: {one['why']}") for one in entries[:most]]
    return [*lines, *([f"left out: {len(entries) - most} more, see --json"] if len(entries) > most else [])]


_OWN = (
    ("package.module:function", "a function that Python finds as it finds modules"),
    ("path/net.py:function", "a function of a file, wherever it lies"),
)
_HOW = (
    "it receives --model-args JSON and the data properties named like its parameters (num_classes, in_channels, "
    "image_size, vocabulary_size, ...), and returns a torch.nn.Module"
)


def models(options: argparse.Namespace) -> Answer:
    found = catalogue(options.text)
    if not found:
        near = f"; did you mean {one}?" if (one := meant(options.text, [row.name for row in catalogue("")])) else ""
        raise InputError(
            "model.none_found", f"no model name contains {options.text!r}; `sparsepipe models` lists all models{near}"
        )
    rows = [{**asdict(entry), "parameters": _parameters(entry, options)} for entry in found]
    columns = ("name", "kind", "takes", "parameters", "summary")
    lines = [columns, *([_cell(row[column]) for column in columns] for row in rows)]
    own = {name: f"{what}; {_HOW}" for name, what in _OWN}
    text = "\n".join([table(lines), "", "your own:", *(f"  {name}  {what}" for name, what in _OWN), f"  {_HOW}"])
    return Answer({"models": rows, "classes": options.classes, "own": own}, text)


def _parameters(entry: Entry, options: argparse.Namespace) -> int | None:
    """Count a network's parameters; those of a module, which takes torch and seconds for all, only if asked to."""
    if entry.name not in MODULE_NETWORKS:
        return table_parameters(entry.name, num_classes=options.classes)
    return _module_parameters(entry.name, options.classes) if options.parameters else None


def _module_parameters(name: str, num_classes: int) -> int:
    from importlib import import_module
    from inspect import signature

    import torch

    chosen = MODULE_NETWORKS[name]
    builder = getattr(import_module(f"sparsepipe.networks.{chosen.home}"), chosen.function)
    facts = {"num_classes": num_classes} if "num_classes" in signature(builder).parameters else {}
    with torch.device("meta"):  # shapes without memory
        module = builder(**chosen.args, **facts)
    return sum(parameter.numel() for parameter in module.parameters())


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else str(value)


def show(options: argparse.Namespace) -> Answer:
    """The hosts and devices of a cluster's file."""
    found = load_cluster_file(known_cluster(options.file))
    cluster = found.cluster
    heading = (
        f"{one_line(options.file)}: {found.kind}, {number_of(len(cluster.devices), 'device')} on "
        f"{number_of(len(cluster.nodes), 'host')}"
    )
    rows = [("host", "address", "devices", "inside"), *(_row(node) for node in cluster.nodes)]
    between = [f"between hosts: {_link_text(cluster.network)}"] if len(cluster.nodes) > 1 else []
    between += _network_time_lines(cluster)
    if len(cluster.nodes) > 1 and any(is_loopback(node.address) for node in cluster.nodes):
        between.append("loopback addresses suffice for planning; to run there, give each host its network address")
    return Answer(cluster_document(cluster), "\n".join([heading, table(rows), *between]))


def check(options: argparse.Namespace) -> Answer:
    """Check whether the hosts of a cluster file can work together."""
    report = check_cluster(load_cluster(known_cluster(options.file)))
    rows: list[tuple[str, ...]] = [("host", "python", "torch", "devices", "memory", "disk free", "clock")]
    rows += [_facts_row(one) for one in report.hosts]
    document = {"hosts": [asdict(one) for one in report.hosts], "problems": list(report.problems)}
    more = f" (and {len(report.problems) - 1} more)" if len(report.problems) > 1 else ""
    fault = f"{report.problems[0]}{more}" if report.problems else ""
    return Answer(document, "\n".join([table(rows), *report.problems[1:]]), fault)


def measure(options: argparse.Namespace) -> Answer:
    """Links and devices of a cluster as they are, written where planners read them."""
    cluster = load_cluster(options.file)
    out = options.out or options.file.with_suffix(".toml")
    found = measure_cluster(cluster, device=options.device)
    write_atomic(out, found.cluster.to_toml())
    links = [
        {"between": list(one.between), **_link_document(one.link), "seconds": dict(one.seconds)} for one in found.links
    ]
    document = {
        "out": str(out),
        "links": links,
        "reference_seconds": {name: list(took) for name, took in found.reference_seconds.items()},
        **cluster_document(found.cluster),
    }
    rows = [("host", "devices", "reference layer", "inside")]
    rows += [
        (
            node.name,
            counted(kind.name for kind in node.device_types),
            duration(found.reference_seconds[node.name][0]),
            _link_text(node.link),
        )
        for node in found.cluster.nodes
    ]
    between = [f"{' - '.join(one.between)}: {_link_text(one.link)}" for one in found.links]
    between += _network_time_lines(found.cluster)
    return Answer(document, "\n".join([f"{one_line(out)}: written", table(rows), *between]))


def _facts_row(one: HostFacts) -> tuple[str, ...]:
    devices = counted(one.gpus) if one.gpus else number_of(one.cores, "core")
    sizes = (f"{one.memory_bytes / 1e9:.1f} GB", f"{one.disk_bytes / 1e9:.1f} GB")
    return (one.name, one.python, one.packages.get("torch", "–"), devices, *sizes, f"{one.clock_seconds:+.1f} s")


def cluster_document(cluster: Cluster) -> dict[str, Any]:
    """A cluster as `cluster show --json` prints it: a link's bandwidth is null where nothing limits it.

    `network_seconds_per_byte` has the device types of which some of their own time is known to go there.
    """
    nodes = [
        {"name": one.name, "address": one.address, "device_types": [kind.name for kind in one.device_types]}
        for one in cluster.nodes
    ]
    document = {"nodes": nodes, "network": _link_document(cluster.network)}
    return document | ({"network_seconds_per_byte": told} if (told := _network_time(cluster)) else {})


def _network_time(cluster: Cluster) -> dict[str, float]:
    known = {kind.name: kind.network_seconds_per_byte for kind in cluster.device_types}
    return {name: seconds for name, seconds in known.items() if seconds}


def _network_time_lines(cluster: Cluster) -> list[str]:
    return [
        f"{name}: {as_measured(seconds * 1e9)} ns of processor time per byte to or from another host"
        for name, seconds in _network_time(cluster).items()
    ]


def _link_document(link: Link) -> dict[str, float | None]:
    return {"bandwidth": link.bandwidth if math.isfinite(link.bandwidth) else None, "latency": link.latency}


def _row(node: Node) -> tuple[str, ...]:
    devices = counted(kind.name for kind in node.device_types)
    reached = f"{node.address} (ssh {node.ssh})" if node.ssh else node.address
    return (node.name, reached, devices, _link_text(node.link))


def _link_text(link: Link) -> str:
    return link_text(link, unlimited="bandwidth not given")


VERBS: Mapping[str, Callable[[argparse.Namespace], Answer]] = {
    "data list": data_list,
    "data fetch": data_fetch,
    "data make": data_make,
    "data info": data_info,
    "data check": data_check,
    "models": models,
    "cluster show": show,
    "cluster check": check,
    "cluster measure": measure,
}
