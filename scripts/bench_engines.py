"""Time the engines against each other and bare products: `python scripts/bench_engines.py [--quick] [--json FILE]`.

For each number of threads and each case, in a process of its own whose thread pools all have that size:

    steps          one training step (forward, loss, backward; then with SGD) of each network on each kind of clouds:
                   `native`, `minkowski` where it imports, `native` under bf16 autocast, and `native` with the kernel
                   maps of the minibatch already made, whose difference is what kernel maps cost; and the matrix
                   products of all its convolutions alone, which no engine that multiplies in float32 can do without:
                   `minkowski_step_over_products` is the most that it could be faster by. `minkowski` is the library as
                   it installs; `minkowski-passive`, with several threads, runs in another process, whose threads are
                   told to sleep while they wait, as this project's workers tell them (sparsepipe/host/openmp.py)
    convolutions   forward and backward of each convolution of the first case against its matrix products alone, on rows
                   already gathered and never added up; and against these and the rows' own moves: each gathered and
                   added up once by torch, which is what products on gathered rows cannot do without
                   `products` are torch.mm's; oneDNN's, which are faster on some processors, are there to compare
    memory         the most resident memory a training step takes over that of the process before the network was made,
                   each engine in a process of its own: five of each, or as many as `--rounds` says if that is fewer,
                   for what MinkowskiEngine's threads ask the heap for, and when, differs by some percent

Competitors take turns, round by round. Numbers are medians with quartiles; a ratio is the median of the rounds' own
ratios, so that what else the machine does meets both sides; with one thread, processor time leaves most of it out.
Real clouds are looked for in the folders of SPARSEPIPE_DATA, else beside the repository; without them synthetic shapes
stand in, and the output says so.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))

import torch  # noqa: E402
import torch.nn.functional as functional  # noqa: E402
from torch import Tensor  # noqa: E402

from sparsepipe import data  # noqa: E402
from sparsepipe.data import PointBatch  # noqa: E402
from sparsepipe.data.formats.scan import KITTI, read_scan  # noqa: E402
from sparsepipe.engines import Engine, Subnetwork, engine  # noqa: E402
from sparsepipe.errors import InputError  # noqa: E402
from sparsepipe.host.openmp import waiting  # noqa: E402
from sparsepipe.models import INPUT, network  # noqa: E402
from sparsepipe.profiler.measure import device_name  # noqa: E402

TARGETS = {
    "step_minkowski_over_native": 1.5,
    "convolution_over_products": 1.3,
    "kernel_map_share": 0.1,
    "memory_native_over_minkowski": 1.0,
}
PARTS = ("steps", "convolutions", "memory")
_MEMORY_ROUNDS = 5
_CLASSES = {"modelnet": 10, "modelnet-dense": 10, "kitti": 20}
_HAS_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
_BATCH_SIZE, _VOXEL_SIZE, _SWEEP_VOXEL_SIZE = 8, 0.02, 0.1


@dataclass(frozen=True)
class Case:
    """One network on one kind of clouds."""

    model: str
    clouds: str

    @property
    def name(self) -> str:
        return f"{self.model} on {self.clouds}"


CASES = (
    Case("minkvgg16bn", "modelnet"),
    Case("minkunet34c", "modelnet"),
    Case("minkvgg16bn-narrow", "modelnet"),
    Case("minkunet34c-narrow", "modelnet"),
    Case("minkunet34c-segmentation", "kitti"),
    Case("minkvgg16bn", "modelnet-dense"),
    Case("minkunet34c", "modelnet-dense"),
    Case("minkvgg16bn", "kitti"),
)
_NUM_QUICK = 5  # of CASES
_REAL_SHAPES = Path("modelnet10-sample") / "ModelNet10"
_REAL_SWEEP = Path("scans") / "kitti_000008.bin"


def real(relative: Path) -> Path | None:
    """Find real data in the folders of SPARSEPIPE_DATA, else beside the repository."""
    named = os.environ.get("SPARSEPIPE_DATA", "")
    folders = [Path(name) for name in named.split(os.pathsep) if name] or [REPOSITORY.parent / "shared" / "data"]
    return next((folder / relative for folder in folders if (folder / relative).exists()), None)


def clouds(kind: str, scratch: Path) -> tuple[PointBatch, str]:
    """Make one minibatch; say where it comes from. `modelnet-dense` has all points of the CAD-like synthetic shapes."""
    generator = torch.Generator().manual_seed(0)
    if kind == "kitti":
        found = real(_REAL_SWEEP)
        if found is None:
            raise InputError(f"no {_REAL_SWEEP} in SPARSEPIPE_DATA: the cases on a sweep are left out")
        points = read_scan(found, columns=KITTI).points
        voxels = torch.from_numpy(data.voxelize(points, _SWEEP_VOXEL_SIZE))
        coordinates = torch.cat([voxels.new_zeros(len(voxels), 1), voxels], dim=1)
        labels = torch.randint(0, _CLASSES[kind], (len(voxels),), generator=generator)
        batch = PointBatch(coordinates, torch.ones(len(voxels), 1), labels, per_voxel=True)
        return batch, f"real: one KITTI sweep, voxels of {_SWEEP_VOXEL_SIZE} m, random labels"
    found = real(_REAL_SHAPES) if kind == "modelnet" else None
    num_points = 1024 if kind == "modelnet" else 8192
    source = found or data.make_shapes(scratch / "shapes", num_train=_BATCH_SIZE, num_test=1)
    dataset = data.load(source, split="train", voxel_size=_VOXEL_SIZE, num_points=num_points)
    step = max(1, len(dataset) // _BATCH_SIZE)
    batch = dataset.batch([k * step for k in range(_BATCH_SIZE)])
    what = "real: ModelNet10 sample" if found else "synthetic: CAD-like shapes"
    labels = batch.labels % _CLASSES[kind]
    origin = f"{what}, {num_points} points a cloud, voxel size {_VOXEL_SIZE}, batch {_BATCH_SIZE}"
    return PointBatch(batch.coordinates, batch.features, labels), origin


def for_network(case: Case, batch: PointBatch) -> PointBatch:
    """Give a classifying network one label a sample."""
    if case.model.endswith("segmentation") or "segmentation-" in case.model or not batch.per_voxel:
        return batch
    return PointBatch(batch.coordinates, batch.features, torch.zeros(len(batch), dtype=torch.int64))


class Peer:
    """A trainer in another process, with an environment of its own."""

    def __init__(self, options: argparse.Namespace, case: Case, name: str, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            child_command(options, options.threads[0], "peer", case, "--engine", name),
            env=os.environ | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def step(self) -> dict[str, float]:
        """Have it train one step; return what `Trainer.step` does there."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("step\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("bench_engines: the process of a competitor ended; its traceback is above")
        return json.loads(line)

    def end(self) -> None:
        """Close its input, which ends it."""
        self._process.communicate()


