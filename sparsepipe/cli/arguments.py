"""The verbs of the `sparsepipe` command with their options: one function a verb, and a row each in OPTIONS.

Choices are read from the library's own tables, none of which brings torch.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from ..launching import LAUNCHERS, LOCAL, SLURM
from ..planning import PLANNERS, PlanSettings, planners_with
from ..planning.simulator import SimulationSettings
from ..planning.sweeps import RATIOS
from ..runtime.config import DEVICES, PARTS, ProfileConfig
from ..util.io.fields import MOST_MINIBATCHES
from ..util.io.paths import expanded
from ..util.io.settings import Setting, rows
from . import interference_verbs
from .options import (
    Parser,
    chrome_file,
    cluster_file,
    count,
    log_option,
    machine_options,
    of_run,
    plan_argument,
    positive,
    ray_address_option,
    replan_option,
    replication_option,
    run_dir_option,
    setting_options,
    stragglers_option,
    whole,
)
from .orders import order_options

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
    setting_options(verb, of_run("data_args", "voxel_size"), defaults={"voxel_size": "0.05"})


def _data_check(verb: Parser) -> None:
    verb.add_argument("path", metavar="PATH", help="folder of a data set, a manifest's name, or one's own function")
    settings = of_run("data_args", "voxel_size", "num_points", "task", "features")
    setting_options(verb, settings, defaults={"voxel_size": "0.05", "task": "all that can be"})
    verb.add_argument("--engine", choices=("native", "minkowski"), help="that is to hold the voxels (default: native)")


def _models(verb: Parser) -> None:
    verb.add_argument("text", nargs="?", default="", metavar="TEXT", help="those with it in their names alone")
    verb.add_argument("--parameters", action="store_true", help="count those of torch modules too, which takes seconds")
    verb.add_argument("--classes", type=count, default=1000, metavar="N", help="when counting them (default: 1000)")


# --- profile, plan, simulate --------------------------------------------------------------------------------------


def _profile(verb: Parser) -> None:
    shared = ("model", "model_args", "data", "data_args", "loss", "loss_args", "voxel_size", "batch_size", "num_points")
    settings = [*of_run(*shared, "engine", "device", "threads", "seed"), *rows(ProfileConfig).values()]
    setting_options(verb, settings, defaults={"voxel_size": "", "batch_size": "", "threads": "1"})
    verb.add_argument(
        "--out",
        type=expanded,
        required=True,
        metavar="FILE",
        help="profile JSON (.json), or a graph.txt under another name",
    )


def _plan(verb: Parser) -> None:
    machine_options(verb)
    planner, *others = rows(PlanSettings).values()
    setting_options(verb, [planner], repeated=True)
    setting_options(verb, others)
    verb.add_argument(
        "--pipelines", type=count, metavar="P", help="split the devices into P pipelines that train most together"
    )
    replication_option(verb)
    order_options(verb.add_argument_group("the time lost to sizes of minibatches"), plans=True)
    setting_options(verb.add_argument_group("settings of planners"), of_planners())
    verb.add_argument("--out", type=expanded, metavar="PLAN.json", help="where to write the (first) plan")


def of_planners() -> Iterator[Setting]:
    """Yield the settings of all planners once, each with the planners that have it."""
    for name, row in {name: row for kind in PLANNERS.values() for name, row in rows(kind).items()}.items():
        yield replace(row, help=f"{', '.join(planners_with(name))}: {row.help}")


def _simulate(verb: Parser) -> None:
    plan_argument(verb)
    machine_options(verb)
    replication_option(verb)
    stragglers_option(verb)
    replan_option(verb)
    setting_options(verb, rows(SimulationSettings).values())
    order_options(verb)
    verb.add_argument("--trace", type=chrome_file, metavar="FILE.json", help="write a Chrome/Perfetto trace")


def _sweep(verb: Parser) -> None:
    machine_options(verb)
    swept = [rows(PlanSettings)[name] for name in ("planner", "schedule")]
    setting_options(verb, swept, repeated=True, defaults=dict.fromkeys(("planner", "schedule"), "three"))
    told = "encoding of what crosses boundaries; repeatable (default: none)"
    verb.add_argument("--compression", action="append", choices=tuple(RATIOS), help=told)
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


def _run(verb: Parser) -> None:
    verb.add_argument(
        "plan",
        type=expanded,
        nargs="?",
        metavar="PLAN",
        help="a plan; a hybrid_conf.json with its gpus=N.txt beside it or a module for each layer of the model; or the "
        "driver yml of PipeDream or SparsePipe, which names all else too",
    )
    verb.add_argument(
        "--launcher",
        choices=(*LAUNCHERS, SLURM),
        help="ssh where --cluster has hosts beyond this one, else local; ray: nodes of Ray; slurm prints a script for "
        "sbatch",
    )
    ray_address_option(verb)
    verb.add_argument("--submit", action="store_true", help="with --launcher slurm: give the script to sbatch")
    verb.add_argument(
        "--cluster", type=cluster_file, metavar="FILE", help="the hosts to run on, in the order of the ranks"
    )
    verb.add_argument(
        "--profile",
        action="append",
        metavar="[TYPE=]FILE",
        help="of the model: the run says while it goes on which rank or link takes longer than that",
    )
    verb.add_argument(
        "--port",
        type=int,
        help="meet on this loopback port instead of through a file; what listens there asks for no secret: any user of "
        "this machine can reach it while the run is at work, so leave it out where others have accounts",
    )
    verb.add_argument("--detach", action="store_true", help="return at once; the run outlives this terminal")
    log_option(verb)
    replication_option(verb)
    stragglers_option(verb)
    replan_option(verb)
    verb.add_argument(
        "--predictor",
        type=expanded,
        metavar="FILE",
        help="for --replan predicted (or epoch): of this machine, as interference measure --predictor writes it",
    )
    run_dir_option(verb)
    verb.add_argument(
        "--forward-only",
        type=expanded,
        metavar="CHECKPOINT",
        help="train nothing: compute the outputs for the validation split with the weights of a checkpoint, or of the "
        "newest of a run (its folder, or its name in runs/), and write predictions.npz; what is not given is as in "
        "that run; of several pipelines the first computes them. Imports the Python files that the run's config.json "
        "names as model, data or loss: of a run that somebody sent read them first",
    )
    verb.add_argument(
        "--resume",
        type=expanded,
        metavar="RUN",
        help="go on from the last checkpoint of this run: its folder, or its name in runs/. Imports the Python files "
        "that its config.json names as model, data or loss, and connects to the hosts that its hosts.toml names: of a "
        "run that somebody sent read these first",
    )
    for name, group in PARTS.items():
        summary = (group.__doc__ or "").partition("\n")[0]
        setting_options(verb.add_argument_group(f"settings of {name}", summary), rows(group).values())


def _replay(verb: Parser) -> None:
    plan_argument(verb)
    machine_options(verb)
    verb.add_argument(
        "--launcher",
        choices=tuple(LAUNCHERS),
        default=LOCAL,
        help="local (the default): on this machine, whatever hosts the cluster has; ssh: on them; ray: on nodes of Ray",
    )
    ray_address_option(verb)
    setting_options(verb, [rows(SimulationSettings)["minibatches"]])
    verb.set_defaults(minibatches=SimulationSettings.minibatches)
    replication_option(verb)
    stragglers_option(verb)
    replan_option(verb)
    setting_options(verb, of_run("encrypt", "max_restarts", "timeout_seconds"))
    run_dir_option(verb)


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
    "interference": interference_verbs.SUMMARY,
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
    "run": ("train with a plan", _run),
    "replay": ("sleep through a plan with the real runtime, on a cluster that need not be here", _replay),
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
    **interference_verbs.OPTIONS,
    "export": ("write a plan as PipeDream's files and as readable stage modules", _export),
    "reproduce": ("run the notebooks and export their figures", _reproduce),
}
