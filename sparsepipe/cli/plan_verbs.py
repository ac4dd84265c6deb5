"""The verbs of the command line that measure a model, choose a plan for it, predict its timeline and write its files.

torch is imported only by `profile`, which computes with it, so that planning answers at once.
"""

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..data.describing import unread_files
from ..data.examples.recognising import is_examples
from ..errors import InputError
from ..networks import is_table
from ..planning import (
    DEFAULT,
    LAYOUT_SCHEDULE,
    PLANNERS,
    PlanSettings,
    comparable,
    partition,
    partition_pipelines,
    plan_of_layout,
    planner_for,
    planners_with,
)
from ..planning.exact.optimal import LATENCY
from ..planning.forecast import beyond_memory, forecast, peak_bytes
from ..planning.simulator import (
    RESTART_SECONDS,
    PipelinePace,
    PipelinesForecast,
    SimulationSettings,
    simulate_pipelines,
)
from ..records.formats.plan_files import load_plan
from ..runtime.config import ProfileConfig
from ..util.host.cpu import waiting
from ..util.io.fields import json_object
from ..util.io.files import write_json
from ..util.io.settings import rows
from ..util.text.numbers import (
    Certainty,
    as_measured,
    duration,
    duration_or_none,
    gap_text,
    number_of,
    rate_text,
    scaled_bytes,
    spread_text,
)
from ..values.cluster import Cluster
from ..values.plan import Estimate, Plan
from ..values.profile import Profile
from ..values.replication import parse_rule, rule_text
from ..values.schedule_rules import SCHEDULE_RULES, WEIGHT_RULES
from ..values.stragglers import Stragglers
from ..values.trace import Trace
from .arguments import of_planners
from .options import given
from .orders import compare_orders, orders_asked, plans_with_sizes, sizes_asked
from .output import Answer, Progress, progress_line, warn
from .plan_file_verbs import written_options
from .plan_reports import SETTINGS, check_reports, reports_of, robust_plan
from .profile_and_cluster import beyond_profile, profile_and_cluster, warn_of
from .replanning import simulate_replanned
from .without_effect import OF_MODULES, no_effect, of_other_data


def profile(options: argparse.Namespace) -> Answer:
    for name in ("model", "data", "batch_size", "out"):
        if getattr(options, name) is None:
            raise InputError("option.missing", f"no {name.replace('_', ' ')} given; add --{name.replace('_', '-')}")
    of_data = {name: getattr(options, name) for name in ("voxel_size", "num_points", "data_args", "crop")}
    warn(of_other_data(of_data, options.data))
    warn(unread_files(options.data))
    if options.model_args is not None and is_table(options.model):
        warn([no_effect("model_args", OF_MODULES)])
    if options.out.is_dir():  # told before anything is measured
        raise InputError(
            "plan.out_is_folder",
            f"--out {options.out}: is a folder, expected a file's name, such as profile.json in it",
        )
    options.out.parent.mkdir(parents=True, exist_ok=True)
    # Before torch comes in with the profiler: the workers of a run get the same.
    os.environ.update(waiting(options.engine or "auto", options.threads or 1))
    from ..profiling import profile_model

    names = ("voxel_size", "num_points", "loss", "freeze", "engine", "device", "threads", "seed", *rows(ProfileConfig))
    of_samples = ("collate",) if is_examples(options.data) else ("collate", "crop", "features")
    found = profile_model(
        options.model,
        options.data,
        model_args=json_object(options.model_args, "--model-args"),
        data_args=json_object(options.data_args, "--data-args") | given(options, of_samples),
        loss_args=json_object(options.loss_args, "--loss-args"),
        batch_size=options.batch_size,
        progress=progress_line,
        **given(options, names),
    )
    found.save(options.out)
    warn_of(found)
    name = found.device_types[0]
    forward, backward = found.time(range(len(found.graph.layers)), name)
    measured = found.origin[f"measured_{found.size_unit}"]
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
        f"{options.out}: {number_of(len(found.graph.layers), 'layer')} on {name}, forward {duration(forward)}, "
        f"backward {duration(backward)} at {found.size():.0f} {found.size_unit}, update {duration(update)}; the sum "
        f"of the layers is {found.origin['layers_over_whole']:.2f} x a whole step\nmeasured "
        f"{number_of(len(measured), 'size')} from {measured[0]:,.0f} to {measured[-1]:,.0f} {found.size_unit} in "
        f"{found.origin['measuring_seconds']:.0f} s; times there {found.certainty(measured)}\n"
        # Of pictures and own samples there is nothing to say: each counts as one.
        + (spread_text(found.origin["sample_sizes"], found.size_unit) if found.size_unit != "samples" else ""),
    )


