"""Measure the pipeline runtime against its competitors, in one run: `python scripts/bench_runtime.py [--json FILE]`.

Every process has one thread. For each workload and in turn, `--repeats` times:

    single      one process, a plain torch loop with the fused optimizer
    limit       two such processes at once, their sum: what two cores can do
    ddp         DistributedDataParallel over gloo in two processes, each with half of a minibatch
    torch_1f1b  torch.distributed.pipelining Schedule1F1B, a minibatch in micro-batches; best number and cut of several
    pipeline    this project's runtime, asynchronous 1F1B, by the best plan for a profile taken with both cores busy:
                one stage a process, or two of them interleaved
    predicted   what the simulator says of its plan, by that profile scaled to the steps of the limit just before

These update the weights once a minibatch, after as many samples all: they train alike. Others that update less often,
which costs less time and more epochs:

    ddp_double         each process has a whole minibatch, an update is of two
    torch_1f1b_larger  each micro-batch is a whole minibatch, an update is of several; number and cut as above
    flush              this project's runtime with 1F1B-flush, at torch_1f1b_larger's cut and number of micro-batches

Numbers are samples a second: medians, and ratios with their spread (quartiles over the repeats), each of two neighbours
in time. `load` is the machine's (one minute, before each repeat): 0 at first, on two idle cores. `held` is the most
that each stage held, between its actions and inside backwards, by the plan's figure; `peak` the most that its process
had, what its allocator keeps of freed memory included. `--workload runtime` is the channel against bare gloo, its bytes
beside those of the six-message protocol, and the runtime's own time a minibatch and stage. All of it takes an hour.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.nn.functional as functional  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from sparsepipe import data, simulator  # noqa: E402
from sparsepipe.cluster import Cluster, Link  # noqa: E402
from sparsepipe.engines import Subnetwork, engine  # noqa: E402
from sparsepipe.engines.allocator import keep_freed_memory  # noqa: E402
from sparsepipe.files import read_rows, write_json  # noqa: E402
from sparsepipe.graph import Layer, LayerGraph  # noqa: E402
from sparsepipe.models import Network, network  # noqa: E402
from sparsepipe.plan import Plan, Stage  # noqa: E402
from sparsepipe.planners import Problem, partition  # noqa: E402
from sparsepipe.planners.by_hand import by_hand  # noqa: E402
from sparsepipe.profile import CostSample, LayerCost, Profile  # noqa: E402
from sparsepipe.profiler.measure import profile  # noqa: E402
from sparsepipe.runtime import RunConfig  # noqa: E402
from sparsepipe.runtime.reporting.metrics import pace_of  # noqa: E402
from sparsepipe.runtime.transport.channel import Inbox, Outbox, tag_of  # noqa: E402
from sparsepipe.runtime.transport.compression import Compressor  # noqa: E402
from sparsepipe.runtime.transport.packet import BACKWARD, FORWARD, Packet, Slot, encode  # noqa: E402
from sparsepipe.runtime.transport.shared_memory import SharedMemory, meet  # noqa: E402
from sparsepipe.runtime.transport.sockets import DEPTH, Sockets, connect  # noqa: E402
from sparsepipe.runtime.transport.zero_elision import values_at  # noqa: E402
from sparsepipe.runtime.worker.run import run  # noqa: E402
from sparsepipe.runtime.workloads.point_clouds import Workload  # noqa: E402
from sparsepipe.runtime.workloads.replay import ReplayWorkload  # noqa: E402

SGD = {"lr": 0.001, "momentum": 0.9, "weight_decay": 1e-4}
_DISTINCT = 8  # minibatches that repeat


@dataclass(frozen=True)
class Case:
    """One network on minibatches of one kind."""

    model: str
    batch_size: int
    engine: str = "native"
    images: bool = False  # dense 32 x 32 images rather than clouds
    voxel_size: float = 0.02
    num_points: int = 2048


CASES = {
    "vgg16": Case("vgg16", 32, images=True),
    "minkvgg16bn": Case("minkvgg16bn", 16),
    "minkvgg16bn-minkowski": Case("minkvgg16bn", 16, engine="minkowski"),
    "minkunet": Case("minkunet14a", 4),
}


CLUSTER = Cluster.uniform(2, device_type="cpu", link=Link(bandwidth=8e9, latency=2e-4))  # shared memory's


class Repeated:
    """A data set in memory whose few minibatches come again and again, so that reading costs nobody anything."""

    split, task, synthetic, classes = "train", "classification", True, tuple("0123456789")

    def __init__(self, case: Case, batches: Sequence[data.PointBatch], num_minibatches: int) -> None:
        self.case, self.batches, self.num_minibatches = case, batches, num_minibatches
        self.labels = [int(label) for k in range(num_minibatches) for label in self.pick(k).labels]
        self.in_channels = batches[0].features.shape[1]

    def pick(self, minibatch: int) -> data.PointBatch:
        return self.batches[minibatch % len(self.batches)]

    def __len__(self) -> int:
        return self.case.batch_size * self.num_minibatches

    def batch(self, indices: Sequence[int], *, epoch: int = 0) -> data.PointBatch:
        return self.pick(indices[0] // self.case.batch_size)


def minibatches(case: Case, folder: Path) -> list[data.PointBatch]:
    """Make the few minibatches of a case, the same in every process."""
    generator = torch.Generator().manual_seed(0)
    if case.images:
        axes = (torch.arange(case.batch_size), torch.arange(32), torch.arange(32))
        grid = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).view(-1, 3).int()
        return [
            data.PointBatch(
                grid,
                torch.randn(len(grid), 3, generator=generator),
                torch.randint(0, 10, (case.batch_size,), generator=generator),
            )
            for _ in range(_DISTINCT)
        ]
    clouds = data.load(folder / "shapes", split="train", voxel_size=case.voxel_size, num_points=case.num_points)
    order = torch.randint(0, len(clouds), (_DISTINCT, case.batch_size), generator=generator).tolist()
    batches = [clouds.batch(indices) for indices in order]
    return [replace(batch, labels=batch.labels % 10) for batch in batches]


def case_network(case: Case) -> Network:
    return network(case.model, num_classes=10, in_channels=3 if case.images else 1)


# --- roles: what one process does ------------------------------------------------------------------------------------


def _loop(step: Any, case: Case, batches: Sequence[data.PointBatch], seconds: float, *, warmup: int = 2) -> float:
    """Return samples a second of `step(number, minibatch)` over `seconds`."""
    for k in range(warmup):
        step(k, batches[k % len(batches)])
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        batch = batches[count % len(batches)]
        step(count, batch)
        count += 1
    return count * case.batch_size / (time.perf_counter() - start)


def _whole(case: Case) -> tuple[Subnetwork, Any]:
    chosen = engine(case.engine)
    return Subnetwork(case_network(case), chosen).train(), chosen


def role_single(case: Case, folder: Path, seconds: float) -> dict[str, Any]:
    module, chosen = _whole(case)
    optimizer = torch.optim.SGD(module.parameters(), fused=True, **SGD)
    last = module.network.rows[-1].id

    def step(number: int, batch: data.PointBatch) -> None:
        outputs = module({"input": chosen.tensor(batch)}, minibatch=number, keep=(last,))
        functional.cross_entropy(chosen.rows(outputs[last]), batch.labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    return {"samples_per_second": _loop(step, case, minibatches(case, folder), seconds)}


class _Whole(nn.Module):
    """A network from minibatch to loss, as DistributedDataParallel wants it."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.inner, self.engine = _whole(case)

    def forward(self, batch: data.PointBatch, number: int) -> Tensor:
        last = self.inner.network.rows[-1].id
        outputs = self.inner({"input": self.engine.tensor(batch)}, minibatch=number, keep=(last,))
        return functional.cross_entropy(self.engine.rows(outputs[last]), batch.labels)