def serve(case: Case, batch: PointBatch, chosen: Engine) -> None:
    """Train a step for each line of standard input."""
    trainer, batch = Trainer(case, chosen), for_network(case, batch)
    for _ in sys.stdin:
        print(json.dumps(trainer.step(batch)), flush=True)


class Trainer:
    """A network under one engine, with its optimizer; `step` trains it on a minibatch and reads the clock."""

    def __init__(self, case: Case, chosen: Engine, *, half: bool = False) -> None:
        net = network(case.model, num_classes=_CLASSES[case.clouds])
        self.engine, self.half, self.last = chosen, half, net.rows[-1].id
        self.module = Subnetwork(net, chosen, seed=0)
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=1e-4, momentum=0.9)

    def step(self, batch: PointBatch, tensor: Any = None) -> dict[str, float]:
        """Return the seconds of forward, loss and backward, also of processor time, and of the whole step.

        `tensor` is one used before, whose kernel maps are there.
        """
        self.optimizer.zero_grad(set_to_none=True)
        start, busy = time.perf_counter(), time.process_time()
        if tensor is None:
            tensor = self.engine.tensor(batch)
        else:
            tensor = self.engine.replace(tensor, self.engine.features(tensor).detach())
        with torch.autocast("cpu", torch.bfloat16, enabled=self.half):
            rows = self.engine.features(self.module({INPUT: tensor}, minibatch=0, keep=(self.last,))[self.last])
        # Rows have the engine's own order, which costs the same.
        functional.cross_entropy(rows.float(), batch.labels).backward()
        trained, spent = time.perf_counter(), time.process_time() - busy
        self.optimizer.step()
        return {"step": trained - start, "step_with_sgd": time.perf_counter() - start, "step_processor": spent}