def plan(options: argparse.Namespace) -> Answer:
    found, cluster = profile_and_cluster(options, warn=options.json)  # else the first plan's own text does
    if options.layout is not None:
        return _layout_and_plans(options, found, cluster)
    schedule = options.schedule or PlanSettings.schedule
    settings = given(options, (*SETTINGS, "largest_size"))
    if options.num_microbatches is not None and not _takes_steps(schedule):
        known = ", ".join(name for name in SCHEDULE_RULES if _takes_steps(name))
        raise InputError(
            "option.no_microbatches",
            f"--num-microbatches does not apply to schedule {schedule}, which updates after each minibatch; omit it, "
            f"or give --schedule {known}",
        )
    several = options.pipelines is not None and options.pipelines > 1
    counts_sizes = sizes_asked(options)
    if counts_sizes and several:
        text = "--order, --data and --sample-sizes require a plan of one pipeline; omit them, or omit --pipelines"
        raise InputError("option.of_one_pipeline", text)
    if counts_sizes and options.objective == LATENCY:
        text = f"--order, --data and --sample-sizes apply only to training; omit them, or omit --objective {LATENCY}"
        raise InputError("option.of_planner", text)
    if options.replication and not several:
        raise InputError(
            "option.of_several_pipelines",
            "--replication requires pipeline replicas; add --pipelines P with P of at least 2",
        )
    if options.warm_start and (several or counts_sizes or options.robust):
        text = "--warm-start requires a plan of one pipeline for minibatches of one size; omit it, or the other options"
        raise InputError("option.of_planner", text)
    check_reports(options, options.planner or (), counts_sizes=counts_sizes)
    if options.segments is False and not options.recompute:
        warn([no_effect("no_segments", "no layers are recomputed without --recompute")])
    if several:
        return _pipelines(options, found, cluster)
    _check_latency(options)
    asked = [(name, settings | own) for name, own in _planner_options(options, _planners(options, schedule))]
    robust = robust_plan(options, found, cluster)
    if robust:
        plans, compared, tables = [_with_options(robust.plan, options)], list[dict[str, object]](), list[str]()
    else:
        plans, compared, tables = _planned(options, found, cluster, asked, counts_sizes=counts_sizes)
    if options.out:
        plans[0].save(options.out)
    if options.json:  # else their texts do
        for one in plans:
            warn(f"{one.planner}: {text}" for text in beyond_profile(one, found))
    reports, lines = reports_of(options, plans, robust, found, cluster)
    tables += lines
    if len(plans) == 1:
        reports |= {"with_sizes": compared[0]} if counts_sizes else {}
        return Answer(plans[0].to_json() | reports, "\n".join([str(plans[0]), *tables]))
    answer = _compared(plans, found, cluster, tables)
    reports |= {"with_sizes": compared} if counts_sizes else {}
    return Answer(answer.document | reports, answer.text)


def _check_latency(options: argparse.Namespace) -> None:
    if options.objective == LATENCY and options.schedule:
        warn([no_effect("schedule", f"--objective {LATENCY} plans forward passes only")])
    if options.objective == LATENCY and len(options.planner or ()) > 1:
        raise InputError(
            "option.of_planner",
            f"--objective {LATENCY} requires the optimal planner; give only --planner optimal",
        )


def _compared(plans: Sequence[Plan], measured: Profile, cluster: Cluster, tables: Sequence[str] = ()) -> Answer:
    """Compare several plans by one cost model."""
    judged = comparable(plans, measured, cluster)
    lines = [f"{plan.planner} expects {_own_period(plan)} by its own cost model" for plan in plans]
    lines += [f"warning: {plan.planner}: {text}" for plan in plans[1:] for text in beyond_profile(plan, measured)]
    document = {
        "plans": [plan.to_json() for plan in judged],
        "own_period_seconds": [plan.estimate.period_seconds if plan.estimate else None for plan in plans],
        "differences": [judged[0].diff(other).to_json() for other in judged[1:]],
    }
    text = "\n".join([side_by_side(judged, measured), "", *lines, *tables])
    return Answer(document, text)


