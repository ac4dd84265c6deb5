"""The `sparsepipe` command: thin, one function per verb. Each returns a JSON document and the same for people.

torch is imported only by the verbs that compute with it, so that planning answers at once.
"""

import argparse
import json
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from math import prod
from typing import Any

from ..cluster import Cluster, DeviceType, Link, Node
from ..display.markup import one_line, visible
from ..errors import InputError, RunFailed
from ..fields import MOST_LIKE_DEVICES
from ..files import write_json
from ..formats.pipedream_conf import export_plan, load_plan
from ..host.limits import limit_met
from ..host.openmp import waiting
from ..host.python_path import check_current_folder
from ..plan import Plan
from ..profile import Profile
from . import run_verbs
from .arguments import parser
from .output import Answer, OutputLost, Progress, print_answer, progress_line, standard_streams, table


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb. Returns 0, 1 for a run that failed or an answer that could not be written, 2 for bad input or a
    limit of the machine, 130 when interrupted."""
    has_output = standard_streams()
    try:
        options = parser().parse_args(arguments)
    except SystemExit:
        with suppress(OutputLost):  # of --help
            print_answer("", end="")
        raise
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: progress_line(f"warning: {message}")  # in one line, without code
        return _run_verb(options, has_output=has_output)


def _run_verb(options: argparse.Namespace, *, has_output: bool) -> int:
    try:
        check_current_folder()
        answer = VERBS[options.verb](options)
        if not has_output:
            raise OutputLost("it is closed")
        print_answer(json.dumps(answer.document, indent=2) if options.json else visible(answer.text))
        if answer.fault:
            return _failed(one_line(answer.fault), 2)
    except (InputError, RunFailed) as error:
        return _failed(str(error), 1 if isinstance(error, RunFailed) else 2)
    except OutputLost as error:
        return _failed(f"{options.verb} is done, but its answer could not be written to standard output ({error})", 1)
    except KeyboardInterrupt:
        return _failed("interrupted", 130)
    except Exception as error:
        if (told := _of_the_machine(error)) is None:
            raise
        return _failed(told, 2)
    return 0


def _failed(text: str, code: int) -> int:
    progress_line(f"sparsepipe: {text}")
    return code


def _of_the_machine(error: Exception) -> str | None:
    """What to say of a limit of the machine, or a path that cannot be used; None for what is a fault of the code."""
    if told := limit_met(error):
        return told
    if not isinstance(error, OSError):
        return None
    if error.filename is not None:  # a folder that is a file, no permission
        return f"{one_line(os.fsdecode(error.filename))}: {error.strerror}; choose another path"
    return f"{error.strerror or error}"


# --- data ---------------------------------------------------------------------------------------------------------


def data_list(options: argparse.Namespace) -> Answer:
    from ..data import list_datasets

    damaged: list[str] = []
    rows = [
        {
            "name": entry.name,
            "title": entry.title,
            "licence": entry.licence,
            "homepage": entry.homepage,
            "splits": dict(entry.splits),
            "fetchable": entry.verifiable,
        }
        for entry in list_datasets(damaged=damaged)
    ]
    for text in damaged:
        progress_line(f"warning: left out: {text}")
    columns = ("name", "title", "licence", "fetchable")
    return Answer(rows, table([columns, *([str(row[c]) for c in columns] for row in rows)]))


def data_fetch(options: argparse.Namespace) -> Answer:
    from ..data import fetch

    progress = Progress()

    def tell(name: str, done: int, total: int | None) -> None:
        progress.tell(f"{name}: {done / 1e6:.1f}{f' of {total / 1e6:.1f}' if total else ''} MB")

    try:
        folder = fetch(options.name, options.out, progress=tell)
    finally:
        progress.end()
    return Answer({"name": options.name, "folder": str(folder)}, f"{options.name} is in {folder}")


def data_make(options: argparse.Namespace) -> Answer:
    from ..data import info, make_shapes

    folder = make_shapes(options.out, num_train=options.train, num_test=options.test, seed=options.seed)
    found = info(folder)
    return Answer(found, f"{found['samples']} synthetic shapes of {len(found['classes'])} families are in {folder}")


def data_info(options: argparse.Namespace) -> Answer:
    from ..data import find, info

    found = info(find(options.path))
    lines = [f"{found['name']}{' (synthetic)' if found['synthetic'] else ''}: {found['samples']} samples"]
    lines += [f"{key}: {', '.join(f'{k} {n}' for k, n in found[key].items())}" for key in ("splits", "formats")]
    lines += [f"classes: {', '.join(found['classes'])}"]
    lines += [f"missing: no sample of class {one['class']} in split {one['split']}" for one in found["missing"]]
    return Answer(found, "\n".join([*lines, *_left_out(found["left_out"])]))


def data_check(options: argparse.Namespace) -> Answer:
    from ..data import check, find

    progress = Progress()
    settings = {"task": options.task, "features": options.features, "num_points": options.num_points}
    given = {name: value for name, value in settings.items() if value is not None}
    try:
        report = check(find(options.path), voxel_size=options.voxel_size, progress=progress.tell, **given)
    finally:
        progress.end()
    count = len(report.faults)
    fault = f"{options.path}: {count} {'faults' if count > 1 else 'fault'} would stop a run" if count else ""
    document = report.to_json()
    return Answer(document, "\n".join([str(report), *_left_out(document["left_out"])]), fault)


def _many(files: int) -> str:
    return f" ({files} files)" if files > 1 else ""


def _left_out(entries: Sequence[Mapping[str, Any]], most: int = 30) -> list[str]:
    """A line for each thing that a data set's folder holds beside its samples."""
    lines = [one_line(f"left out: {one['path']}{_many(one['files'])}: {one['why']}") for one in entries[:most]]
    return [*lines, *([f"left out: {len(entries) - most} more, see --json"] if len(entries) > most else [])]


