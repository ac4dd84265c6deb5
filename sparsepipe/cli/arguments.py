"""The verbs of the `sparsepipe` command with their options: one function a verb, and a row each in OPTIONS.

Verbs that start runs, and those of files, have their options in their own modules. Choices are read from the library's
own tables, none of which brings torch.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from ..planning import LAYOUT_SCHEDULE, PLANNERS, PlanSettings, planners_with
from ..planning.simulator import SimulationSettings
from ..planning.sweeps import RATIOS
from ..runtime.config import DEVICES, ProfileConfig
from ..util.io.fields import MOST_MINIBATCHES
from ..util.io.files import expanded
from ..util.io.settings import Setting, rows
from . import emulate_verb, interference_verbs, plan_file_verbs, run_file, study_verbs, train_verbs
from .options import (
    Parser,
    chrome_file,
    cluster_file,
    count,
    flags,
    inject_option,
    layout_option,
    log_option,
    machine_options,
    of_run,
    plan_argument,
    positive,
    replan_option,
    replication_option,
    setting_options,
    whole,
)
from .orders import order_options
from .plan_reports import report_options

# --- data ---------------------------------------------------------------------------------------------------------


def _data_list(verb: Parser) -> None:
    """No options of its own."""


def _data_fetch(verb: Parser) -> None:
    verb.add_argument("name", metavar="NAME", help="data set with a manifest, as data list prints it")
    verb.add_argument(
        *flags("--out"), type=expanded, metavar="DIR", help="folder of the download (default: the last data folder)"
    )


def _data_make(verb: Parser) -> None:
    verb.add_argument("what", choices=["shapes"], help="CAD-like shapes of 17 families")
    verb.add_argument(*flags("--out"), type=expanded, required=True, metavar="DIR", help="folder of the data set")
    verb.add_argument("--train", type=count, default=32, metavar="N", help="training shapes per family (default: 32)")
    verb.add_argument("--test", type=count, default=8, metavar="N", help="test shapes per family (default: 8)")
    verb.add_argument("--seed", type=whole(0, 2**64), default=0, metavar="N", help="random seed (default: 0)")


_PATH = "data set: folder, name of a manifest, or path/data.py:function"


def _data_info(verb: Parser) -> None:
    verb.add_argument("path", metavar="PATH", help=_PATH)
    setting_options(verb, of_run("data_args", "voxel_size"), defaults={"voxel_size": "0.05"})


def _data_check(verb: Parser) -> None:
    verb.add_argument("path", metavar="PATH", help=_PATH)
    settings = of_run("data_args", "voxel_size", "num_points", "task", "features")
    setting_options(verb, settings, defaults={"voxel_size": "0.05", "task": "all that the data have"})
    verb.add_argument(
        "--engine",
        choices=("native", "minkowski"),
        help="sparse-convolution backend whose limits are checked (default: native)",
    )


def _models(verb: Parser) -> None:
    verb.add_argument(
        "text", nargs="?", default="", metavar="TEXT", help="substring of the listed names (default: all networks)"
    )
    verb.add_argument(
        "--parameters", action="store_true", help="also parameter counts of torch modules (takes seconds)"
    )
    verb.add_argument(
        "--classes", type=count, default=1000, metavar="N", help="number of classes for --parameters (default: 1000)"
    )


# --- profile, plan, simulate --------------------------------------------------------------------------------------


def _profile(verb: Parser) -> None:
    shared = ("model", "model_args", "data", "data_args", "loss", "loss_args", "voxel_size", "batch_size", "num_points")
    of_data = ("collate", "crop", "features")
    settings = [
        *of_run(*shared, *of_data, "freeze", "engine", "device", "threads", "seed"),
        *rows(ProfileConfig).values(),
    ]
    setting_options(verb, settings, defaults={"voxel_size": "", "batch_size": "", "threads": "1"})
    verb.add_argument(
        *flags("--out"), type=expanded, metavar="FILE", help="file of the profile: JSON for .json, else graph.txt"
    )


def _plan(verb: Parser) -> None:
    machine_options(verb)
    planner, *others = rows(PlanSettings).values()
    setting_options(verb, [planner], repeated=True)
    setting_options(verb, others)
    verb.add_argument(
        "--pipelines",
        type=count,
        metavar="P",
        help="number of pipeline replicas (default: 1)",
    )
    layout_option(verb)
    replication_option(verb)
    order_options(verb.add_argument_group("time lost to sizes of minibatches"), plans=True)
    verb.add_argument(
        *flags("--out"),
        type=expanded,
        metavar="PLAN.json",
        help="file of the plan, or of the first of several planners",
    )
    verb.add_argument(
        *flags("--warm-start"),
        type=expanded,
        metavar="PLAN",
        help="plan of the same network and devices that the optimal planner starts from, such as the last one",
    )
    report_options(verb.add_argument_group("uncertain costs and hardware"))
    setting_options(verb.add_argument_group("planners", "options of single planners"), of_planners())


def of_planners() -> Iterator[Setting]:
    """Yield the settings of all planners once, each with the planners that have it."""
    for name, row in {name: row for kind in PLANNERS.values() for name, row in rows(kind).items()}.items():
        yield replace(row, help=f"{row.help} ({', '.join(planners_with(name))})")


def _simulate(verb: Parser) -> None:
    plan_argument(verb, optional=True)
    machine_options(verb)
    layout_option(verb)
    of_layout = [rows(PlanSettings)[name] for name in ("schedule", "num_microbatches")]
    setting_options(verb, of_layout, defaults={"schedule": f"{LAYOUT_SCHEDULE}, for --layout"})
    replication_option(verb)
    inject_option(verb)
    replan_option(verb)
    setting_options(verb, rows(SimulationSettings).values())
    order_options(verb)
    verb.add_argument(
        "--trace", type=chrome_file, metavar="FILE.json", help="file of the simulated trace, for Perfetto"
    )


def _sweep(verb: Parser) -> None:
    machine_options(verb)
    swept = [rows(PlanSettings)[name] for name in ("planner", "schedule")]
    setting_options(verb, swept, repeated=True, defaults=dict.fromkeys(("planner", "schedule"), "three"))
    verb.add_argument(
        "--compression",
        action="append",
        choices=tuple(RATIOS),
        help="encoding of activations at stage boundaries; repeatable (default: none)",
    )
    verb.add_argument(
        "--variant",
        action="append",
        default=[],
        metavar="LABEL=FILE",
        help="another profile of the network, such as for another voxel size; repeatable",
    )
    verb.add_argument(
        "--minibatches",
        type=whole(8, MOST_MINIBATCHES),
        default=48,
        metavar="N",
        help="number of simulated minibatches per candidate (default: 48)",
    )
    verb.add_argument(
        *flags("--out"),
        type=expanded,
        metavar="DIR",
        help="folder of the table, the figure and the plans on the Pareto front",
    )


# --- runs ---------------------------------------------------------------------------------------------------------

_RUN = "run: its folder, or its name in runs/"


def _runs_list(verb: Parser) -> None:
    verb.add_argument(
        "--folder",
        type=expanded,
        default=Path("runs"),
        metavar="DIR",
        help="folder of the runs (default: runs). Column stages: replicas per stage, as 2-1; + separates pipelines",
    )


def _runs_compare(verb: Parser) -> None:
    verb.add_argument("runs", type=expanded, nargs="+", metavar="RUN", help="runs: their folders, or names in runs/")


def _one_run(verb: Parser) -> None:
    verb.add_argument("run", type=expanded, metavar="RUN", help=_RUN)


def _runs_logs(verb: Parser) -> None:
    _one_run(verb)
    verb.add_argument("-f", "--follow", action="store_true", help="also new lines until the run ends")
    verb.add_argument(
        "--rank", type=whole(0), metavar="R", help="rank of the printed log (default: all ranks and the launcher)"
    )
    verb.add_argument(
        "--lines",
        type=whole(0),
        default=40,
        metavar="N",
        help="number of last lines per log; 0: all lines (default: 40)",
    )


def _runs_rm(verb: Parser) -> None:
    verb.add_argument("runs", type=expanded, nargs="+", metavar="RUN", help="runs to delete: their names in --folder")
    verb.add_argument(
        "--folder", type=expanded, default=Path("runs"), metavar="DIR", help="folder of the runs (default: runs)"
    )
    verb.add_argument("-y", "--yes", action="store_true", help="deletion without confirmation")


def _runs_replan(verb: Parser) -> None:
    _one_run(verb)
    verb.add_argument(
        "plan", type=expanded, metavar="PLAN", help="plan of the same network, for the run's devices or some of them"
    )
    verb.add_argument("--reason", default="", metavar="TEXT", help="reason of the change, for the record")


def _runs_attach(verb: Parser) -> None:
    _one_run(verb)
    log_option(verb)


def _runs_export(verb: Parser) -> None:
    _one_run(verb)
    verb.add_argument(
        *flags("--out", "--chrome", "--perfetto"),
        type=chrome_file,
        required=True,
        metavar="FILE.json",
        help="trace file for Perfetto and Chrome",
    )


def _runs_drift(verb: Parser) -> None:
    _one_run(verb)
    machine_options(verb)


# --- clusters and traces ------------------------------------------------------------------------------------------


def _cluster_file(verb: Parser, *, named: bool = True) -> None:
    verb.add_argument(
        "file",
        type=cluster_file if named else expanded,
        metavar="FILE",
        help="cluster: TOML, hostfile, yml of PipeDream, SparsePipe, SDPipe or Ray, or slurm",
    )


def _cluster_measure(verb: Parser) -> None:
    _cluster_file(verb, named=False)  # it writes beside the file
    verb.add_argument(
        "--device", choices=DEVICES, help="measured devices (default: GPUs if torch finds any, else the CPU)"
    )
    verb.add_argument(
        *flags("--out"),
        type=expanded,
        metavar="FILE.toml",
        help="file of the measured cluster (default: FILE with the suffix .toml)",
    )


def _one_trace(verb: Parser) -> None:
    verb.add_argument(
        "file",
        type=expanded,
        metavar="FILE",
        help="trace: a run's folder or its name in runs/, a Chrome trace, torch.profiler's traces (file, folder or "
        "pattern), or a job's operations (.parquet)",
    )


def _trace_export(verb: Parser) -> None:
    _one_trace(verb)
    verb.add_argument(
        *flags("--out", "--perfetto", "--chrome"),
        type=expanded,
        required=True,
        metavar="FILE",
        help="output file: .json for Perfetto and Chrome, .html for a web page",
    )


# --- reproduce ----------------------------------------------------------------------------------------------------


def _reproduce(verb: Parser) -> None:
    verb.add_argument("figures", nargs="*", metavar="NAME", help="notebooks or figures by name (default: all)")
    verb.add_argument(
        "--jobs",
        type=count,
        default=1,
        metavar="N",
        help="number of concurrent notebooks; notebooks that measure times run alone (default: 1)",
    )
    verb.add_argument(
        *flags("--data"), default=None, metavar="D", help="data set: folder or name (default: synthetic shapes)"
    )
    verb.add_argument(
        *flags("--out"),
        type=expanded,
        default=Path("figures"),
        metavar="DIR",
        help="folder of figures (default: figures)",
    )
    verb.add_argument(
        "-p",
        "--parameter",
        nargs=2,
        action="append",
        default=[],
        metavar=("NAME", "VALUE"),
        dest="parameters",
        help="notebook parameter, such as -p epochs 4; repeatable",
    )
    verb.add_argument("--only-changed", action="store_true", help="only notebooks whose text, code or inputs changed")
    verb.add_argument(
        "--resume", action="store_true", help="continuation of a failed batch, without finished notebooks"
    )
    verb.add_argument("--no-pictures", action="store_true", help="only tables and provenance; needs no browser")
    paper = verb.add_argument_group("for a paper", "every exported figure")
    paper.add_argument(
        "--width", type=positive, metavar="INCHES", help="width of each PDF; an IEEE column is 3.5 (default: 7)"
    )
    paper.add_argument(
        "--height", type=positive, metavar="INCHES", help="height of each PDF (default: in proportion to the width)"
    )
    paper.add_argument("--font", metavar="FAMILY", help="installed font of all text, such as 'Times New Roman'")
    paper.add_argument("--no-title", action="store_true", help="figures without titles and notes, for captions")


GROUPS = {
    "cluster": "show, check and measure clusters",
    "data": "list, fetch, make, inspect and check data sets",
    "runs": "list, show, compare, follow, stop and delete runs",
    "interference": interference_verbs.SUMMARY,
    "study": study_verbs.SUMMARY,
    "trace": "show, simulate, explain and export traces",
}
# verb: (its summary, what adds its options); in the order of --help
OPTIONS: Mapping[str, tuple[str, Callable[[Parser], None]]] = {
    "data list": ("list data sets with a manifest", _data_list),
    "data fetch": ("download a data set, verified by SHA-256", _data_fetch),
    "data make": ("make seeded CAD-like shapes (OFF, ModelNet layout)", _data_make),
    "data info": ("show classes, splits, counts and sizes of a data set", _data_info),
    "data check": ("read every file once, list problems that stop a run", _data_check),
    "models": ("list networks, and how to name your own network", _models),
    "profile": ("measure every layer of a network", _profile),
    "plan": ("choose stages, replicas and schedule", _plan),
    "simulate": ("predict the timeline of a plan", _simulate),
    "sweep": ("plan and simulate many combinations, find the best", _sweep),
    **run_file.OPTIONS,
    **train_verbs.OPTIONS,
    **emulate_verb.OPTIONS,
    **plan_file_verbs.OPTIONS,
    "runs list": ("list the runs in a folder", _runs_list),
    "runs show": ("show a run: state, throughput, settings, plan", _one_run),
    "runs compare": ("compare runs in one table", _runs_compare),
    "runs logs": ("print the logs of a run's processes", _runs_logs),
    "runs attach": ("follow a run of this machine to its end", _runs_attach),
    "runs stop": ("stop a run at its next update, with a checkpoint", _one_run),
    "runs replan": ("switch a running job to another plan", _runs_replan),
    "runs cancel": ("end a run at once", _one_run),
    "runs rm": ("delete runs, after confirmation", _runs_rm),
    "runs export": ("write a run's trace for Perfetto and Chrome", _runs_export),
    "runs drift": ("show slowdowns of ranks and links vs the profile", _runs_drift),
    "cluster show": ("show hosts, devices and links of a cluster's file", _cluster_file),
    "cluster check": ("check every host: versions, devices, memory, clock", _cluster_file),
    "cluster measure": ("measure links and devices, write a cluster file", _cluster_measure),
    "trace show": ("show where time went, and which ranks waited", _one_trace),
    "trace simulate": ("simulate each step from its measured operations", _one_trace),
    "trace whatif": ("estimate a step without slowdowns, find the cause", _one_trace),
    "trace export": ("write a trace for Perfetto and Chrome, or as a page", _trace_export),
    **interference_verbs.OPTIONS,
    "reproduce": ("run the notebooks and export their figures", _reproduce),
    **study_verbs.OPTIONS,
}
