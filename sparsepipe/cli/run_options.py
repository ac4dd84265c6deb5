"""What `sparsepipe run` and `replay` take: the model, the optimizer, numerics, data, and what may go wrong."""

from typing import Any

from ..data.labels import TASKS
from ..data.minibatch_sizes import LAST_MINIBATCH
from ..io.paths import expanded
from ..launchers import LAUNCHERS, LOCAL, SLURM
from ..runtime.config import BALANCES, COMPRESSIONS, LEARNING_RATE_SCHEDULES, ON_LOST_HOST, OPTIMIZERS, PRECISIONS
from .argument_types import cluster_file, count, names, positive, whole
from .shared_options import (
    Parser,
    default,
    log_option,
    machine_options,
    minibatches_option,
    model_options,
    plan_argument,
    replan_option,
    replication_option,
    run_dir_option,
    stragglers_option,
    timeout_option,
)


def run(verb: Parser) -> None:
    verb.add_argument(
        "plan",
        type=expanded,
        nargs="?",
        metavar="PLAN",
        help="a plan; a hybrid_conf.json with its gpus=N.txt beside it or a module for each layer of the model; or the "
        "driver yml of PipeDream or SparsePipe, which names all else too",
    )
    model_options(verb)
    verb.add_argument(
        "--launcher",
        choices=(*LAUNCHERS, SLURM),
        help="ssh where --cluster has hosts beyond this one, else local; ray: nodes of Ray; slurm prints a script for "
        "sbatch",
    )
    _ray_address_option(verb)
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
    _optimizer_options(verb)
    _numerics_options(verb)
    _data_options(verb)
    _fault_options(verb)
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


def _optimizer_options(verb: Parser) -> None:
    def option(name: str, told: str, **settings: Any) -> None:
        told = f"{told} (default: {default(name.lstrip('-').replace('-', '_'))})"
        verb.add_argument(name, help=told, **settings)

    option("--epochs", "how often each training sample is learned from", type=count, metavar="N")
    verb.add_argument("--minibatches", type=count, metavar="N", help="stop after this many minibatches")
    option("--learning-rate", "at first, after the warm-up", type=positive, metavar="F")
    option("--momentum", "of sgd, 0 to 1", type=float, metavar="F")
    option("--weight-decay", "of the optimizer", type=float, metavar="F")
    verb.add_argument(
        "--no-validation", dest="validate", action="store_false", default=None, help="no accuracy after each epoch"
    )
    option("--optimizer", "what updates the weights", choices=OPTIMIZERS)
    option("--learning-rate-schedule", "how the rate falls over the run", choices=LEARNING_RATE_SCHEDULES)
    option("--warmup-minibatches", "that the rate rises over, linearly", type=whole(0), metavar="N")
    option("--learning-rate-decay", "factor of step and exponential, power of polynomial", type=float, metavar="F")
    option("--decay-epochs", "from one such factor to the next", type=positive, metavar="N")
    verb.add_argument("--clip-norm", type=positive, metavar="NORM", help="of all gradients; schedules that flush")


def _numerics_options(verb: Parser) -> None:
    verb.add_argument(
        "--synchronised-batch-norm",
        action="store_true",
        default=None,
        help="replicas of a stage share the statistics of a round",
    )
    verb.add_argument(
        "--precision",
        choices=PRECISIONS,
        help=f"of computing; weights stay in float32 (default: {default('precision')})",
    )
    verb.add_argument("--loss-scale", type=positive, metavar="S", help="of float16: the first (default: 65536)")
    verb.add_argument(
        "--compression",
        choices=COMPRESSIONS,
        help="of what crosses boundaries; zeros, lossless: exact (default: lossless through sockets)",
    )
    verb.add_argument(
        "--no-shared-memory",
        action="store_false",
        dest="shared_memory",
        default=None,
        help="send payloads through sockets on one host too",
    )


def _data_options(verb: Parser) -> None:
    verb.add_argument("--task", choices=TASKS, help="default: what the model's name and the data say")
    verb.add_argument("--augmentation", metavar="NAME", help="of the training split")
    verb.add_argument(
        "--last-minibatch",
        choices=LAST_MINIBATCH,
        help="of an epoch, with fewer samples than the others: keep it; merge it into the one before where it is a "
        "single sample, on which batch norm may fail; or drop it (default: merge)",
    )
    verb.add_argument("--balance", choices=BALANCES, help="minibatches alike in voxels, or in how often classes come")
    verb.add_argument("--features", type=names, metavar="NAME[,NAME]", help="of each voxel (default: occupancy)")
    verb.add_argument(
        "--cache", metavar="DIR", help="where prepared samples are kept (default: the user's cache; off: nowhere)"
    )
    verb.add_argument(
        "--bleu-sentences", type=whole(0), metavar="N", help="translated after each epoch's checkpoint (default: 64)"
    )
    verb.add_argument("--validation-split", metavar="NAME", help="default: test")


def _fault_options(verb: Parser) -> None:
    """Timeouts, checkpoints and restarts."""
    timeout_option(verb)
    verb.add_argument("--keep-checkpoints", type=count, metavar="N", help="the newest so many (default: 2)")
    verb.add_argument("--checkpoint-every", type=whole(0), metavar="EPOCHS", help="0: no checkpoints (default: 1)")
    verb.add_argument(
        "--asynchronous-checkpoints", action="store_true", default=None, help="write them beside the next epoch"
    )
    _max_restarts_option(verb)
    _encrypt_option(verb)
    verb.add_argument(
        "--on-lost-host",
        choices=ON_LOST_HOST,
        help="with --max-restarts, on several hosts: go on on those left, planned anew for them (the default), or wait "
        "for it",
    )


def _max_restarts_option(verb: Parser) -> None:
    verb.add_argument("--max-restarts", type=whole(0), metavar="N", help="from the last checkpoint, when a worker dies")


def _ray_address_option(verb: Parser) -> None:
    verb.add_argument(
        "--ray-address",
        metavar="ADDRESS",
        help="with --launcher ray: of a cluster that this machine is a node of, such as 10.0.0.1:6379 or auto "
        "(default: RAY_ADDRESS, else a Ray of this job's own on this machine)",
    )


def _encrypt_option(verb: Parser) -> None:
    verb.add_argument(
        "--encrypt", action="store_true", default=None, help="what hosts beyond this one send to each other, by TLS"
    )


def replay(verb: Parser) -> None:
    plan_argument(verb)
    machine_options(verb)
    verb.add_argument(
        "--launcher",
        choices=tuple(LAUNCHERS),
        default=LOCAL,
        help="local (the default): on this machine, whatever hosts the cluster has; ssh: on them; ray: on nodes of Ray",
    )
    _ray_address_option(verb)
    _encrypt_option(verb)
    minibatches_option(verb, "to replay")
    replication_option(verb)
    stragglers_option(verb)
    _max_restarts_option(verb)
    replan_option(verb)
    timeout_option(verb)
    run_dir_option(verb)
