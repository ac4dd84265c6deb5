"""The glossary: terms of pictures, widgets, the command line and guides, with their standard synonyms and sources."""

from dataclasses import dataclass

HEAD = """# Glossary

The terms of figures, widgets, the command line and guides. This page is written by `python scripts/glossary.py` from
`sparsepipe/views/glossary.py`; widgets and `--help` show the same definitions.
"""


@dataclass(frozen=True)
class Term:
    """A term with its definition. `synonym`: its name elsewhere. `former`: its name in earlier versions."""

    name: str
    definition: str
    synonym: str = ""
    source: str = ""
    former: str = ""


_PIPEDREAM = "PipeDream (Narayanan et al., SOSP 2019)"
_GPIPE = "GPipe (Huang et al., NeurIPS 2019)"
_MEGATRON = "Megatron-LM (Narayanan et al., SC 2021)"
_ZERO_BUBBLE = "Zero Bubble (Qi et al., ICLR 2024)"
_MINKOWSKI = "MinkowskiEngine (Choy et al., CVPR 2019)"

PLANS = (
    Term(
        "profile", "seconds and bytes of each layer as a function of the input size, for each device type", "cost model"
    ),
    Term("stage", "consecutive layers on one device, or on replicas that share the minibatches", source=_PIPEDREAM),
    Term("stage boundary", "the point between two layers at which a network is split into stages", "split point, cut"),
    Term("plan", "stages, their devices and the schedule", "partition, parallelization strategy", _PIPEDREAM),
    Term("minibatch", "samples that pass through the pipeline together", "microbatch (torch, Megatron)", _PIPEDREAM),
    Term("step", "minibatches between two weight updates", "accumulation window, global batch", _GPIPE),
    Term("schedule", "order in which each device computes forwards, backwards and updates", source=_GPIPE),
    Term(
        "synchronous schedule",
        "schedule that drains the pipeline before each weight update; it trains as one process does",
        "pipeline flush",
        _GPIPE,
    ),
    Term("1F1B", "schedule that alternates one forward and one backward on each stage", source=_PIPEDREAM),
    Term("interleaved stages", "several stages per device, which take turns", "virtual pipeline stages", _MEGATRON),
    Term("zero-bubble schedule", "schedule that splits a backward in two to fill idle time", source=_ZERO_BUBBLE),
    Term("weight stashing", "each minibatch uses one weight version in its forward and backward", source=_PIPEDREAM),
    Term("recomputation", "repeated forwards instead of stored activations", "activation checkpointing", _GPIPE),
    Term("time per minibatch", "iteration time of the full pipeline, set by its slowest stage or link", "period"),
    Term("lower bound", "time per minibatch that no plan of one pipeline beats on these devices, for this profile"),
    Term(
        "optimality gap",
        "share of the plan's time per minibatch above the lower bound; 0%: provably optimal",
        source="mixed-integer programming",
        former="gap to the bound",
    ),
    Term(
        "averaging",
        "replicas of a stage exchange gradients and use their mean; computation stops meanwhile",
        "all-reduce",
    ),
    Term(
        "transfer",
        "outputs sent to the next stage and gradients sent back, overlapped with computation",
        "send and receive",
    ),
    Term(
        "heterogeneous devices", "devices of different throughput or memory in one cluster", source="PipeDream, HetPipe"
    ),
    Term(
        "peak memory",
        "largest memory of any device: weights, optimizer state and stored activations",
        former="fullest device",
    ),
    Term("pin", "keep split points, or the devices of each stage, while the rest of the plan is recomputed"),
)
PIPELINES = (
    Term(
        "pipeline replica",
        "copy of the network, split into stages on devices of its own; replicas share the minibatches by throughput",
        "hybrid data and pipeline parallelism",
        "SDPipe (Miao et al., VLDB 2023)",
        "pipeline",
    ),
    Term(
        "synchronization scheme",
        "rule by which pipeline replicas average: what, in which groups, and whether they wait",
        "all-reduce, partial reduce, local SGD, …",
        "Partial Reduce (Miao et al., SIGMOD 2021)",
        "replication rule",
    ),
    Term("straggler", "rank that is slow, sleeps, stops for a while, or ends"),
    Term(
        "synchronization stall",
        "time in which a pipeline replica waits for others to average",
        former="cost of waiting",
    ),
    Term(
        "standalone throughput", "samples/s of one pipeline replica alone, with the same straggler", former="own pace"
    ),
    Term("group", "pipeline replicas whose weights or gradients are averaged together", source="Partial Reduce"),
    Term(
        "staleness",
        "updates of a pipeline replica between its contribution to an average and the average's arrival",
        source="Stale Synchronous Parallel (Ho et al., NeurIPS 2013)",
    ),
)
RUNS = (
    Term("work", "forwards, backwards and weight updates"),
    Term("dependency", "waiting for another stage whose output or gradient is not ready", "data dependency stall"),
    Term("imbalance", "waiting because stages or replicas take different times", "load imbalance"),
    Term("sizes", "extra time because minibatches differ in size, compared with minibatches of equal cost"),
    Term("communication", "waiting for bytes in transit", "communication stall"),
    Term(
        "bubble",
        "share of idle time: ranks wait for each other or for bytes, or the pipeline fills and drains",
        source=_GPIPE,
    ),
    Term(
        "samples/s",
        "throughput of the full pipeline: median over epochs, without the first if there are more. Pipeline replicas: "
        "all samples over the time from the first minibatch done to the last. Empty if the samples per minibatch are "
        "unknown",
        "throughput",
    ),
    Term("predicted, measured", "the plan's estimate for the minibatches of the run, and the run's own measurement"),
    Term("detached", "the job keeps running after the kernel stops, and this board reattaches to it"),
    Term("emulation", "real processes that communicate as planned and sleep instead of computing", former="replay"),
    Term("online repartitioning", "moving layers between the ranks of a running job", "layer migration", "DynPipe"),
    Term(
        "co-located workload", "another process on the same device", "contention, interference", "DynPipe", "intruder"
    ),
)
SPARSE = (
    Term("voxel", "occupied cell of the grid into which a point cloud is quantized", "active site", _MINKOWSKI),
    Term("tensor stride", "distance between neighbouring voxels of a layer, in voxels of the input", source=_MINKOWSKI),
    Term("kernel map", "pairs of input and output voxels for each offset of a kernel", "rulebook", _MINKOWSKI),
    Term(
        "sparse-convolution backend",
        "the library that computes sparse layers: native, minkowski, spconv or torch",
        former="engine",
    ),
)
SECTIONS = {"Plans": PLANS, "Pipeline replicas": PIPELINES, "Runs": RUNS, "Sparse networks": SPARSE}
_BY_NAME = {term.name: term for terms in SECTIONS.values() for term in terms}


def definition(name: str) -> str:
    """Return the definition of a term, as a tooltip shows it."""
    return _BY_NAME[name].definition


def definitions(*names: str) -> dict[str, str]:
    """Return term → definition; `names` may be sections of the glossary, or terms."""
    terms = [term for name in names for term in SECTIONS.get(name) or (_BY_NAME[name],)]
    return {term.name: term.definition for term in terms}


def glossary_text() -> str:
    """Return the whole glossary as Markdown."""
    head = ("", "| term | definition | also called | source |", "|---|---|---|---|")
    lines = [HEAD.rstrip("\n")]
    for title, terms in SECTIONS.items():
        lines += ["", f"## {title}", *head]
        for term in terms:
            names = ", ".join(filter(None, [term.synonym, term.former and f"formerly {term.former}"]))
            lines.append(f"| **{term.name}** | {term.definition} | {names} | {term.source} |".replace("  |", " |"))
    return "\n".join(lines) + "\n"