def role_ddp(case: Case, folder: Path, seconds: float) -> dict[str, Any]:
    _join(folder)
    wrapped = nn.parallel.DistributedDataParallel(_Whole(case), gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(wrapped.parameters(), fused=True, **SGD)
    batches = minibatches(case, folder)

    def step(number: int, batch: data.PointBatch) -> None:
        wrapped(batches[(number + 4 * dist.get_rank()) % len(batches)], number).backward()
        optimizer.step()
        optimizer.zero_grad()

    return {"samples_per_second": 2 * _counted_loop(step, case, seconds)}


def _counted_loop(step: Any, case: Case, seconds: float) -> float:
    """Run as many steps as fit into about `seconds`, the same number on both ranks; return samples a second of one."""
    empty = None
    step(0, empty)
    start = time.perf_counter()
    step(1, empty)
    estimate = torch.tensor([time.perf_counter() - start])
    dist.all_reduce(estimate, op=dist.ReduceOp.MAX)
    count = max(4, int(seconds / float(estimate)))
    dist.barrier()
    start = time.perf_counter()
    for number in range(count):
        step(number, empty)
    dist.barrier()
    return count * case.batch_size / (time.perf_counter() - start)


class _Dropout(nn.Module):
    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, rows: Tensor) -> Tensor:
        return functional.dropout(rows, self.probability, self.training)