# --- profile, plan, simulate --------------------------------------------------------------------------------------


def profile(options: argparse.Namespace) -> Answer:
    for name in ("model", "data", "voxel_size", "batch_size"):
        if getattr(options, name) is None:
            raise InputError(f"no {name}: give --{name.replace('_', '-')}")
    # Before torch comes in with the profiler: the workers of a run get the same.
    os.environ.update(waiting(options.engine or "auto", options.threads or 1))
    from ..profiler.measure import profile_model

    names = ("num_points", "engine", "device", "device_type", "repeats", "threads", "seed", "beside")
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    found = profile_model(
        options.model,
        options.data,
        voxel_size=options.voxel_size,
        batch_size=options.batch_size,
        progress=progress_line,
        **given,
    )
    found.save(options.out)
    _warn_of(found)
    name = found.device_types[0]
    forward, backward = found.time(range(len(found.graph.layers)), name)
    update = found.update_rates.get(name, 0.0) * sum(layer.parameter_bytes for layer in found.graph.layers)
    document = {
        "out": str(options.out),
        "device_type": name,
        "layers": len(found.graph.layers),
        found.size_unit: found.size(),
        "forward_seconds": forward,
        "backward_seconds": backward,
        "update_seconds": update,
        "origin": dict(found.origin),
    }
    return Answer(
        document,
        f"{options.out}: {len(found.graph.layers)} layers on {name}, forward {forward * 1e3:.1f} ms, "
        f"backward {backward * 1e3:.1f} ms at {found.size():.0f} {found.size_unit}, update {update * 1e3:.1f} ms; "
        f"the layers' sum is {found.origin['layers_over_whole']:.2f} x a whole step",
    )