def turns(rounds: int, functions: Mapping[str, Callable[[], Any]]) -> dict[str, list[Any]]:
    """Call each function once a round, after one round to warm up; return what they returned."""
    found: dict[str, list[Any]] = {name: [] for name in functions}
    for turn in range(rounds + 1):
        for name, function in functions.items():
            result = function()
            if turn:
                found[name].append(result)
    return found


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return median, quartiles and least."""
    low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else [values[0]] * 3
    return {"median": middle, "quartiles": [low, high], "least": min(values)}  # type: ignore[dict-item]


def ratio(above: Sequence[float], below: Sequence[float]) -> dict[str, float]:
    """Return the spread of the rounds' ratios, and the ratio of the least times, which load disturbs least."""
    found = spread([a / b for a, b in zip(above, below, strict=True)])
    return found | {"least": min(above) / min(below)}


def time_steps(
    case: Case, batch: PointBatch, engines: Mapping[str, Engine], peers: Mapping[str, Peer], rounds: int
) -> dict[str, Any]:
    """Time the training step of a network by every competitor, here and in other processes."""
    batch = for_network(case, batch)
    trainers = {name: Trainer(case, chosen) for name, chosen in engines.items()}
    trainers["native-bf16"] = Trainer(case, engines["native"], half=True)
    used = engines["native"].tensor(batch)  # keeps its kernel maps from the first round on
    functions = {name: lambda t=trainer: t.step(batch) for name, trainer in trainers.items()}
    functions |= {name: peer.step for name, peer in peers.items()}
    functions["native-warm-maps"] = lambda: trainers["native"].step(batch, used)
    distinct = convolutions(case, batch, engines["native"])
    functions["products"] = lambda: products(distinct)
    found = turns(rounds, functions)
    seconds = {name: {key: [row[key] for row in rows] for key in rows[0]} for name, rows in found.items()}
    native, warm = seconds["native"]["step"], seconds["native-warm-maps"]["step"]
    processor = [seconds[name]["step_processor"] for name in ("native", "native-warm-maps")]
    share = spread([1 - w / n for n, w in zip(native, warm, strict=True)])
    share |= {"least": 1 - min(warm) / min(native), "least_processor": 1 - min(processor[1]) / min(processor[0])}
    result: dict[str, Any] = {
        "voxels": batch.num_voxels,
        "load_average": os.getloadavg()[0],
        "seconds": {name: {key: spread(values) for key, values in own.items()} for name, own in seconds.items()},
        "kernel_map_share": share,
        "native_step_over_native_bf16": ratio(native, seconds["native-bf16"]["step"]),
        "native_step_processor_over_native_bf16": ratio(processor[0], seconds["native-bf16"]["step_processor"]),
    }
    bare = seconds["products"]["step"]
    result["native_step_over_products"] = ratio(native, bare)
    for name in [name for name in seconds if name.startswith("minkowski")]:
        result[f"{name}_step_over_products"] = ratio(seconds[name]["step"], bare)
        for key in ("step", "step_with_sgd", "step_processor"):
            result[f"{name}_{key}_over_native"] = ratio(seconds[name][key], seconds["native"][key])
    return result


@dataclass(eq=False)
class Distinct:
    """Convolutions of a network that have shape and kernel map in common, `count` of them."""

    name: str
    kernel_map: Any
    kernel: Tensor
    features: Tensor  # the first one's input
    wants_features: bool  # nobody asks for the gradient of the network's input
    count: int = 1