def role_torch_1f1b(case: Case, folder: Path, seconds: float, cut: int, count: int) -> dict[str, Any]:
    """Dense: the same layers in nn.Sequential stages. Sparse: what happens when its tensors are handed to it.

    `count` micro-batches have the case's batch size each.
    """
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank, _ = _join(folder)
    whole, chosen = _whole(case)
    batches = minibatches(case, folder)
    if not case.images:
        return _sparse_1f1b(whole, chosen, batches, cut, rank)
    rows = [row for row in whole.table if row.kind != "dense_grid"]
    layers = [
        _Dropout(row.args["probability"]) if row.kind == "dropout" else whole.get_submodule(row.id) for row in rows
    ]
    split = cut - (len(whole.table) - len(rows))
    module = nn.Sequential(*(layers[:split] if rank == 0 else layers[split:]))
    stage = PipelineStage(module, rank, 2, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=count, loss_fn=functional.cross_entropy)
    optimizer = torch.optim.SGD(module.parameters(), fused=True, **SGD)
    images = torch.randn(count * case.batch_size, 3, 32, 32)
    labels = torch.randint(0, 10, (count * case.batch_size,))

    def step(number: int, batch: Any) -> None:
        if rank == 0:
            schedule.step(images)
        else:
            schedule.step(target=labels, losses=[])
        optimizer.step()
        optimizer.zero_grad()

    return {"samples_per_second": count * _counted_loop(step, case, seconds)}


def _sparse_1f1b(whole: Subnetwork, chosen: Any, batches: Sequence[data.PointBatch], cut: int, rank: int) -> dict:
    """Hand coordinates and features of minibatches of different sizes to torch's own schedule."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    ids = [row.id for row in whole.table]

    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            own = ids[:cut] if rank == 0 else ids[cut:]
            self.inner = Subnetwork(whole.network, chosen, own).train()

        def forward(self, coordinates: Tensor, features: Tensor) -> Any:
            from sparsepipe.engines import CoordinateSet, Feature, Parts

            stride = (1, 1, 1) if rank == 0 else (2, 2, 2)
            name = "input" if rank == 0 else ids[cut - 1]
            parts = Parts((CoordinateSet(stride, coordinates.int()),), {name: Feature(features, 0)})
            outputs = self.inner(chosen.join(parts), minibatch=0)
            if rank == 1:
                return chosen.rows(outputs[ids[-1]])
            out = chosen.split({ids[cut - 1]: outputs[ids[cut - 1]]})
            return out.coordinate_sets[0].coordinates.float(), out.features[ids[cut - 1]].rows

    try:
        stage = PipelineStage(Half(), rank, 2, torch.device("cpu"))
        schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=functional.cross_entropy)
        some = batches[:4]
        if rank == 0:  # split by rows, as it does with every tensor
            schedule.step(torch.cat([b.coordinates for b in some]).float(), torch.cat([b.features for b in some]))
        else:
            schedule.step(target=torch.cat([b.labels for b in some]), losses=[])
    except Exception as error:  # noqa: BLE001 - whatever it says is the result
        return {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
    return {"error": "it ran, but on minibatches cut by rows: samples are torn apart"}


def _by_voxels(case: Case, folder: Path) -> dict[int, data.PointBatch]:
    return {batch.num_voxels: batch for batch in minibatches(case, folder)}


def _middle(counts: Sequence[int]) -> int:
    return counts[len(counts) // 2]


def role_profile(case: Case, folder: Path, seconds: float) -> dict[str, Any]:
    """Profile while another process does the same: both cores busy, as they will be."""
    batches = _by_voxels(case, folder)
    counts = sorted(batches)
    chosen = [batches[count] for count in dict.fromkeys((counts[0], _middle(counts), counts[-1]))]
    found = profile(case_network(case), chosen, engine(case.engine), repeats=7, voxel_counts=counts)
    found.renamed("cpu").save(folder / f"profile-{os.environ['RANK']}.json")
    return {}


def role_flush(case: Case, folder: Path, seconds: float) -> dict[str, Any]:
    return role_pipeline(case, folder, seconds, plan=Plan.load(folder / "flush.json"))


def role_pipeline(case: Case, folder: Path, seconds: float, plan: Plan | None = None) -> dict[str, Any]:
    plan = plan or Plan.load(folder / "plan.json")
    period = Plan.load(folder / "plan.json").estimate.period_seconds
    count = max(12, int(seconds / period)) + 6
    if plan.num_microbatches > 1:  # whole steps, the first of which is not counted
        count = max(3, 1 + round(count / plan.num_microbatches)) * plan.num_microbatches
    config = RunConfig(
        case.model,
        "memory",
        batch_size=case.batch_size,
        engine=case.engine,
        epochs=1,
        shuffle=False,
        validate=False,
        checkpoint_every=0,
        threads=1,
        learning_rate=SGD["lr"],
        momentum=SGD["momentum"],
        weight_decay=SGD["weight_decay"],
        timeout_seconds=120,
    )
    batches = minibatches(case, folder)
    dataset = Repeated(case, batches, count)
    workload = Workload(config, case_network(case), engine(case.engine), dataset, None)
    run_dir = folder / f"run-{os.environ['ATTEMPT']}"
    os.environ["SPARSEPIPE_LAUNCH"] = os.environ["ATTEMPT"]
    run(run_dir, plan, config, workload=workload)
    (summary,) = [row for row in read_rows(run_dir / "metrics.jsonl") if row["event"] == "summary"]
    return {"samples_per_second": summary["samples_per_second"], "stages": summary["stages"]}


def role_overhead(case: Case, folder: Path, seconds: float) -> dict[str, Any]:
    """Replay a network whose layers take no time: what is left is the runtime's own."""
    plan = Plan((Stage(("a",), (0,)), Stage(("b",), (1,))), schedule="1f1b")
    free = LayerCost((CostSample(1.0, 0.0, 0.0, 64.0),))
    found = Profile(LayerGraph.chain([Layer("a"), Layer("b")]), {"cpu": (free, free)}, (1.0,))
    config = RunConfig("free", "nothing", engine="replay", minibatches=1000, batch_size=1, validate=False, threads=1)
    config = replace(config, checkpoint_every=0)
    run_dir = folder / f"run-{os.environ['ATTEMPT']}"
    cluster = Cluster.uniform(2, device_type="cpu", link=Link(1e12, 0.0))
    workload = ReplayWorkload(run_dir, config, found, cluster)
    os.environ["SPARSEPIPE_LAUNCH"] = os.environ["ATTEMPT"]
    before = time.process_time()
    run(run_dir, plan, config, workload=workload)
    (summary,) = [row for row in read_rows(run_dir / "metrics.jsonl") if row["event"] == "summary"]
    cpu = time.process_time() - before
    return {"overhead_ms": 1e3 / summary["samples_per_second"], "cpu_ms": 1e3 * cpu / config.minibatches}