def _planned(
    options: argparse.Namespace,
    measured: Profile,
    cluster: Cluster,
    asked: Sequence[tuple[str, dict[str, Any]]],
    *,
    counts_sizes: bool,
) -> tuple[list[Plan], list[dict[str, object]], list[str]]:
    """Return a plan of each planner; if the time lost to sizes counts, also what each was compared with, and tables."""
    if not counts_sizes:
        start = load_plan(options.warm_start, measured.graph) if options.warm_start else None
        made = list[Plan]()
        with Progress() as line:
            for name, settings in asked:
                plan = partition(
                    measured,
                    cluster,
                    planner=name,
                    progress=lambda state: line.tell(f"{state}; Ctrl-C ends the search"),
                    warm_start=start,
                    **settings,
                )
                made.append(plan)
        return [_with_options(plan, options) for plan in made], [], []
    plans, compared, tables = list[Plan](), list[dict[str, object]](), list[str]()
    for name, settings in asked:
        chosen, document, table = plans_with_sizes(options, measured, cluster, planner=name, **settings)
        plans.append(_with_options(chosen, options))
        compared.append(document)
        tables += ["", table if len(asked) == 1 else f"{name}: {table}"]
    return plans, compared, tables


def _layout_and_plans(options: argparse.Namespace, measured: Profile, cluster: Cluster) -> Answer:
    """Compare the layout of another runtime with plans under its schedule; the layout is what is saved."""
    barred = (
        "pipelines",
        "replication",
        "recompute",
        "largest_size",
        "order",
        "sample_sizes",
        "data",
        "objective",
        "warm_start",
    )
    if refused := list(given(options, barred)):
        text = (
            f"--layout with --{refused[0].replace('_', '-')}: it is compared for the training of one pipeline: omit one"
        )
        raise InputError("option.of_layout", text)
    terms = {"schedule": LAYOUT_SCHEDULE} | given(options, ("schedule", "num_microbatches"))
    plans = [plan_of_layout(options.layout, measured, cluster, **terms)]
    names = _planners(options, terms["schedule"])
    plans += [
        partition(measured, cluster, planner=name, **terms, **each) for name, each in _planner_options(options, names)
    ]
    plans = [_with_options(each, options) for each in plans]
    if options.out:
        plans[0].save(options.out)
    return _compared(plans, measured, cluster)


def _pipelines(options: argparse.Namespace, found: Profile, cluster: Cluster) -> Answer:
    settings = given(options, (*SETTINGS, "largest_size"))
    names = _planners(options, options.schedule or PlanSettings.schedule)
    if len(names) > 1:
        raise InputError(
            "option.one_planner",
            f"--pipelines requires a single planner, but {len(names)} are given; to compare planners, run each "
            "separately",
        )
    ((name, own),) = _planner_options(options, names)
    rule = parse_rule(options.replication) if options.replication else None
    several = partition_pipelines(found, cluster, options.pipelines, replication=rule, planner=name, **settings, **own)
    several = _with_options(several, options)
    if options.out:
        several.save(options.out)
    if options.json:
        warn(text for text in several.all_warnings if text not in found.warnings)
    return Answer(several.to_json(), str(several))


def _with_options(plan: Plan, options: argparse.Namespace) -> Plan:
    """The plan with the options that named its profile, devices and minibatches: `train` takes them from it."""
    return replace(plan, provenance={**(plan.provenance or {}), **written_options(options)})


def _planners(options: argparse.Namespace, schedule: str) -> list[str]:
    """The planners asked for, else one that knows the schedule; told where that is not the default."""
    if options.planner:
        return list(options.planner)
    name = planner_for(schedule)
    if name != DEFAULT:
        puts = SCHEDULE_RULES[schedule].check_stages_per_rank(1)
        progress_line(f"schedule {schedule!r} {puts}: planned by {name!r}")
    return [name]


def _takes_steps(schedule: str) -> bool:
    """Return whether one weight update covers several minibatches."""
    return WEIGHT_RULES[SCHEDULE_RULES[schedule].weights[0]].updates_by_step


