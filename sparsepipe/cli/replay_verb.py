"""The verb `replay`: sleep through a plan with the real runtime, on this machine or on the cluster's hosts."""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ..errors import InputError, one_line
from ..launching import SSH
from ..monitoring.launching import launch
from ..planning.forecast import forecast
from ..planning.simulator import simulate_pipelines
from ..records.formats.plan_files import load_plan
from ..records.rates import MINIBATCHES, SAMPLES
from ..runtime import RunConfig
from ..util.text.counting import number_of
from ..values.replication import parse_rule
from ..values.stragglers import Stragglers
from .launches import check_launcher, new_run_dir, waited
from .options import given
from .output import Answer, progress_line
from .profile_and_cluster import profile_and_cluster
from .replanning import without_predictor


def replay(options: argparse.Namespace) -> Answer:
    """Sleep through a plan: the real runtime, the profile's times, the cluster's links.

    The answer says beside it what the simulator expects.
    """
    check_launcher(options, options.launcher)
    if options.launcher == SSH and not options.cluster:
        raise InputError("option.of_hosts", f"--launcher {SSH} goes with hosts: name their file, --cluster FILE")
    profile, cluster = profile_and_cluster(options)
    plan = load_plan(options.plan, profile.graph)
    plan.check(profile.graph, cluster)
    config = RunConfig(
        profile.origin.get("model", "profile"),
        "replay",
        engine="replay",
        batch_size=profile.batch_size or 1,
        minibatches=options.minibatches,
        stragglers=";".join(options.straggler) if options.straggler else None,
        **given(options, ("timeout_seconds", "max_restarts", "encrypt")),
    )
    folder = options.run_dir or new_run_dir("replay")
    where: dict[str, Any] = {"profile": profile, "cluster": cluster, "replication": options.replication}
    where |= {"replan": options.replan, "tell": progress_line, "launcher": options.launcher}
    where |= {"ray_address": options.ray_address} if options.ray_address else {}
    counts = profile.typical_sizes
    sizes = [counts[m % len(counts)] for m in range(options.minibatches)]
    stragglers = Stragglers.parse(config.stragglers or "")
    if plan.members:
        if options.replication:
            plan = replace(plan, replication=parse_rule(options.replication))
        together = simulate_pipelines(plan, profile, cluster, sizes, stragglers=stragglers, seed=config.seed)
        summary = waited(launch(plan, config, run_dir=folder, **where))
        return _replayed(summary, config, expected=together.minibatches_per_second)
    if options.replan and (text := without_predictor(options.replan, "a replay")):
        progress_line(text)
    told = forecast(plan, profile, cluster, sizes, stragglers=stragglers)
    if text := told.beyond_memory(cluster):
        progress_line(f"warning: {text}")
    summary = waited(launch(plan, config, run_dir=folder, **where))
    return _replayed(summary, config, expected=told.minibatches_per_second)


def _replayed(summary: dict[str, Any], config: RunConfig, *, expected: float) -> Answer:
    """What a replay says at its end, in minibatches, beside what the simulator expects per second."""
    pace = summary[SAMPLES] / config.batch_size if SAMPLES in summary else summary[MINIBATCHES]
    document = {**summary, MINIBATCHES: pace, "simulated_minibatches_per_second": expected}
    text = (
        f"{one_line(summary['run_dir'])}: {number_of(summary['minibatches'], 'minibatch')} replayed at {pace:.2f} "
        f"minibatches/s, {expected:.2f} simulated"
    )
    return Answer(document, text)


VERBS: Mapping[str, Callable[[argparse.Namespace], Answer]] = {"replay": replay}