def role_channel(case: Case, folder: Path, seconds: float) -> dict[str, Any]:
    """Send the same bytes as bare messages and as packets, in turn: what else goes on meets all alike.

    Bare: all receives posted before the first message comes, which takes the memory of all; or as many as an inbox has.
    Packets: through shared memory, as between the processes of a host, or through sockets, as between hosts.
    """
    rank, store = _join(folder)
    shared = meet(store, rank, range(2))
    if shared is None:
        raise SystemExit("the two processes cannot share memory: is this Linux?")
    way = [(1 - rank, tag_of(FORWARD, 0))]
    sockets = connect(store, rank, *((way, []) if rank == 0 else ([], way)), timeout=60)
    keep_freed_memory()  # as every worker does
    found = {}
    for megabytes in (1, 4, 16):
        rows = torch.randn(megabytes * 2**18 // 64, 64)
        count = max(32, 256 // megabytes)
        times: dict[str, list[float]] = {"gloo": [], "gloo_in_turn": [], "packets": [], "packets_by_sockets": []}
        for _ in range(9):
            times["gloo"].append(_bare(rows, count, rank, at_once=count))
            times["gloo_in_turn"].append(_bare(rows, count, rank, at_once=DEPTH))
            times["packets"].append(_packets(rows, count, rank, memory=shared))
            times["packets_by_sockets"].append(_packets(rows, count, rank, sockets=sockets))
        rates = {how: count * rows.nbytes / statistics.median(taken) / 1e9 for how, taken in times.items()}
        ratios = {
            f"{packets}/{bare}": rates[packets] / rates[bare]
            for packets in ("packets", "packets_by_sockets")
            for bare in ("gloo", "gloo_in_turn")
        }
        found[f"{megabytes} MB"] = rates | ratios
    return {"gigabytes_per_second": found}


def _bare(rows: Tensor, count: int, rank: int, *, at_once: int) -> float:
    buffers = [torch.zeros_like(rows) for _ in range(at_once)] if rank else []
    works: deque[Any] = deque()
    dist.barrier()
    start = time.perf_counter()
    for k in range(count):
        if len(works) == at_once:
            works.popleft().wait()
        works.append(dist.irecv(buffers[k % at_once], 0, tag=77) if rank else dist.isend(rows, 1, tag=77))
    for work in works:
        work.wait()
    dist.barrier()
    return time.perf_counter() - start


def _packets(rows: Tensor, count: int, rank: int, **carrier: SharedMemory | Sockets) -> float:
    dist.barrier()
    start = time.perf_counter()
    if rank == 0:
        outbox = Outbox(limit=8, **carrier)
        for m in range(count):
            outbox.send(Packet(FORWARD, m, 0, (Slot(rows),)), 1, timeout=60, action="0F0")
        outbox.finish(timeout=60)
    else:
        inbox = Inbox([(0, m) for m in range(count)], direction=FORWARD, boundary=0, **carrier)
        for m in range(count):
            inbox.take(m, timeout=60, action="1F0")
    dist.barrier()
    return time.perf_counter() - start


@dataclass(frozen=True)
class Crossing:
    """What crosses one cut for one minibatch, and how many bytes that is in the six-message protocol."""

    packet: Packet
    gradient: Tensor  # [N, C]
    six_messages: int
    six_messages_backward: int


def six_messages(name: str, folder: Path) -> list[dict[str, Any]]:
    """Bytes of one minibatch at each pool of a sparse network and at the ReLU before: packets and theirs.

    SparsePipe sends coordinates (int32), features and tensor stride, and before each of them its shape (int64). Of its
    backward it is assumed that only the gradient and its shape travel.
    """
    case = CASES[name]
    chosen = engine(case.engine)
    net = case_network(case)
    module = Subnetwork(net, chosen)
    cuts = [cut for row in net.rows if row.id.startswith("pool") for cut in (*row.inputs, row.id)]
    found: dict[str, list[Crossing]] = {cut: [] for cut in cuts}
    for batch in minibatches(case, folder):
        tensors = module({"input": chosen.tensor(batch)}, minibatch=0)
        parts = {cut: chosen.split({cut: tensors[cut]}) for cut in cuts}
        features = [parts[cut].features[cut].rows for cut in cuts]
        loss = functional.cross_entropy(chosen.rows(tensors[net.rows[-1].id]), batch.labels)
        for cut, rows, gradient in zip(cuts, features, torch.autograd.grad(loss, features), strict=True):
            ((stride, coordinates),) = parts[cut].coordinate_sets
            theirs = rows.nbytes + coordinates.numel() * 4 + len(stride) * 4 + 8 * (2 + 2 + 1)
            packet = Packet(FORWARD, 0, 0, (Slot(rows.detach(), 0, True),), parts[cut].coordinate_sets)
            found[cut].append(Crossing(packet, gradient, theirs, gradient.nbytes + 8 * 2))
    return [_beside_six_messages(cut, crossings) for cut, crossings in found.items()]


def _beside_six_messages(cut: str, crossings: Sequence[Crossing]) -> dict[str, Any]:
    entry: dict[str, Any] = {"cut": cut}
    theirs = sum(crossing.six_messages for crossing in crossings)
    theirs_backward = sum(crossing.six_messages_backward for crossing in crossings)
    for how in ("none", "bfloat16", "int8", "zeros", "lossless"):  # through sockets lossless, unless told otherwise
        forward, backward = Compressor(how), Compressor(how)
        small = [replace(c.packet, slots=forward.shrink(c.packet.slots)) for c in crossings]
        back = []
        for crossing, packet in zip(crossings, small, strict=True):
            present = packet.slots[0].present  # behind ReLUs and their pools: gradients come back for these alone
            gradient = crossing.gradient if present is None else values_at(present, crossing.gradient)
            back.append(Packet(BACKWARD, 0, 0, backward.shrink((Slot(gradient),))))
        key = f"of_six_messages_{how}"
        ours, ours_backward = _num_bytes(small), _num_bytes(back)
        entry[key] = ours / theirs
        entry[f"{key}_backward"] = ours_backward / theirs_backward
        entry[f"{key}_both_ways"] = (ours + ours_backward) / (theirs + theirs_backward)
        if how == "none":
            entry["bytes"] = ours / len(small)
    return entry


def _num_bytes(packets: Sequence[Packet]) -> int:
    return sum(part.nbytes for packet in packets for part in encode(packet))


ROLES = {
    "overhead": role_overhead,
    "channel": role_channel,
    "single": role_single,
    "ddp": role_ddp,
    "ddp_double": role_ddp,
    "torch_1f1b": role_torch_1f1b,
    "torch_1f1b_larger": role_torch_1f1b,
    "profile": role_profile,
    "pipeline": role_pipeline,
    "flush": role_flush,
}
RUNTIME = "runtime"  # channel and overhead: no workload's
TORCH = ("torch_1f1b", "torch_1f1b_larger")
COMPETITORS = (
    "limit",
    "predicted",
    "pipeline",
    "ddp",
    "torch_1f1b",
    "ddp_double",
    "torch_1f1b_larger",
    "flush",
    "single",
)


def _join(folder: Path) -> tuple[int, dist.Store]:
    rank = int(os.environ["RANK"])
    store = dist.FileStore(str(folder / f"store-{os.environ['ATTEMPT']}"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    return rank, store


# --- the bench -------------------------------------------------------------------------------------------------------

_attempts = iter(range(10**6))


def start(role: str, name: str, folder: Path, seconds: float, *, world_size: int, extra: Sequence[str] = ()) -> list:
    """Run a role in `world_size` processes at once and return what each said."""
    attempt = str(next(_attempts))
    (folder / f"run-{attempt}" / "logs").mkdir(parents=True, exist_ok=True)
    common = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "ATTEMPT": attempt}
    outputs = [folder / f"{role}-{attempt}-{rank}.json" for rank in range(world_size)]
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, "--role", role, "--workload", name, "--folder", str(folder), "--seconds"]
            + [str(seconds), "--output", str(output), *extra],
            env={**common, "RANK": str(rank), "WORLD_SIZE": str(world_size)},
        )
        for rank, output in enumerate(outputs)
    ]
    for process in processes:
        process.wait()
    if any(process.returncode for process in processes):
        raise SystemExit(f"bench_runtime: {role} of {name} failed; its traceback is above")
    return [json.loads(output.read_text()) for output in outputs]


