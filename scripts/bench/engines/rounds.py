"""What is measured of a case: steps by every competitor in turns, convolutions against products, memory."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from sparsepipe.data import PointBatch
from sparsepipe.engines import Engine
from sparsepipe.engines.native.convolution import convolve

from ..rounds import load, quartiles, ratios, turns
from .cases import Case, for_network
from .children import run_child
from .competitors import Peer, Trainer
from .products import HAS_ONEDNN, bare_moves, bare_products, convolutions, onednn_products, products, seconds_of

_MEMORY_ROUNDS = 5


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return median, quartiles and least."""
    low, middle, high = quartiles(values)
    return {"median": middle, "quartiles": [low, high], "least": min(values)}  # type: ignore[dict-item]


def ratio(above: Sequence[float], below: Sequence[float]) -> dict[str, float]:
    """Return the spread of the rounds' ratios, and the ratio of the least times, which load disturbs least."""
    found = spread(ratios(above, below))
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
        "load_average": load(),
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


def time_convolutions(case: Case, batch: PointBatch, chosen: Engine, rounds: int) -> dict[str, Any]:
    """Time each convolution, forward and backward, against its bare matrix products."""
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
        times = turns(rounds, {key: lambda f=function: seconds_of(f) for key, function in functions.items()})
        if HAS_ONEDNN:  # by itself: it makes code as it goes, which takes caches from who comes next
            multiply = onednn_products(kernel_map, kernel.detach(), wants_features=wants_features)
            times |= turns(rounds, {"products-onednn": lambda f=multiply: seconds_of(f)})
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
