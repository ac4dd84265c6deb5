"""Options that several verbs of the `sparsepipe` command have, one function each."""

import argparse

from ..dynamics.variants import LIVE, VARIANTS
from ..engines import ENGINES
from ..io.fields import MOST_LIKE_DEVICES, MOST_MINIBATCHES
from ..io.paths import expanded
from ..io.quantities import BANDWIDTH, SIZE
from ..replication import RULES
from ..runtime.config import DEVICES, RunConfig
from ..sinks import SINKS
from ..stragglers import KINDS
from .argument_types import MANY, cluster_file, count, count_or_all, positive, quantity, whole

Parser = argparse.ArgumentParser


def default(setting: str) -> object:
    """What a setting of a run is where nobody says, for the help of its option."""
    return RunConfig.__dataclass_fields__[setting].default


def model_options(verb: Parser) -> None:
    """What `profile` requires and `run` may take from the run it resumes: no defaults here, the library has them."""
    verb.add_argument("--model", metavar="M", help="minkvgg16bn, resnet50, …, or path/net.py:function")
    verb.add_argument("--model-args", metavar="JSON", help="arguments of a torch module's builder, a JSON object")
    verb.add_argument("--data", metavar="D", help="a data set's folder, a manifest's name, or path/data.py:function")
    verb.add_argument("--data-args", metavar="JSON", help="options of a data set of images or texts, or of a function")
    verb.add_argument("--loss", metavar="F", help="by name, or path/loss.py:function (default: the data's own)")
    verb.add_argument("--loss-args", metavar="JSON", help="settings of the loss, a JSON object")
    verb.add_argument(
        "--voxel-size", type=positive, metavar="S", help="edge of a voxel; clouds are scaled to a unit cube (run: 0.02)"
    )
    verb.add_argument("--batch-size", type=count, metavar="N", help="samples per minibatch (run: 32)")
    num_points_option(verb)
    verb.add_argument(
        "--engine",
        choices=tuple(ENGINES),
        help="default: native where it has machine code",
    )
    verb.add_argument("--device", choices=DEVICES, help=f"what layers are computed on (default: {default('device')})")
    verb.add_argument("--threads", type=count, metavar="N", help="cores of one device (profile: 1; run: shared evenly)")
    verb.add_argument(
        "--seed",
        type=whole(0, 2**64),
        metavar="N",
        help=f"of weights, samples and order; the same run for the same number of threads (default: {default('seed')})",
    )


def num_points_option(verb: Parser) -> None:
    verb.add_argument(
        "--num-points",
        type=count_or_all,
        metavar="N",
        help="most points of a cloud, and number sampled from a mesh (default: all; 1024 of a mesh)",
    )


def machine_options(verb: Parser) -> None:
    """The profiles, and the cluster: from a file, or as a number of like devices."""
    verb.add_argument(
        "--profile",
        action="append",
        metavar="[TYPE=]FILE",
        help="profile JSON, graph.txt or DynPipe's *_for_.txt, one per device type; or a graph of dnn-partitioning, "
        "which brings its devices; a name in data_manifests/profiles, too",
    )
    verb.add_argument(
        "--cluster",
        type=cluster_file,
        metavar="FILE",
        help="TOML, a hostfile, the yml of PipeDream, SparsePipe, SDPipe or Ray, slurm (the job at hand), or a name in "
        "data_manifests/clusters",
    )
    verb.add_argument("--server-file", type=expanded, metavar="FILE", help="SparsePipe's list of servers and profiles")
    verb.add_argument(
        "--devices",
        type=whole(-MANY, MOST_LIKE_DEVICES),
        action="append",
        metavar="N",
        help="like devices; twice: devices per node, nodes",
    )
    verb.add_argument(
        "--bandwidth", type=quantity(BANDWIDTH), action="append", metavar="B", help="such as 10GB/s, one per level"
    )
    verb.add_argument("--memory", type=quantity(SIZE), metavar="BYTES", help="memory of each device, such as 24GB")


def plan_argument(verb: Parser) -> None:
    verb.add_argument(
        "plan", type=expanded, metavar="PLAN", help="a plan, or a hybrid_conf.json with its gpus=N.txt beside it"
    )


def minibatches_option(verb: Parser, told: str) -> None:
    least = whole(1, MOST_MINIBATCHES)
    verb.add_argument("--minibatches", type=least, default=32, metavar="N", help=f"{told} (default: 32)")


def replication_option(verb: Parser) -> None:
    verb.add_argument(
        "--replication",
        metavar="RULE[:OPTION=VALUE,…]",
        help=f"how pipelines average: {', '.join(RULES)} (default: the plan's, which is partial-reduce)",
    )


def replan_option(verb: Parser) -> None:
    """How the plan follows devices that change while the run goes on."""
    listed = "; ".join(f"{name}: {kind.summary}" for name, kind in VARIANTS.items())
    told = f"{listed} (default: never; {LIVE.name} where no variant is named)"
    verb.add_argument("--replan", choices=tuple(VARIANTS), nargs="?", const=LIVE.name, metavar="VARIANT", help=told)


def stragglers_option(verb: Parser) -> None:
    verb.add_argument(
        "--straggler",
        action="append",
        metavar="KIND[:OPTION=VALUE,…]",
        help=f"make ranks slow, or end them: {', '.join(KINDS)}, such as slow:rank=1,factor=4; several add up",
    )


def log_option(verb: Parser) -> None:
    verb.add_argument(
        "--log",
        nargs=2,
        action="append",
        default=[],
        metavar=("KIND", "DIR"),
        help=f"send metrics on: {', '.join(SINKS)}, or path/file.py:function, which makes a sink of DIR; repeatable",
    )


def timeout_option(verb: Parser) -> None:
    verb.add_argument(
        "--timeout-seconds",
        type=positive,
        metavar="S",
        help=f"longest wait for another rank (default: {default('timeout_seconds'):g})",
    )


def run_dir_option(verb: Parser) -> None:
    verb.add_argument(
        "--run-dir", type=expanded, metavar="DIR", help="where the record goes (default: a new one in runs/)"
    )
