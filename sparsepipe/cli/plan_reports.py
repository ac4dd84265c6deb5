"""What `plan --regret`, `--robust` and `--what-if` add to a plan: its regret, a robust plan, the value of hardware."""

import argparse
from collections.abc import Sequence

from ..errors import InputError
from ..planning import PlanSettings
from ..planning.cost_draws import DrawSettings
from ..planning.exact.optimal import PERIOD, Optimal
from ..planning.hardware_changes import compare_hardware
from ..planning.regret import Regret, RobustPlan, partition_robust, regret
from ..util.io.settings import rows
from ..values.cluster import Cluster
from ..values.plan import Plan
from ..values.profile import Profile
from .options import Parser, given, setting_options
from .output import Progress

_REPORTS = ("regret", "robust", "what_if")
_OF_OPTIMAL = ("robust", "what_if")  # they plan by themselves, with proven bounds
SETTINGS = ("schedule", "num_microbatches", "recompute")


def report_options(verb: Parser) -> None:
    """Add the options of reports on a plan."""
    verb.add_argument(
        "--regret",
        action="store_true",
        help="distance of the plan from the best one, given the profile's uncertainty; measurements that reduce it",
    )
    verb.add_argument(
        "--robust",
        action="store_true",
        help="plan with the least 95th percentile of the time per minibatch, given the profile's uncertainty",
    )
    verb.add_argument(
        "--what-if",
        action="store_true",
        help="value of one more device of each type, faster links, more memory, and without the slowest device",
    )
    setting_options(verb, rows(DrawSettings).values())


def check_reports(options: argparse.Namespace, planners: Sequence[str], *, counts_sizes: bool) -> None:
    """Raise InputError for reports that do not go with the other options.

    `counts_sizes`: whether plans count the time lost to sizes of minibatches.
    """
    asked = [name for name in _REPORTS if getattr(options, name)]
    if given(options, rows(DrawSettings)) and not (options.regret or options.robust):
        name = next(iter(given(options, rows(DrawSettings))))
        raise InputError(
            "option.of_regret", f"{{{name}}} requires --regret or --robust: give one, or leave it out", setting=name
        )
    if not asked:
        return
    option = f"--{asked[0].replace('_', '-')}"
    if options.pipelines is not None and options.pipelines > 1:
        raise InputError(
            "option.of_one_pipeline", f"{option} requires a plan of one pipeline: leave it out, or --pipelines"
        )
    if options.objective not in (None, PERIOD):
        raise InputError(
            "option.of_planner", f"{option} applies to throughput: leave it out, or --objective {options.objective}"
        )
    others = {*given(options, (*rows(Optimal), "largest_size")), *(name for name in planners if name != Optimal.name)}
    others -= {"quick", "objective"} if options.what_if and not options.robust else {"objective"}
    if not {*asked}.isdisjoint(_OF_OPTIMAL) and others:
        option = "--robust" if options.robust else "--what-if"
        raise InputError(
            "option.of_planner",
            f"{option} with {', '.join(sorted(others))}: it plans by planner {Optimal.name} with default settings; "
            "leave one of them out",
        )
    if options.robust and counts_sizes:
        raise InputError(
            "option.of_planner",
            "--robust with --order, --data or --sample-sizes: it plans for minibatches of mean size; leave them out",
        )


def robust_plan(options: argparse.Namespace, profile: Profile, cluster: Cluster) -> RobustPlan | None:
    """Return the plan of `--robust`; None without it."""
    if not options.robust:
        return None
    settings = given(options, (*SETTINGS, *rows(DrawSettings)))
    with Progress() as progress:
        return partition_robust(profile, cluster, **settings, progress=lambda line: progress.tell(f"robust: {line}"))


def reports_of(
    options: argparse.Namespace,
    plans: Sequence[Plan],
    robust: RobustPlan | None,
    profile: Profile,
    cluster: Cluster,
) -> tuple[dict[str, object], list[str]]:
    """Return the reports that are asked for: as entries of a document, and as lines of text."""
    document, lines = dict[str, object](), list[str]()
    if robust:
        document["robust"] = robust.to_json()
        lines += ["", str(robust)]
    if options.regret:
        drawn = given(options, rows(DrawSettings))
        with Progress() as progress:
            drawn["progress"] = lambda line: progress.tell(f"regret: {line}")
            regrets: list[Regret] = [regret(plan, profile, cluster, **drawn) for plan in plans]
        document["regret"] = regrets[0].to_json() if len(plans) == 1 else [report.to_json() for report in regrets]
        for plan, report in zip(plans, regrets, strict=True):
            lines += ["", str(report) if len(plans) == 1 else f"{plan.planner}: {report}"]
    if options.what_if:
        settings = given(options, (*SETTINGS, "quick"))
        with Progress() as progress:
            settings["progress"] = lambda line: progress.tell(f"what-if: {line}")
            changes = compare_hardware(profile, cluster, **{"schedule": PlanSettings.schedule} | settings)
        document["what_if"] = changes.to_json()
        lines += ["", str(changes)]
    return document, lines
