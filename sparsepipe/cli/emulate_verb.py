"""The verb `emulate`: the real runtime, whose processes sleep for the profile's times, here or on hosts."""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import InputError, one_line
from ..launching import LAUNCHERS, LOCAL, SSH
from ..monitoring.launching import emulate
from ..planning.forecast import forecast
from ..planning.simulator import SimulationSettings, simulate_pipelines
from ..records.formats.plan_files import load_plan
from ..records.run_progress import MINIBATCHES, SAMPLES
from ..records.run_record import check_free
from ..util.io.settings import rows
from ..util.text.numbers import number_of
from ..values.plan import Plan
from ..values.replication import parse_rule
from ..values.stragglers import Stragglers
from .launches import check_launcher, new_run_dir, waited
from .options import (
    Parser,
    dry_run_option,
    given,
    inject_option,
    machine_options,
    of_run,
    plan_argument,
    ray_address_option,
    replan_option,
    replication_option,
    run_dir_option,
    setting_options,
)
from .output import Answer, progress_line
from .profile_and_cluster import profile_and_cluster
from .replanning import without_predictor


def emulate_options(verb: Parser) -> None:
    plan_argument(verb)
    machine_options(verb)
    verb.add_argument(
        "--launcher",
        choices=tuple(LAUNCHERS),
        default=LOCAL,
        help="hosts of the sleeping processes: this machine, or those of the cluster over ssh or Ray (default: local)",
    )
    ray_address_option(verb)
    setting_options(verb, [rows(SimulationSettings)["minibatches"]])
    verb.set_defaults(minibatches=SimulationSettings.minibatches)
    replication_option(verb)
    inject_option(verb)
    replan_option(verb)
    setting_options(verb, of_run("encrypt", "max_restarts", "timeout_seconds"))
    dry_run_option(verb)
    run_dir_option(verb)


def emulated(options: argparse.Namespace) -> Answer:
    """Emulate a plan: the real runtime, the profile's times, the cluster's links.

    The answer has the simulator's expectation, too.
    """
    check_launcher(options, options.launcher)
    if options.launcher == SSH and not options.cluster:
        raise InputError("option.of_hosts", f"--launcher {SSH} requires hosts; add --cluster FILE")
    profile, cluster = profile_and_cluster(options)
    plan = load_plan(options.plan, profile.graph)
    plan.check(profile.graph, cluster)
    counts = profile.typical_sizes
    sizes = [counts[m % len(counts)] for m in range(options.minibatches)]
    stragglers = Stragglers.parse(";".join(options.straggler or ()))
    if plan.members:
        if options.replication:
            plan = replace(plan, replication=parse_rule(options.replication))
        together = simulate_pipelines(plan, profile, cluster, sizes, stragglers=stragglers)
        expected = together.minibatches_per_second
    else:
        if options.replan and (text := without_predictor(options.replan, "an emulation")):
            progress_line(text)
        alone = forecast(plan, profile, cluster, sizes, stragglers=stragglers)
        if text := alone.beyond_memory(cluster):
            progress_line(f"warning: {text}")
        expected = alone.minibatches_per_second
    folder = options.run_dir or new_run_dir("emulation")
    if options.dry_run:
        check_free(folder)
        return _planned(options, plan, folder=folder, expected=expected)
    settings = given(options, ("timeout_seconds", "max_restarts", "encrypt"))
    where: dict[str, Any] = {"replication": options.replication, "replan": options.replan, "tell": progress_line}
    where |= {"launcher": options.launcher}
    where |= {"ray_address": options.ray_address} if options.ray_address else {}
    job = emulate(
        plan,
        profile,
        cluster,
        run_dir=folder,
        minibatches=options.minibatches,
        stragglers=str(stragglers) or None,
        settings=settings,
        **where,
    )
    summary = waited(job)
    return _reached(summary, profile.batch_size or 1, expected=expected)


def _planned(options: argparse.Namespace, plan: Plan, *, folder: Path, expected: float) -> Answer:
    """The answer of --dry-run."""
    document = {"run_dir": str(folder), "launcher": options.launcher, "minibatches": options.minibatches}
    document |= {"simulated_minibatches_per_second": expected, "plan": plan.to_json()}
    text = (
        f"would emulate {number_of(options.minibatches, 'minibatch')} under {one_line(options.plan)} with "
        f"{number_of(len(plan.ranks), 'process')} (launcher {options.launcher}), and write to {one_line(folder)}; "
        f"{expected:.2f} minibatches/s simulated\n{plan}"
    )
    return Answer(document, text)


def _reached(summary: dict[str, Any], batch_size: int, *, expected: float) -> Answer:
    """The answer at the end: measured and simulated minibatches per second."""
    pace = summary[SAMPLES] / batch_size if SAMPLES in summary else summary[MINIBATCHES]
    document = {**summary, MINIBATCHES: pace, "simulated_minibatches_per_second": expected}
    text = (
        f"{one_line(summary['run_dir'])}: {number_of(summary['minibatches'], 'minibatch')} emulated at {pace:.2f} "
        f"minibatches/s, {expected:.2f} simulated"
    )
    return Answer(document, text)


VERBS: Mapping[str, Callable[[argparse.Namespace], Answer]] = {"emulate": emulated}
OPTIONS: Mapping[str, tuple[str, Callable[[Parser], None]]] = {
    "emulate": ("run a plan with sleeping processes, on any cluster", emulate_options)
}
