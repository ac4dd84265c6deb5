"""The verbs of the `sparsepipe` command with their options: one function a verb, and a row each in OPTIONS.

Choices are read from the library's own tables, none of which brings torch.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from ..data.labels import TASKS
from ..io.fields import MOST_LIKE_DEVICES, MOST_MINIBATCHES
from ..io.paths import expanded
from ..planners import PLANNERS
from ..planners.exact.optimal import COST_MODELS, OBJECTIVES
from ..runtime.config import DEVICES
from ..schedule_rules import SCHEDULE_RULES
from ..simulator import RESTART_SECONDS
from ..sweeps import RATIOS
from . import interference_arguments, run_options
from .argument_types import chrome_file, cluster_file, count, counts, names, positive, whole
from .shared_options import (
    Parser,
    log_option,
    machine_options,
    minibatches_option,
    model_options,
    num_points_option,
    plan_argument,
    replan_option,
    replication_option,
    stragglers_option,
)

# --- data ---------------------------------------------------------------------------------------------------------


def _data_list(verb: Parser) -> None:
    """No options of its own."""


def _data_fetch(verb: Parser) -> None:
    verb.add_argument("name", metavar="NAME", help="one that `data list` has")
    verb.add_argument("--out", type=expanded, metavar="DIR", help="where to put its folder")


def _data_make(verb: Parser) -> None:
    verb.add_argument("what", choices=["shapes"], help="CAD-like shapes of 17 families")
    verb.add_argument("--out", type=expanded, required=True, metavar="DIR", help="folder to write them to")
    verb.add_argument("--train", type=count, default=32, help="training shapes of each family (default: 32)")
    verb.add_argument("--test", type=count, default=8, help="test shapes of each family (default: 8)")
    verb.add_argument("--seed", type=whole(0, 2**64), default=0, metavar="N", help="of the shapes (default: 0)")


def _data_info(verb: Parser) -> None:
    verb.add_argument("path", metavar="PATH", help="folder of a data set, a manifest's name, or one's own function")
    _options_of_examples(verb)
    verb.add_argument("--voxel-size", type=positive, metavar="S", help="edge of the voxels counted (default: 0.05)")


def _data_check(verb: Parser) -> None:
    verb.add_argument("path", metavar="PATH", help="folder of a data set, a manifest's name, or one's own function")
    _options_of_examples(verb)
    verb.add_argument("--voxel-size", type=positive, metavar="S", help="edge of the voxels counted (default: 0.05)")
    num_points_option(verb)
    verb.add_argument("--task", choices=TASKS, help="what would be learned (default: all that can be)")
    verb.add_argument("--features", type=names, metavar="F,…", help="of each voxel, as in `run` (default: occupancy)")
    verb.add_argument("--engine", choices=("native", "minkowski"), help="that is to hold the voxels (default: native)")


def _options_of_examples(verb: Parser) -> None:
    verb.add_argument("--data-args", metavar="JSON", help="options of a data set of images or texts, or of a function")


# --- models -------------------------------------------------------------------------------------------------------


def _models(verb: Parser) -> None:
    verb.add_argument("text", nargs="?", default="", metavar="TEXT", help="those with it in their names alone")
    verb.add_argument("--parameters", action="store_true", help="count those of torch modules too, which takes seconds")
    verb.add_argument("--classes", type=count, default=1000, metavar="N", help="when counting them (default: 1000)")


# --- profile, plan, simulate --------------------------------------------------------------------------------------


def _profile(verb: Parser) -> None:
    model_options(verb)
    verb.add_argument("--device-type", default=None, metavar="NAME", help="name of the device type measured")
    verb.add_argument(
        "--repeats",
        type=whole(1, 1000),
        help="timed passes (default: 5; up to 30 of short steps, or until the layers add up to a step)",
    )
    verb.add_argument(
        "--beside", type=count, metavar="N", help="with N processes at the same work, as other workers will be"
    )
    verb.add_argument(
        "--out",
        type=expanded,
        required=True,
        metavar="FILE",
        help="profile JSON (.json), or a graph.txt under another name",
    )


def _plan(verb: Parser) -> None:
    machine_options(verb)
    verb.add_argument(
        "--planner",
        action="append",
        choices=tuple(PLANNERS),
        help="repeat it to compare (default: optimal; model-parallel where a schedule needs several stages a device)",
    )
    verb.add_argument(
        "--schedule",
        choices=tuple(SCHEDULE_RULES),
        help="the order of forwards and backwards (default: 1f1b)",
    )
    verb.add_argument(
        "--num-microbatches", type=whole(1, 4 * MOST_LIKE_DEVICES), help="minibatches of one step of a flush schedule"
    )
    verb.add_argument("--recompute", action="store_true", help="run forwards again before backwards, to save memory")
    verb.add_argument(
        "--pipelines", type=count, metavar="P", help="split the devices into P pipelines that train most together"
    )
    replication_option(verb)
    planner_options(verb)
    verb.add_argument("--out", type=expanded, metavar="PLAN.json", help="where to write the (first) plan")


def _simulate(verb: Parser) -> None:
    plan_argument(verb)
    machine_options(verb)
    minibatches_option(verb, "to simulate")
    replication_option(verb)
    stragglers_option(verb)
    replan_option(verb)
    verb.add_argument(
        "--epoch-minibatches",
        type=count,
        metavar="N",
        help="of an epoch: for --replan epoch (default: a tenth); beside a kill, to go on from the end "
        "of the last one (default: all are one)",
    )
    verb.add_argument("--seed", type=whole(0, 2**64), help="of what a rule of several pipelines draws (default: 0)")
    verb.add_argument(
        "--restart-seconds",
        type=positive,
        metavar="S",
        help=f"from a kill until its pipeline trains again (default: {RESTART_SECONDS:g})",
    )
    verb.add_argument("--trace", type=chrome_file, metavar="FILE.json", help="write a Chrome/Perfetto trace")


def _sweep(verb: Parser) -> None:
    machine_options(verb)
    for name, known in (("planner", PLANNERS), ("schedule", SCHEDULE_RULES), ("compression", RATIOS)):
        told = "repeatable (default: none)" if known is RATIOS else "repeatable (default: three)"
        verb.add_argument(f"--{name}", action="append", choices=tuple(known), metavar="NAME", help=told)
    verb.add_argument(
        "--variant",
        action="append",
        default=[],
        metavar="LABEL=FILE",
        help="a further profile of the network, such as at another voxel size: all of it on this one, too; repeatable",
    )
    verb.add_argument("--minibatches", type=whole(8, MOST_MINIBATCHES), default=48, help="simulated (default: 48)")
    verb.add_argument("--out", type=expanded, metavar="DIR", help="the table, the picture, and plans of the best edge")


# --- run, replay --------------------------------------------------------------------------------------------------


# --- runs ---------------------------------------------------------------------------------------------------------


def _runs_list(verb: Parser) -> None:
    verb.add_argument(
        "--folder",
        type=expanded,
        default=Path("runs"),
        metavar="DIR",
        help="default: runs. In the column `stages`, 2-1 means that the first stage has two replicas and the next has "
        "one; pipelines have a + between them",
    )


def _runs_compare(verb: Parser) -> None:
    verb.add_argument("runs", type=expanded, nargs="+", metavar="RUN", help="their folders, or their names in runs/")


def _one_run(verb: Parser) -> None:
    verb.add_argument("run", type=expanded, metavar="RUN", help="its folder, or its name in runs/")


def _runs_replan(verb: Parser) -> None:
    _one_run(verb)
    verb.add_argument(
        "plan", type=expanded, metavar="PLAN", help="for the same network and the run's devices, or some of them"
    )
    verb.add_argument("--reason", default="", metavar="TEXT", help="why, for the record")


def _runs_attach(verb: Parser) -> None:
    _one_run(verb)
    log_option(verb)


def _runs_export(verb: Parser) -> None:
    _one_run(verb)
    verb.add_argument(
        "--chrome", "--perfetto", type=chrome_file, required=True, metavar="FILE.json", help="where to write the trace"
    )


# --- clusters -----------------------------------------------------------------------------------------------------


def _cluster_file(verb: Parser, *, named: bool = True) -> None:
    verb.add_argument(
        "file",
        type=cluster_file if named else expanded,
        metavar="FILE",
        help="as of --cluster: TOML, a hostfile, the yml of PipeDream, SparsePipe, SDPipe or Ray, or slurm",
    )


def _cluster_measure(verb: Parser) -> None:
    _cluster_file(verb, named=False)  # it writes beside the file
    verb.add_argument("--device", choices=DEVICES, help="default: GPUs where torch sees any, else the CPU")
    verb.add_argument(
        "--out",
        type=expanded,
        metavar="FILE.toml",
        help="where it is written (default: FILE itself, or FILE.toml beside it); comments are not kept",
    )


def _runs_drift(verb: Parser) -> None:
    _one_run(verb)
    machine_options(verb)


# --- traces -------------------------------------------------------------------------------------------------------


def _one_trace(verb: Parser) -> None:
    verb.add_argument(
        "file",
        type=expanded,
        metavar="FILE",
        help="a run's folder or its name in runs/, a Chrome trace, or a job's operations (.parquet)",
    )


def _trace_export(verb: Parser) -> None:
    _one_trace(verb)
    verb.add_argument(
        "--out",
        "--perfetto",
        "--chrome",
        type=expanded,
        required=True,
        metavar="FILE",
        help=".json for Perfetto and Chrome, .html for a page of its own",
    )


# --- export, reproduce --------------------------------------------------------------------------------------------


def _export(verb: Parser) -> None:
    plan_argument(verb)
    verb.add_argument("--profile", metavar="FILE", help="profile of the model: adds gpus=N.txt")
    verb.add_argument("--model", metavar="M", help="adds the stages as Python modules")
    verb.add_argument("--classes", type=count, metavar="N", help="of that model (default: 10)")
    verb.add_argument("--out", type=expanded, required=True, metavar="DIR", help="folder to write the files to")


def _reproduce(verb: Parser) -> None:
    verb.add_argument("figures", nargs="*", metavar="NAME", help="notebooks or figures by name (default: all)")
    verb.add_argument(
        "--jobs", type=count, default=1, metavar="N", help="notebooks side by side, but for those that time"
    )
    verb.add_argument(
        "--data", default=None, metavar="D", help="a data set's folder or name (default: synthetic shapes)"
    )
    verb.add_argument(
        "--out", type=expanded, default=Path("figures"), metavar="DIR", help="where figures go (default: figures)"
    )
    verb.add_argument(
        "-p",
        "--parameter",
        nargs=2,
        action="append",
        default=[],
        metavar=("NAME", "VALUE"),
        dest="parameters",
        help="of every notebook that has it, such as -p epochs 4 or -p train_model minkvgg16bn-narrow; repeatable",
    )
    verb.add_argument(
        "--only-changed", action="store_true", help="skip notebooks whose text, code and inputs are as before"
    )
    verb.add_argument(
        "--resume", action="store_true", help="go on where a batch failed: skip notebooks that ran to their end"
    )
    paper = verb.add_argument_group("for a paper", "what all figures of the batch are exported with")
    paper.add_argument(
        "--width", type=positive, metavar="INCHES", help="of each PDF: 3.5 is a column of IEEE's, 7 the default"
    )
    paper.add_argument("--height", type=positive, metavar="INCHES", help="of each PDF (default: the figure's shape)")
    paper.add_argument("--font", metavar="FAMILY", help="of all text, one that is installed, such as 'Times New Roman'")
    paper.add_argument("--no-title", action="store_true", help="no titles and notes: captions carry them")
    verb.add_argument("--no-pictures", action="store_true", help="tables and their provenance alone: no browser needed")


GROUPS = {
    "cluster": "show a cluster's file, check its hosts, measure its links and devices",
    "data": "list, fetch, make, inspect and check data sets",
    "runs": "list, show, compare, follow and end runs",
    "interference": interference_arguments.SUMMARY,
    "trace": "look at, replay and explain the trace of a run, or of a job that others ran",
}
# verb: (its summary, what adds its options); in the order of --help
OPTIONS: Mapping[str, tuple[str, Callable[[Parser], None]]] = {
    "data list": ("data sets with a manifest", _data_list),
    "data fetch": ("download a data set, verified by SHA-256", _data_fetch),
    "data make": ("write seeded CAD-like shapes as OFF meshes in ModelNet layout", _data_make),
    "data info": ("what a folder holds: classes, splits, counts, formats", _data_info),
    "data check": ("read every file of a data set once and list what would stop a run", _data_check),
    "models": ("list the networks that can be named, and how to name one of your own", _models),
    "profile": ("measure every layer of a model", _profile),
    "plan": ("choose stages, replicas and schedule", _plan),
    "simulate": ("predict the timeline of a plan", _simulate),
    "sweep": ("plan and simulate many combinations: throughput against memory, and the best edge", _sweep),
    "run": ("train with a plan", run_options.run),
    "replay": ("sleep through a plan with the real runtime, on a cluster that need not be here", run_options.replay),
    "runs list": ("the runs in a folder", _runs_list),
    "runs show": ("one run", _one_run),
    "runs compare": ("runs side by side", _runs_compare),
    "runs attach": ("follow a run of this machine to its end", _runs_attach),
    "runs stop": ("end a run of this machine at its next whole update, with a checkpoint to resume from", _one_run),
    "runs replan": ("have a run of this machine go on under another plan, while it trains", _runs_replan),
    "runs cancel": ("end a run of this machine now", _one_run),
    "runs export": ("write the trace of a run for Perfetto and Chrome", _runs_export),
    "runs drift": ("how slow each rank and link was, beside its profile, and when that changed", _runs_drift),
    "cluster show": ("the hosts and devices that a file tells of, and which kind of file it is", _cluster_file),
    "cluster check": (
        "reach every host: versions, devices, memory, disk, clock, and whether they reach each other",
        _cluster_file,
    ),
    "cluster measure": (
        "bandwidth and latency of each link, speed of each device; written for planners",
        _cluster_measure,
    ),
    "trace show": ("where the time went, and who waited for whom", _one_trace),
    "trace replay": ("simulate every step from its own durations and orders", _one_trace),
    "trace whatif": ("what a step would take without what is slow, and the culprit", _one_trace),
    "trace export": ("write a trace for Perfetto and Chrome, or as a page", _trace_export),
    **interference_arguments.OPTIONS,
    "export": ("write a plan as PipeDream's files and as readable stage modules", _export),
    "reproduce": ("run the notebooks and export their figures", _reproduce),
}


def planner_options(verb: Parser) -> None:
    """What `plan` takes for the planners that have it."""
    verb.add_argument("--quick", action="store_true", help="optimal: a tenth of a second for any network, wider gaps")
    verb.add_argument("--rescore", type=count, metavar="K", help="optimal: simulate the K best plans, take the fastest")
    verb.add_argument(
        "--cost-model",
        choices=COST_MODELS,
        default="default",
        help="optimal: published is SparsePipe's, without its faults; dnn-partitioning its graphs' (default: default)",
    )
    verb.add_argument(
        "--objective",
        choices=OBJECTIVES,
        help="optimal: what is to be least: period (time per minibatch) or latency (of inference; default: period)",
    )
    verb.add_argument(
        "--period-at-most", type=positive, metavar="S", help="with --objective latency: seconds from input to input"
    )
    verb.add_argument("--all-devices", action="store_true", help="leave no device unused")
    verb.add_argument(
        "--activation-compression-ratio",
        type=positive,
        metavar="R",
        help="plan as if outputs crossed boundaries in 1/R of their bytes",
    )
    verb.add_argument(
        "--stages-per-device",
        type=count,
        metavar="V",
        help="model-parallel: interleave V stages on each device (default: as few as the schedule takes)",
    )
    verb.add_argument("--straight-pipeline", action="store_true", help="no replication")
    verb.add_argument(
        "--use-memory-constraint", action="store_true", help="the published planners: each device's memory is a limit"
    )
    verb.add_argument(
        "--factor", type=float, choices=[2.0, 4.0], help="pipedream: of gradient averaging, 2 in SparsePipe's copy"
    )
    verb.add_argument(
        "--sizes",
        type=counts,
        metavar="N,…",
        help="dynpipe: layers of each stage now (default: as model-parallel cuts)",
    )
    verb.add_argument("--top-k", type=count, metavar="K", help="dynpipe: cuts looked at in each stage (default: 2)")
    verb.add_argument("--use-fewer-machines", action="store_true", help="pipedream: machines may stay unused")