def convolutions(case: Case, batch: PointBatch, chosen: Engine) -> list[Distinct]:
    """List the distinct convolutions of a network on a minibatch."""
    from sparsepipe.engines.native.layers import Convolution

    module = Subnetwork(network(case.model, num_classes=_CLASSES[case.clouds]), chosen, seed=0)
    tensors = {INPUT: chosen.tensor(for_network(case, batch))}
    found: dict[tuple[int, tuple[int, ...]], Distinct] = {}
    for row in module.table:
        layer, inputs = module.get_submodule(row.id), [tensors[name] for name in row.inputs]
        if isinstance(layer, Convolution) and layer.kernel.dim() == 3:
            kernel_map, _ = layer.kernel_map(*inputs)
            shape = tuple(layer.kernel.shape)
            if (id(kernel_map), shape) in found:
                found[id(kernel_map), shape].count += 1
            else:
                kernel, features = layer.kernel.detach(), inputs[0].features.detach()
                own = Distinct(f"{row.id} {shape}", kernel_map, kernel, features, wants_features=bool(found))
                found[id(kernel_map), shape] = own
        with torch.no_grad():
            tensors[row.id] = module.run_layer(row, tensors, minibatch=0)
    return list(found.values())


def products(found: Sequence[Distinct]) -> dict[str, float]:
    """Return the seconds of the matrix products of all these convolutions, those alike timed once."""
    seconds = 0.0
    for own in found:
        multiply = bare_products(own.kernel_map, own.kernel, wants_features=own.wants_features)
        multiply()  # brings the pages in
        seconds += own.count * _seconds(multiply)
    return {"step": seconds}