def _own_period(plan: Plan) -> str:
    assert plan.estimate is not None
    return f"{duration(plan.estimate.period_seconds)} per minibatch"


def _planner_options(options: argparse.Namespace, names: list[str]) -> list[tuple[str, dict[str, Any]]]:
    """Give each planner those of the options that it knows. Raises InputError for one that none of them knows."""
    asked = given(options, (row.name for row in of_planners()))
    known = {name: rows(PLANNERS[name]) for name in names}
    for key in asked:
        if not any(key in fields_ for fields_ in known.values()):
            having = " or ".join(planners_with(key))
            raise InputError(
                "option.of_planner",
                f"--{key.replace('_', '-')} does not apply to planner {', '.join(names)}; omit it, or give --planner "
                f"{having}",
            )
    return [(name, {key: value for key, value in asked.items() if key in known[name]}) for name in names]


def simulate(options: argparse.Namespace) -> Answer:
    found, cluster = profile_and_cluster(options)
    stragglers = Stragglers.parse(";".join(options.straggler or ()))
    if options.restart_seconds is not None and not stragglers.end_ranks:
        raise InputError(
            "option.of_killing", "--restart-seconds requires --inject kill:…; add that, or omit --restart-seconds"
        )
    chosen = _plan_or_layout(options, found, cluster)
    if orders_asked(options):
        return compare_orders(options, chosen, found, cluster)
    options.minibatches = options.minibatches or SimulationSettings.minibatches
    if chosen.members:
        if options.replan:
            raise InputError(
                "option.of_one_pipeline",
                "--replan simulates only plans of one pipeline; give one pipeline of this plan, or use train --replan",
            )
        if options.epoch_minibatches:
            raise InputError(
                "option.of_one_pipeline",
                "--epoch-minibatches requires a plan of one pipeline, but this plan has several; omit it",
            )
        return _simulate_pipelines(options, chosen, found, cluster, stragglers)
    if options.replication:
        raise InputError(
            "option.of_several_pipelines",
            "--replication requires pipeline replicas, but this plan has only one pipeline; omit it",
        )
    if options.seed is not None:
        raise InputError(
            "option.of_several_pipelines",
            "--seed requires a plan of several pipelines; omit it, or seed the stragglers by --inject 'SPEC;seed=N'",
        )
    if options.epoch_minibatches and not (options.replan or stragglers.end_ranks):
        raise InputError(
            "option.of_replanning",
            "--epoch-minibatches requires --replan or --inject kill:…; add one of these, or omit it",
        )
    chosen.check(found.graph, cluster)
    warn(f"plan: {text}" for text in beyond_profile(chosen, found))
    sizes = _sizes(found, options.minibatches)
    if options.replan:
        return simulate_replanned(options, chosen, found, cluster, sizes, stragglers)
    told = forecast(
        chosen,
        found,
        cluster,
        sizes,
        stragglers=stragglers,
        restart_seconds=options.restart_seconds or RESTART_SECONDS,
        epoch_minibatches=options.epoch_minibatches,
    )
    beyond = [text for text in (told.beyond_memory(cluster),) if text]
    warn(beyond)
    if options.trace:
        write_json(options.trace, told.trace.to_chrome())
    makespan = told.trace.makespan
    document = {"minibatches": options.minibatches, **told.to_json(), "busy_fraction": _busy(told.trace)}
    document["warnings"] = [*found.warnings, *beyond_profile(chosen, found), *beyond]
    if note := stragglers.note():
        document["stragglers"] = str(stragglers)
    shown = {"restart": bool(told.restart), "sizes": len(set(sizes)) > 1}
    causes = ", ".join(f"{cause} {share:z.1%}" for cause, share in document["bubble"].items() if shown.get(cause, True))
    text = (
        f"{number_of(options.minibatches, 'minibatch')} in {makespan:.3f} s simulated, "
        f"{throughput(told.minibatches_per_second, found)} when steady, bubble {told.trace.bubble_fraction:.1%} "
        f"({causes})"
    )
    if shown["sizes"]:
        text += f"; in any order at least {told.lower_bound_seconds:.3f} s"
    if beyond_sizes := Certainty.beyond(told.certainty):
        text += f"; {beyond_sizes}"
    restart = told.restart.note() if told.restart else ""
    answer = Answer(document, "\n".join(filter(None, [text, note, restart])))
    return answer if options.layout is None else _beside_optimal(answer, chosen, found, cluster)