def bench(name: str, folder: Path, *, repeats: int, seconds: float, only: set[str]) -> dict[str, Any]:
    """Measure one workload."""
    case = CASES[name]
    say(f"{name}: profile, two processes at once")
    start("profile", name, folder, seconds, world_size=2)  # as busy as both cores will be
    chosen = Profile.load(folder / "profile-0.json")
    plan, cut = _plans(chosen)
    plan.save(folder / "plan.json")
    say(str(plan))
    result: dict[str, list[float]] = {key: [] for key in COMPETITORS}
    notes: dict[str, Any] = {"plan": [list(stage.layers) for stage in plan.stages], "load": [], "peak": [], "held": []}
    arguments = {"ddp": ["--batch-size", str(case.batch_size // 2)]}
    if only.intersection(TORCH):
        arguments |= _best_torch(name, case, folder, cut, seconds, notes, only)
    _flush_plan(chosen, cut, notes.get("torch_1f1b_larger_at")).save(folder / "flush.json")
    for repeat in range(repeats):
        notes["load"].append(round(os.getloadavg()[0], 2))
        for role, found in _round(name, case, folder, seconds, arguments, only, chosen):
            result[role].append(found["samples_per_second"])
            say(f"{name} {repeat + 1}/{repeats}: {role} {found['samples_per_second']:.1f} samples/s")
            if role == "pipeline":
                stages = found["stages"]
                for which in ("peak", "held"):
                    notes[which].append([stage[f"{which}_bytes"] / stage["planned_bytes"] for stage in stages])
                notes["stages"] = stages
    notes["layers_over_whole"] = chosen.origin["layers_over_whole"]
    for which in ("peak", "held"):
        notes[which] = [statistics.median(of_stage) for of_stage in zip(*notes[which], strict=True)]
    return _summary(result, notes)


def _plans(found: Profile) -> tuple[Plan, int]:
    """Return the plan that is fastest when it is simulated, and the layers before the best cut in two.

    A simulation counts what estimates leave out, such as the kernel maps that each further stage makes anew. Stages are
    interleaved where that is worth 1 % and more.
    """
    straight, laps = (
        partition(found, CLUSTER, planner="model-parallel", schedule="1f1b", stages_per_device=count)
        for count in (1, 2)
    )
    cut, best = len(straight.stages[0].layers), partition(found, CLUSTER, planner="optimal", schedule="1f1b")
    if len(best.stages) == 1:  # data parallel is measured as such
        best = straight
    interleaved, period = _simulated_seconds(laps, found), _simulated_seconds(best, found)
    return (laps if interleaved < 0.99 * period else best), cut


def _flush_plan(found: Profile, cut: int, torchs: dict[str, int] | None) -> Plan:
    """Return a plan with flushes, at the cut and the number of micro-batches at which torch's schedule is best."""
    cut = torchs["cut"] if torchs else cut
    problem = Problem(found, CLUSTER, "1f1b-flush", torchs["microbatches"] if torchs else 8)
    return by_hand(problem, [cut], [(1,), (1,)])


def _round(
    name: str, case: Case, folder: Path, seconds: float, arguments: dict[str, list[str]], only: set[str], found: Profile
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Measure each competitor once, one after the other."""
    limit = 0.0
    for role in COMPETITORS:
        if role not in only or (role in TORCH and role not in arguments):
            continue
        if role == "limit":
            both = start("single", name, folder, seconds, world_size=2)
            limit = sum(one["samples_per_second"] for one in both)
            yield role, {"samples_per_second": limit}
        elif role == "predicted":
            plan = Plan.load(folder / "plan.json")
            yield role, {"samples_per_second": _predict(plan, found, case, step_seconds=2 * case.batch_size / limit)}
        elif role == "single":
            yield role, start("single", name, folder, seconds, world_size=1)[0]
        else:
            yield role, start(role, name, folder, seconds, world_size=2, extra=arguments.get(role, ()))[0]


def _best_torch(
    name: str, case: Case, folder: Path, cut: int, seconds: float, notes: dict, only: set[str]
) -> dict[str, list[str]]:
    """Find the cut and number of micro-batches at which torch's own schedule is fastest, for either size of these."""
    if not case.images:
        found = start("torch_1f1b", name, folder, seconds, world_size=2, extra=["--cut", str(cut)])
        errors = [f["error"] for f in found if "error" in f]
        notes["torch_1f1b_error"] = min(errors, key=lambda error: "Connection closed" in error)  # the cause, not a loss
        say(f"{name}: torch_1f1b cannot: {notes['torch_1f1b_error']}")
        return {}
    sizes = {
        "torch_1f1b": {count: case.batch_size // count for count in (2, 4, 8)},
        "torch_1f1b_larger": dict.fromkeys((4, 8), case.batch_size),
    }
    chosen = {}
    for role, batch_sizes in sizes.items():
        if role not in only:
            continue
        tried = {}
        for place in (cut - 2, cut, cut + 2):
            for count, batch_size in batch_sizes.items():
                extra = ["--cut", str(place), "--microbatches", str(count), "--batch-size", str(batch_size)]
                found = start(role, name, folder, seconds / 2, world_size=2, extra=extra)
                tried[place, count] = found[0]["samples_per_second"], extra
        (place, count), (rate, chosen[role]) = max(tried.items(), key=lambda item: item[1])
        notes[f"{role}_at"] = {"cut": place, "microbatches": count, "of_samples": batch_sizes[count]}
        say(f"{name}: {role} is best at cut {place}, {count} micro-batches of {batch_sizes[count]}: {rate:.1f}")
    return chosen


def _predict(plan: Plan, found: Profile, case: Case, *, step_seconds: float) -> float:
    """Simulate the plan by a profile whose layers and update together take as long as a step of the limit, on average.

    A profile has medians, a rate is of all seconds: those in which the machine was busy with something else too.
    """
    (costs,), rate = found.costs.values(), found.update_rates["cpu"]
    layers = [cost.at(count) for count in found.voxel_counts for cost in costs]
    step = sum(layer.forward + layer.backward for layer in layers) / len(found.voxel_counts)
    scale = step_seconds / (step + rate * sum(layer.parameter_bytes for layer in found.graph.layers))
    scaled = tuple(
        LayerCost(tuple(replace(s, forward=scale * s.forward, backward=scale * s.backward) for s in cost.samples))
        for cost in costs
    )
    found = replace(found, costs={"cpu": scaled}, update_rates={"cpu": scale * rate})
    return case.batch_size / _simulated_seconds(plan, found)


def _simulated_seconds(plan: Plan, found: Profile) -> float:
    """Seconds per minibatch in steady state, as a run would report them."""
    counts = [found.voxel_counts[k % len(found.voxel_counts)] for k in range(60)]
    trace = simulator.simulate(plan, found, CLUSTER, counts)
    return 1 / pace_of(trace, plan)


def _summary(result: dict[str, list[float]], notes: dict[str, Any]) -> dict[str, Any]:
    document: dict[str, Any] = {key: statistics.median(found) if found else None for key, found in result.items()}
    document["runs"] = result
    ratios = [("pipeline", other) for other in COMPETITORS if other not in ("pipeline", "flush", "single")]
    for one, other in (*ratios, ("flush", "torch_1f1b_larger")):
        pairs = [a / b for a, b in zip(result[one], result[other], strict=False)]
        document[f"{one}/{other}"] = _spread(pairs)
    return document | notes


def _spread(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
    return {"median": middle, "low": low, "high": high}


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _table(document: dict[str, Any]) -> str:
    lines = []
    for name, found in ((name, found) for name, found in document.items() if name in CASES):
        lines.append(f"{name}, samples/s".ljust(32) + "pipeline by it".rjust(20))
        for role in COMPETITORS:
            rate = "-" if found[role] is None else f"{found[role]:.1f}"
            ratio = found.get(f"pipeline/{role}")
            text = "{median:.3f} [{low:.3f}, {high:.3f}]".format(**ratio) if ratio else ""
            lines.append(f"  {role.ljust(20)}{rate.rjust(10)}{text.rjust(24)}".rstrip())
        held, peak = (", ".join(f"{share:.2f}" for share in found[which]) or "-" for which in ("held", "peak"))
        lines.append(f"  load {found['load']}; by the plan's figure the stages held {held}, their processes {peak}")
        lines.append(f"  sum of the profiled layers by a whole step: {found['layers_over_whole']:.2f}")
    if "overhead_ms" in document:
        lines.append(f"overhead: {document['overhead_ms']:.3f} ms a minibatch and stage")
        lines += [
            f"channel, {size}: {how} {rate[packets]:.2f} GB/s, {rate[f'{packets}/gloo_in_turn']:.2f} of gloo's own "
            f"with as many messages on their way, {rate[f'{packets}/gloo']:.2f} with all posted before"
            for size, rate in document["channel"]["rates"].items()
            for how, packets in (("shared memory", "packets"), ("sockets", "packets_by_sockets"))
        ]
        lines += [
            f"cut after {cut['cut']}: one message; of SparsePipe's bytes {_exact(cut, 'lossless')} (through sockets); "
            f"{_exact(cut, 'zeros')}; plain {cut['of_six_messages_none']:.2f}, {cut['bytes']:.0f} bytes; "
            f"as bfloat16 {cut['of_six_messages_bfloat16']:.2f}, int8 {cut['of_six_messages_int8']:.2f}"
            for cut in document["channel"]["minkvgg16bn"]
        ]
    return "\n".join(lines)


def _exact(cut: dict[str, Any], how: str) -> str:
    key = f"of_six_messages_{how}"
    return f"{how} {cut[key]:.2f}, {cut[f'{key}_backward']:.2f} back, {cut[f'{key}_both_ways']:.2f} both ways"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write one JSON document, anew after each workload")
    parser.add_argument("--workload", action="append", choices=[*CASES, RUNTIME], help="all unless given")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each measurement")
    parser.add_argument("--only", action="append", choices=COMPETITORS, help="competitors: all unless given")
    for option in ("--role", "--folder", "--output"):
        parser.add_argument(option, help=argparse.SUPPRESS)
    parser.add_argument("--cut", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--batch-size", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--microbatches", type=int, default=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role:
        return _work(options)
    only = set(options.only or COMPETITORS)
    only |= {"limit"} if "predicted" in only else set()
    document: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="bench-runtime-") as folder:
        data.make_shapes(Path(folder) / "shapes", num_train=6, num_test=1)
        for name in options.workload or [*CASES, RUNTIME]:
            if name == RUNTIME:
                document |= _of_the_runtime(Path(folder), options.repeats)
            else:
                own = Path(folder) / name
                own.mkdir()
                (own / "shapes").symlink_to(Path(folder) / "shapes")
                document[name] = bench(name, own, repeats=options.repeats, seconds=options.seconds, only=only)
            if options.json:
                write_json(options.json, document)
    print(_table(document))
    return 0


def _of_the_runtime(folder: Path, repeats: int) -> dict[str, Any]:
    """Measure what does not depend on a workload."""
    (folder / "bare").mkdir()
    (folder / "bare" / "shapes").symlink_to(folder / "shapes")
    found = [start("overhead", "vgg16", folder / "bare", 0, world_size=2) for _ in range(repeats)]
    overheads = [ranks[0]["overhead_ms"] for ranks in found]
    cpu = statistics.median(rank["cpu_ms"] for ranks in found for rank in ranks)
    say(f"overhead: {statistics.median(overheads):.3f} ms a minibatch and stage")
    channel = start("channel", "vgg16", folder / "bare", 0, world_size=2)[0]["gigabytes_per_second"]
    say(f"channel: {channel}")
    cuts = six_messages("minkvgg16bn", folder / "bare")
    return {
        "overhead_ms": statistics.median(overheads),
        "overhead_cpu_ms": cpu,
        "channel": {"rates": channel, "minkvgg16bn": cuts},
    }


def _work(options: argparse.Namespace) -> int:
    torch.set_num_threads(1)
    extra = {"cut": options.cut, "count": options.microbatches} if options.role in TORCH else {}
    case = CASES[options.workload[0]]
    case = replace(case, batch_size=options.batch_size or case.batch_size)
    found = ROLES[options.role](case, Path(options.folder), options.seconds, **extra)
    found["cpu_seconds"] = time.process_time()
    Path(options.output).write_text(json.dumps(found))
    os._exit(0)  # not waiting for anybody's threads


if __name__ == "__main__":
    sys.exit(main())