def gathered(kernel_map: Any, kernel: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Return rows of inputs, rows of outputs and the matrix of each kernel offset that has pairs."""
    counts = kernel_map.pairs.counts
    inputs, outputs = torch.rand(sum(counts), kernel.shape[1]), torch.rand(sum(counts), kernel.shape[2])
    offsets = zip(inputs.split(counts), outputs.split(counts), kernel, strict=True)
    return [offset for offset in offsets if len(offset[0])]


def bare_products(kernel_map: Any, kernel: Tensor, *, wants_features: bool) -> Callable[[], None]:
    """Return the matrix products of a convolution's forward and backward alone, on rows gathered beforehand."""
    products = [
        (x, y, matrix, torch.empty_like(x), torch.empty_like(matrix)) for x, y, matrix in gathered(kernel_map, kernel)
    ]

    def multiply() -> None:
        for x, y, matrix, _, _ in products:
            torch.mm(x, matrix, out=y)
        for x, y, matrix, grad_x, grad_matrix in products:
            torch.mm(x.t(), y, out=grad_matrix)
            if wants_features:
                torch.mm(y, matrix.t(), out=grad_x)

    return multiply


def multiply_onednn(rows: Tensor, matrix: Tensor) -> Tensor:
    """[P, A] times [A, B]; either may be a transpose."""
    return torch.ops.mkldnn._linear_pointwise(rows, matrix.t(), None, "none", [], "")


def onednn_products(kernel_map: Any, kernel: Tensor, *, wants_features: bool) -> Callable[[], None]:
    """Return the same products by oneDNN."""
    products = gathered(kernel_map, kernel)

    def multiply() -> None:
        for x, _, matrix in products:
            multiply_onednn(x, matrix)
        for x, y, matrix in products:
            multiply_onednn(x.t(), y)
            if wants_features:
                multiply_onednn(y, matrix.t())

    return multiply


def bare_moves(kernel_map: Any, kernel: Tensor, *, wants_features: bool) -> Callable[[], None]:
    """Return what brings rows to those products and adds up what they give, forward and backward, and nothing else."""
    pairs, back = kernel_map.pairs, kernel_map.transposed.pairs
    inputs, outputs = torch.rand(back.num_out, kernel.shape[1]), torch.rand(pairs.num_out, kernel.shape[2])
    rows = len(pairs.in_rows)
    of_inputs, of_outputs = torch.rand(rows, kernel.shape[1]), torch.rand(rows, kernel.shape[2])

    def move() -> None:
        torch.index_select(inputs, 0, pairs.in_rows, out=of_inputs)
        pairs.bags.sum(of_outputs)
        torch.index_select(inputs, 0, back.out_rows, out=of_inputs)  # not kept from the forward
        torch.index_select(outputs, 0, back.in_rows, out=of_outputs)
        if wants_features:
            back.bags.sum(of_inputs)

    return move


def time_convolutions(case: Case, batch: PointBatch, chosen: Engine, rounds: int) -> dict[str, Any]:
    """Time each convolution, forward and backward, against its bare matrix products."""
    from sparsepipe.engines.native.convolution import convolve

    found: dict[str, Any] = {}
    totals: dict[str, list[list[float]]] = {}
    for own in convolutions(case, batch, chosen):
        kernel_map, wants_features = own.kernel_map, own.wants_features
        features, kernel = own.features.clone().requires_grad_(wants_features), own.kernel.clone().requires_grad_()
        gradient = torch.rand(kernel_map.num_out, kernel.shape[2])
        multiply = bare_products(kernel_map, kernel.detach(), wants_features=wants_features)
        move = bare_moves(kernel_map, kernel.detach(), wants_features=wants_features)

        def convolution(x=features, k=kernel, m=kernel_map, g=gradient) -> None:
            x.grad = k.grad = None
            convolve(x, k, m).backward(g)

        functions = {"convolution": convolution, "products": multiply, "moves": move}
        times = turns(rounds, {key: lambda f=function: _seconds(f) for key, function in functions.items()})
        if _HAS_ONEDNN:  # by itself: it makes code as it goes, which takes caches from who comes next
            multiply = onednn_products(kernel_map, kernel.detach(), wants_features=wants_features)
            times |= turns(rounds, {"products-onednn": lambda f=multiply: _seconds(f)})
        for key, values in times.items():
            totals.setdefault(key, []).append(values)
        found[own.name] = {
            "pairs": kernel_map.num_pairs,
            "seconds": {key: spread(values) for key, values in times.items()},
            "convolution_over_products": ratio(times["convolution"], times["products"]),
            "convolution_over_products_and_moves": ratio(times["convolution"], _added(times)),
        }
        if "products-onednn" in times:
            found[own.name]["convolution_over_products_onednn"] = ratio(times["convolution"], times["products-onednn"])
    sums = {key: [sum(turn) for turn in zip(*rows, strict=True)] for key, rows in totals.items()}
    result = {
        "each": found,
        "sum_over_products": ratio(sums["convolution"], sums["products"]),
        "sum_over_products_and_moves": ratio(sums["convolution"], _added(sums)),
    }
    if "products-onednn" in sums:
        result["sum_over_products_onednn"] = ratio(sums["convolution"], sums["products-onednn"])
    return result


def _added(times: Mapping[str, Sequence[float]]) -> list[float]:
    return [sum(both) for both in zip(times["products"], times["moves"], strict=True)]


def _seconds(function: Callable[[], Any]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def memory_bytes(case: Case, batch: PointBatch, chosen: Engine, *, half: bool) -> int:
    """Return the most resident memory three training steps take over that of the process before the network."""
    status = Path("/proc/self/status")

    def field(name: str) -> int:
        line = next(line for line in status.read_text().splitlines() if line.startswith(name))
        return int(line.split()[1]) * 1024

    batch = for_network(case, batch)
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
    before = field("VmRSS:")
    trainer = Trainer(case, chosen, half=half)
    for _ in range(3):
        trainer.step(batch)
    return field("VmHWM:") - before


def child(options: argparse.Namespace) -> dict[str, Any]:
    """Do the part of the work that `--child` names, for one case."""
    torch.set_num_threads(options.threads[0])
    case = Case(options.model, options.clouds)
    result: dict[str, Any] = {"clouds": {}, "steps": {}, "convolutions": {}}
    try:
        batch, result["clouds"][case.clouds] = clouds(case.clouds, Path(options.scratch))
    except InputError as error:
        print(f"bench_engines: {case.name}: {error}", file=sys.stderr)
        return result
    if options.child == "memory":
        chosen = engine(options.engine.removesuffix("-bf16"))
        return {"bytes": memory_bytes(case, batch, chosen, half=options.engine.endswith("-bf16"))}
    if options.child == "peer":
        serve(case, batch, engine(options.engine))
        return {}
    engines = {name: engine(name) for name in options.engines}
    if "steps" in options.parts:
        told = waiting("minkowski", options.threads[0]) if "minkowski" in engines else {}
        peers = {"minkowski-passive": Peer(options, case, "minkowski", told)} if told else {}
        result["steps"][case.name] = time_steps(case, batch, engines, peers, options.rounds)
        for peer in peers.values():
            peer.end()
    if "convolutions" in options.parts and case.clouds == "modelnet":
        result["convolutions"][case.name] = time_convolutions(case, batch, engines["native"], 3 * options.rounds)
    return result


def _cases(options: argparse.Namespace) -> Sequence[Case]:
    chosen = CASES[:_NUM_QUICK] if options.quick else CASES
    return [case for case in chosen if not options.cases or any(word in case.name for word in options.cases)]


def child_command(options: argparse.Namespace, threads: int, part: str, case: Case, *words: str) -> list[str]:
    """Return the command that does a part of the work for a case, as a child of this process."""
    command = [sys.executable, str(Path(__file__).resolve()), "--threads", str(threads), "--child", part]
    command += ["--model", case.model, "--clouds", case.clouds, "--engines", *options.engines, *words]
    return command + ["--rounds", str(options.rounds), "--scratch", options.scratch, "--parts", *options.parts]


def run_child(options: argparse.Namespace, threads: int, part: str, case: Case, *words: str) -> dict[str, Any]:
    """Do a part of the work for a case in a process whose every thread pool has `threads` threads.

    One process a case: what an earlier one leaves of the heap is not the next one's matter.
    """
    pools = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    environment = os.environ | {name: str(threads) for name in pools}
    command = child_command(options, threads, part, case, *words)
    done = subprocess.run(command, check=False, env=environment, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"bench_engines: {part} of {case.name} failed; its traceback is above")
    return json.loads(done.stdout.splitlines()[-1])


def measure_memory(options: argparse.Namespace, case: Case) -> dict[str, Any]:
    """Measure each engine's peak, in turns, in processes of their own with as many threads as the first asked for.

    Nothing is found where the clouds are not there, as the first process says.
    """
    peaks: dict[str, list[float]] = {name: [] for name in (*options.engines, "native-bf16")}
    for _ in range(min(_MEMORY_ROUNDS, options.rounds)):
        for name, own in peaks.items():
            measured = run_child(options, options.threads[0], "memory", case, "--engine", name)
            if "bytes" not in measured:
                return {}
            own.append(measured["bytes"])
    found: dict[str, Any] = {"bytes": {name: spread(own) for name, own in peaks.items()}}
    if "minkowski" in peaks:
        found["native_over_minkowski"] = ratio(peaks["native"], peaks["minkowski"])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="write one JSON document")
    parser.add_argument("--quick", action="store_true", help="fewer cases and rounds: a few minutes")
    parser.add_argument("--threads", type=int, nargs="+", default=[2, 1], help="numbers of threads (default: 2 1)")
    parser.add_argument("--rounds", type=int, help="rounds of a case (default: 11, quick: 5)")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="what to measure (default: all)")
    parser.add_argument("--cases", nargs="+", default=[], metavar="WORD", help="only cases whose name holds a word")
    for name in ("child", "engine", "model", "clouds", "scratch"):
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    parser.add_argument("--engines", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.rounds = options.rounds or (5 if options.quick else 11)
    if options.child:
        print(json.dumps(child(options)))
        return
    options.engines = _engines()
    document: dict[str, Any] = {
        "device": device_name(torch.device("cpu")),
        "processors": os.cpu_count(),
        "load_average_before": os.getloadavg(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "environment": {name: value for name, value in os.environ.items() if name.startswith(("OMP_", "MKL_", "THP_"))},
        "rounds": options.rounds,
        "targets": TARGETS,
        "threads": {},
        "memory": {},
    }
    with tempfile.TemporaryDirectory() as scratch:
        options.scratch = scratch
        if {"steps", "convolutions"} & set(options.parts):
            for count in options.threads:
                part = document["threads"][str(count)] = {"clouds": {}, "steps": {}, "convolutions": {}}
                for case in _cases(options):
                    print(f"bench_engines: {count} threads: {case.name}", file=sys.stderr)
                    for key, found in run_child(options, count, "steps", case).items():
                        part[key] |= found
                    _write(document, options.json)  # what is there, should the rest be cut off
        if "memory" in options.parts:
            for case in _cases(options):
                print(f"bench_engines: memory: {case.name}", file=sys.stderr)
                if found := measure_memory(options, case):
                    document["memory"][case.name] = found
                _write(document, options.json)
    document["load_average_after"] = os.getloadavg()
    _write(document, options.json)
    report(document)


def _write(document: Mapping[str, Any], path: str | None) -> None:
    if path:
        Path(path).write_text(json.dumps(document, indent=2) + "\n")


def _engines() -> list[str]:
    try:
        return ["native", engine("minkowski").name]
    except InputError as error:
        print(f"bench_engines: {error}", file=sys.stderr)
        return ["native"]


def report(document: Mapping[str, Any]) -> None:
    """Print the document as tables: medians, quartiles in brackets."""

    def cell(value: Mapping[str, Any]) -> str:
        low, high = value["quartiles"]
        return f"{value['median']:.2f} [{low:.2f}, {high:.2f}]"

    load = ", ".join(f"{value:.1f}" for value in document["load_average_after"])
    print(f"{document['device']}, {document['processors']} processors, load {load}, {document['rounds']} rounds")
    for count, part in document["threads"].items():
        print(f"\n{count} threads")
        for name, origin in part["clouds"].items():
            print(f"  {name}: {origin}")
        for name, step in part["steps"].items():
            print(f"  {name}, {step['voxels']} voxels, load {step['load_average']:.1f}")
            for engine_name, seconds in step["seconds"].items():
                sgd = f", with SGD {cell(seconds['step_with_sgd'])} s" if "step_with_sgd" in seconds else ""
                print(f"    {engine_name:18} step {cell(seconds['step'])} s{sgd}")
            for key, value in step.items():
                if key not in ("voxels", "seconds", "load_average"):
                    print(f"    {key:36} {cell(value)}   of the least {value['least']:.2f}")
        for name, found in part["convolutions"].items():
            each = {key: value["convolution_over_products"] for key, value in found["each"].items()}
            worst = max(each, key=lambda key: each[key]["median"])
            total = found["sum_over_products"]
            print(f"  convolutions of {name}: {cell(total)} x their products, of the least {total['least']:.2f};")
            print(f"    most: {worst} {cell(each[worst])}")
            within = sum(value["median"] <= TARGETS["convolution_over_products"] for value in each.values())
            print(f"    within {TARGETS['convolution_over_products']}: {within} of {len(each)}")
            print(f"    {cell(found['sum_over_products_and_moves'])} x products and moves")
            if "sum_over_products_onednn" in found:
                print(f"    {cell(found['sum_over_products_onednn'])} x oneDNN's products")
    print("\npeak memory, MiB")
    for name, own in document["memory"].items():
        peaks = (f"{engine_name} {value['median'] / 2**20:.0f}" for engine_name, value in own["bytes"].items())
        over = f", native_over_minkowski {cell(own['native_over_minkowski'])}" if "native_over_minkowski" in own else ""
        print(f"  {name}: {', '.join(peaks)}{over}")


if __name__ == "__main__":
    main()