def _beside_optimal(answer: Answer, chosen: Plan, measured: Profile, cluster: Cluster) -> Answer:
    """Add the comparison of a layout with the optimal plan under its schedule, and with the bound of all plans."""
    best = partition(measured, cluster, schedule=chosen.schedule, num_microbatches=chosen.num_microbatches)
    compared = _compared([chosen, best], measured, cluster)
    return Answer(answer.document | {"compared": compared.document}, f"{answer.text}\n\n{compared.text}")


def _plan_or_layout(options: argparse.Namespace, measured: Profile, cluster: Cluster) -> Plan:
    if (options.plan is None) == (options.layout is None):
        raise InputError("option.plan_or_layout", "expected a PLAN or --layout, one of both")
    terms = given(options, ("schedule", "num_microbatches"))
    if options.layout is not None:
        return plan_of_layout(options.layout, measured, cluster, **terms)
    if terms:
        option = next(iter(terms)).replace("_", "-")
        raise InputError("option.of_layout", f"--{option} applies to --layout; a plan's file has its own: omit it")
    return load_plan(options.plan, measured.graph)


def _sizes(found: Profile, count: int) -> list[float]:
    sizes = found.typical_sizes
    return [sizes[m % len(sizes)] for m in range(count)]


def _busy(trace: Trace) -> dict[str, float]:
    makespan = trace.makespan
    return {str(rank): trace.busy(rank) / makespan if makespan else 0.0 for rank in trace.ranks}


def _simulate_pipelines(
    options: argparse.Namespace, chosen: Plan, found: Profile, cluster: Cluster, stragglers: Stragglers
) -> Answer:
    if options.replication:
        chosen = replace(chosen, replication=parse_rule(options.replication))
    sizes = _sizes(found, options.minibatches)
    told = simulate_pipelines(
        chosen,
        found,
        cluster,
        sizes,
        stragglers=stragglers,
        seed=options.seed or 0,
        restart_seconds=options.restart_seconds or RESTART_SECONDS,
    )
    doubts = [text for text in chosen.all_warnings if text not in found.warnings]
    peaks: dict[int, float] = {}
    for plan, taken in zip(chosen.pipelines, told.taken, strict=True):
        peaks |= peak_bytes(plan, found, cluster, [sizes[m] for m in taken])
    beyond = [text for text in (beyond_memory(peaks, cluster),) if text]
    warn([*(f"plan: {text}" for text in doubts), *beyond])
    if options.trace:
        write_json(options.trace, told.trace.to_chrome())
    document = {"minibatches": options.minibatches, **told.to_json()}
    document["peak_bytes"] = {str(rank): peak for rank, peak in peaks.items()}
    document["busy_fraction"] = _busy(told.trace)
    document["stragglers"] = str(stragglers)
    document["warnings"] = [*found.warnings, *doubts, *beyond]
    lines = [forecast_text(told), stragglers.note()]
    if found.sized:
        used = sorted({cluster.devices[rank].type.name for plan in chosen.pipelines for rank in plan.ranks})
        certainty = found.certainty(sizes, used)
        document |= certainty.to_json()
        lines.append(Certainty.beyond(certainty))
    return Answer(document, "\n".join(filter(None, lines)))


VERBS: Mapping[str, Callable[[argparse.Namespace], Answer]] = {
    "profile": profile,
    "plan": plan,
    "simulate": simulate,
}


def forecast_text(told: PipelinesForecast) -> str:
    """Tell paces, merges and what was waited for."""
    count = sum(one.minibatches for one in told.pipelines)
    lines = [
        f"{number_of(count, 'minibatch')} in {told.trace.makespan:.3f} s simulated, "
        f"{rate_text(told.samples_per_second, told.counted)}; the pipelines together reach "
        f"{rate_text(told.sum_of_paces, told.counted)}, {_share(told.sum_of_paces, told.own_pace)} of their "
        "throughput without synchronization stalls",
        f"{rule_text(told.rule)}: {_merges(told)}, {scaled_bytes(told.bytes)} sent",
    ]
    return "\n".join([*lines, *(_line(k, one, told.counted) for k, one in enumerate(told.pipelines))])