def plan(options: argparse.Namespace) -> Answer:
    from ..planners import comparable, partition
    from .plan_table import side_by_side

    found, cluster = _profile_and_cluster(options, warn=options.json)  # else the first plan's own text does
    settings = {
        "schedule": options.schedule,
        "num_microbatches": options.num_microbatches,
        "recompute": options.recompute,
    }
    plans = [
        partition(found, cluster, planner=name, **settings, **given)
        for name, given in _planner_options(options, options.planner or ["optimal"])
    ]
    if options.out:
        plans[0].save(options.out)
    if options.json:  # else their texts do
        for one in plans:
            _say(f"{one.planner}: {text}" for text in _beyond(one, found))
    if len(plans) == 1:
        return Answer(plans[0].to_json(), str(plans[0]))
    judged = comparable(plans, found, cluster)
    told = [f"{plan.planner} expects {_own_period(plan)} by its own cost model" for plan in plans]
    told += [f"warning: {plan.planner}: {text}" for plan in plans[1:] for text in _beyond(plan, found)]
    document = {
        "plans": [plan.to_json() for plan in judged],
        "own_period_seconds": [plan.estimate.period_seconds if plan.estimate else None for plan in plans],
        "differences": [judged[0].diff(other).to_json() for other in judged[1:]],
    }
    text = "\n".join([side_by_side(judged), "", *told])
    return Answer(document, text)


def _own_period(plan: Plan) -> str:
    assert plan.estimate is not None
    return f"{plan.estimate.period_seconds * 1e3:.2f} ms a minibatch"


def _planner_options(options: argparse.Namespace, names: list[str]) -> list[tuple[str, dict[str, Any]]]:
    """Give each planner those of the options that it knows. Raises InputError for one that none of them knows."""
    from ..planners import PLANNERS

    given = {
        "cost_model": None if options.cost_model == "default" else options.cost_model,
        "all_devices": options.all_devices or None,
        "activation_compression_ratio": options.activation_compression_ratio,
        "straight_pipeline": options.straight_pipeline or None,
        "use_fewer_machines": options.use_fewer_machines or None,
        "rescore": options.rescore,
        "factor": options.factor,
        "stages_per_device": options.stages_per_device,
        "use_memory_constraint": options.use_memory_constraint or None,
    }
    given = {key: value for key, value in given.items() if value is not None}
    known = {name: {field.name for field in fields(PLANNERS[name])} for name in names}
    for key in given:
        if not any(key in fields_ for fields_ in known.values()):
            raise InputError(f"--{key.replace('_', '-')} means nothing to planner {', '.join(names)}: leave it out")
    return [(name, {key: value for key, value in given.items() if key in known[name]}) for name in names]


def simulate(options: argparse.Namespace) -> Answer:
    from ..forecast import forecast

    found, cluster = _profile_and_cluster(options)
    chosen = load_plan(options.plan, found.graph).check(found.graph, cluster)
    _say(f"plan: {text}" for text in _beyond(chosen, found))
    counts = found.typical_sizes
    told = forecast(chosen, found, cluster, [counts[m % len(counts)] for m in range(options.minibatches)])
    beyond = [text for text in (told.beyond_memory(cluster),) if text]
    _say(beyond)
    if options.trace:
        write_json(options.trace, told.trace.to_chrome())
    makespan = told.trace.makespan
    busy = {str(rank): told.trace.busy(rank) / makespan if makespan else 0.0 for rank in told.trace.ranks}
    document = {"minibatches": options.minibatches, **told.to_json(), "busy_fraction": busy}
    document["warnings"] = [*found.warnings, *_beyond(chosen, found), *beyond]
    causes = ", ".join(f"{cause} {share:.1%}" for cause, share in document["bubble"].items())
    text = (
        f"{options.minibatches} minibatches in {makespan:.3f} s simulated, "
        f"{told.minibatches_per_second:.2f} a second when steady, bubble {told.trace.bubble_fraction:.1%} ({causes})"
    )
    return Answer(document, text)


def _profile_and_cluster(options: argparse.Namespace, *, warn: bool = True) -> tuple[Profile, Cluster]:
    """Join the profiles given and build the cluster given; --server-file brings both.

    `warn`: say at once what makes a profile worth less.
    """
    if options.server_file:
        from ..formats.sparsepipe_servers import ServerFile

        servers = ServerFile.load(options.server_file)
        names = ("bandwidth", "network")  # inside a server, between servers
        links = dict(zip(names, options.bandwidth or (), strict=False))
        return servers.profile(), servers.cluster(**links, memory_bytes=options.memory or float("inf"))
    if not options.profile:
        raise InputError("no profile: give --profile [TYPE=]FILE, or --server-file, which names its profiles")
    joined: Profile | None = None
    for text in options.profile:
        name, equals, path = text.partition("=")
        one = Profile.load(path, device_type=name) if equals else Profile.load(text)
        try:
            joined = joined | one if joined else one
        except InputError as error:
            raise InputError(f"{path or text}: {error}") from None
    assert joined is not None
    if warn:
        _warn_of(joined)
    if options.cluster:
        return joined, Cluster.load(options.cluster)
    if not options.devices:
        raise InputError("no devices: give --cluster FILE, --server-file FILE or --devices N")
    return joined, _like_devices(joined, options.devices, options.bandwidth, options.memory)


