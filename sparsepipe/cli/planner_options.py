"""Options that only some planners have: each says whose."""

from ..planners.exact.optimal import COST_MODELS, OBJECTIVES
from .argument_types import count, counts, positive
from .shared_options import Parser


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