def _merges(told: PipelinesForecast) -> str:
    count = sum(told.group_sizes.values())
    if not count:
        return "no merge"
    return (
        f"{number_of(count, 'merge')} of {told.mean_group_size:.2f} pipelines on average, {told.forced_merges} of "
        f"them forced, results applied {told.mean_staleness:.2f} updates later"
    )


def _line(k: int, one: PipelinePace, counted: str) -> str:
    lost = [f"{cause} {as_measured(seconds)} s" for cause, seconds in one.lost_seconds.items() if seconds]
    waited = [f"{name} {as_measured(seconds)} s" for name, seconds in one.waits]
    return (
        f"pipeline {k}: {number_of(one.minibatches, 'minibatch')}, {rate_text(one.samples_per_second, counted)}, "
        f"{_share(one.samples_per_second, one.own_pace)} of its standalone throughput"
        + (f"; lost by {', '.join(lost)}" if lost else "")
        + (f"; waited for {', '.join(waited)}" if waited else "")
    )


def _share(rate: float, whole: float) -> str:
    return f"{rate / whole:.1%}" if whole else "–"


def _slowest(plan: Plan, estimate: Estimate) -> str:
    """Describe the slowest stage and its cause; for interleaved stages, those of the slowest device."""
    found = [
        (position, sum(estimate.stages[k].transfer_seconds for k in position.stages))
        for position in plan.position_estimates
    ]
    slowest, transfers = max(found, key=lambda pair: max(pair[0].busy_seconds, pair[1]))
    name = ", ".join(map(str, slowest.stages))
    if transfers > slowest.busy_seconds:
        return f"{name}: transfers"
    return f"{name}: {'averaging' if slowest.averaging_seconds > slowest.compute_seconds else 'compute'}"


Cell = Callable[[Plan, Estimate], str]
ROWS: tuple[tuple[str, Cell], ...] = (
    ("time per minibatch", lambda plan, e: duration_or_none(e.period_seconds)),
    ("over one device", lambda plan, e: _times(e.single_device_seconds, e.period_seconds)),
    ("over data parallelism", lambda plan, e: _times(e.data_parallel_seconds, e.period_seconds)),
    ("lower bound", lambda plan, e: duration_or_none(e.lower_bound_seconds)),
    ("optimality gap", lambda plan, e: "–" if e.gap is None else gap_text(e.gap)),
    ("stages", lambda plan, e: str(len(plan.stages))),
    ("devices", lambda plan, e: str(len(plan.ranks))),
    ("slowest stage", _slowest),
    (
        "peak memory",
        lambda plan, e: scaled_bytes(max(position.memory_bytes for position in plan.position_estimates)),
    ),
    ("sent per minibatch", lambda plan, e: scaled_bytes(sum(stage.sent_bytes for stage in e.stages))),
    ("schedule", lambda plan, e: f"{plan.schedule} ({plan.weights})"),
    ("planning time", lambda plan, e: duration_or_none(e.plan_seconds)),
)


def throughput(rate: float, profile: Profile) -> str:
    """Return a rate of minibatches in samples/s; as it is where the profile does not say how many samples one has."""
    if profile.batch_size:
        return rate_text(profile.batch_size * rate)
    return rate_text(rate, "minibatches")


def side_by_side(plans: Sequence[Plan], profile: Profile) -> str:
    """Compare plans that have estimates of one cost model, as `planning.comparable` gives them."""

    def pace(plan: Plan, estimate: Estimate) -> str:
        return throughput(1 / estimate.period_seconds, profile) if estimate.period_seconds else "–"

    rows: list[tuple[str, Cell]] = [ROWS[0], ("throughput", pace), *ROWS[1:]]
    columns = [["", *(name for name, _ in rows)]]
    for plan in plans:
        assert plan.estimate is not None
        columns.append([plan.planner, *(cell(plan, plan.estimate) for _, cell in rows)])
    widths = [max(map(len, column)) for column in columns]
    lines = [
        "  ".join([cells[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(cells[1:], widths[1:], strict=True))])
        for cells in zip(*columns, strict=True)
    ]
    return "\n\n".join(["\n".join(lines), str(plans[0]), *(str(plans[0].diff(other)) for other in plans[1:])])


def _times(before: float | None, after: float) -> str:
    return f"{before / after:.2f} ×" if before and after else "–"