def _beyond(plan: Plan, found: Profile) -> list[str]:
    """A plan's warnings but those that the profile has already said."""
    return [text for text in plan.warnings if text not in found.warnings]


def _warn_of(found: Profile) -> None:
    _say(found.warnings)


def _say(texts: Iterable[str]) -> None:
    for text in texts:
        progress_line(f"warning: {text}")


def _like_devices(found: Profile, counts: list[int], bandwidths: list[float] | None, memory: float | None) -> Cluster:
    """`--devices 4 --devices 2`: two nodes of four like devices, with a bandwidth for each level."""
    if len(found.device_types) > 1:
        raise InputError(
            f"--devices means like devices, but the profile has {', '.join(found.device_types)}: use --cluster"
        )
    if len(counts) > 2:
        raise InputError(f"--devices was given {len(counts)} times: expected once, or twice (devices a node, nodes)")
    if any(count < 1 for count in counts):
        raise InputError(f"a device count of {min(counts)}: expected at least 1")
    if prod(counts) > MOST_LIKE_DEVICES:
        raise InputError(
            f"--devices {' --devices '.join(map(str, counts))}: expected {MOST_LIKE_DEVICES} at most in all"
        )
    if bandwidths and len(bandwidths) != len(counts):
        raise InputError(f"{len(bandwidths)} --bandwidth for {len(counts)} --devices: expected one for each level")
    links = [Link(bandwidth) for bandwidth in bandwidths] if bandwidths else [Link()] * len(counts)
    kind = DeviceType(found.device_types[0], memory or float("inf"))
    nodes = range(counts[1] if len(counts) == 2 else 1)
    return Cluster(tuple(Node(f"node{k}", (kind,) * counts[0], links[0]) for k in nodes), links[-1])


# --- replay -------------------------------------------------------------------------------------------------------


def replay(options: argparse.Namespace) -> Answer:
    """Sleep through a plan: the real runtime on this machine, the profile's times, the cluster's links."""
    found, cluster = _profile_and_cluster(options)
    chosen = load_plan(options.plan, found.graph).check(found.graph, cluster)
    return run_verbs.replay(chosen, found, cluster, options)


# --- export, reproduce --------------------------------------------------------------------------------------------


def export(options: argparse.Namespace) -> Answer:
    chosen = Plan.load(options.plan)
    written = export_plan(chosen, options.out, profile=Profile.load(options.profile) if options.profile else None)
    if options.model:
        from ..formats.stage_modules import write_stage_modules
        from ..models import network

        written += write_stage_modules(chosen, network(options.model, num_classes=options.classes), options.out)
    return Answer({"files": [str(path) for path in written]}, "\n".join(map(str, written)))


def reproduce(options: argparse.Namespace) -> Answer:
    from ..reproduce import reproduce as run_notebooks

    settings = {"jobs": options.jobs, "data": options.data, "out": options.out, "only_changed": options.only_changed}
    settings["pictures"] = not options.no_pictures
    written = run_notebooks(options.figures or None, **settings)
    names = [str(path) for path in written]
    return Answer({"figures": names}, "\n".join(["figures:", *names]))


VERBS: Mapping[str, Callable[[argparse.Namespace], Answer]] = {
    "data list": data_list,
    "data fetch": data_fetch,
    "data make": data_make,
    "data info": data_info,
    "data check": data_check,
    "profile": profile,
    "plan": plan,
    "simulate": simulate,
    "replay": replay,
    **run_verbs.VERBS,
    "export": export,
    "reproduce": reproduce,
}
