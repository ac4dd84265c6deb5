"""On a GPU: the native engine's steps, and its convolutions against bare products and, where it is installed, spconv.

spconv is asked for submanifold convolutions alone (stride 1, an odd kernel): with a stride its output has other voxels
than MinkowskiEngine's and ours. Its kernel maps are made beforehand, as ours are, and its output is held against ours.
"""

import importlib.util
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sparsepipe.data import PointBatch
from sparsepipe.engines import Engine, engine
from sparsepipe.engines.native import convolution, coordinates

from ..rounds import turns
from .cases import Case, clouds, for_network
from .competitors import Trainer
from .products import Distinct, convolutions, seconds_of
from .rounds import ratio, spread

PRECISIONS = {  # name -> type of rows and kernels, and how products of float32 are rounded
    "single": (torch.float32, "highest"),
    "tf32": (torch.float32, "high"),
    "half": (torch.float16, "highest"),
}


def measure(case: Case, scratch: Path, rounds: int, device: torch.device) -> dict[str, Any]:
    """Time a case's training steps, and each of its convolutions in each precision.

    Raises InputError where the clouds are not there, torch.OutOfMemoryError where they do not fit.
    """
    chosen = engine("native")
    batch, origin = clouds(case.clouds, scratch)
    batch = for_network(case, batch)
    return {
        "clouds": origin,
        "voxels": batch.num_voxels,
        "steps": _steps(case, batch, chosen, rounds, device),
        "convolutions": {name: _convolutions(case, batch, chosen, rounds, device, name) for name in PRECISIONS},
    }


def _steps(case: Case, batch: PointBatch, chosen: Engine, rounds: int, device: torch.device) -> dict[str, Any]:
    trainers = {
        "native": Trainer(case, chosen, device=device),
        "native-bf16": Trainer(case, chosen, half=True, device=device),
    }
    used = chosen.tensor(batch, device)

    def gathered() -> dict[str, float]:
        with _GATHERED():
            return trainers["native"].step(batch)

    functions: dict[str, Callable[[], dict[str, float]]] = {
        name: lambda own=own: own.step(batch) for name, own in trainers.items()
    }

    def boxed() -> dict[str, float]:
        with _BOXED():
            return trainers["native"].step(batch)

    functions |= {"native-gathered": gathered, "native-boxes": boxed}
    functions |= {"native-warm-maps": lambda: trainers["native"].step(batch, used)}
    seconds = {name: [row["step"] for row in rows] for name, rows in turns(rounds, functions).items()}
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    trainers["native"].step(batch)
    return {
        "seconds": {name: spread(values) for name, values in seconds.items()},
        "gathered_over_native": ratio(seconds["native-gathered"], seconds["native"]),
        "native_over_native_bf16": ratio(seconds["native"], seconds["native-bf16"]),
        "kernel_map_share": 1 - min(seconds["native-warm-maps"]) / min(seconds["native"]),
        "kernel_map_share_by_boxes": 1 - min(seconds["native-warm-maps"]) / min(seconds["native-boxes"]),
        "peak_bytes": torch.cuda.max_memory_allocated(device) - before,
    }


@contextmanager
def _without(module: Any, kernels: str) -> Iterator[None]:
    """Do without some Triton kernels: a module finds none, and computes by torch."""
    find = getattr(module, kernels)
    setattr(module, kernels, lambda tensor: None)
    try:
        yield
    finally:
        setattr(module, kernels, find)


_GATHERED = partial(_without, convolution, "fused_kernels")  # rows are gathered, multiplied and added up
_BOXED = partial(_without, coordinates, "hash_tables")  # kernel maps are made of tables of a bounding box's cells


def _convolutions(
    case: Case, batch: PointBatch, chosen: Engine, rounds: int, device: torch.device, precision: str
) -> dict[str, Any]:
    """Time forward and backward of each distinct convolution, and what the network's convolutions take in all."""
    dtype, rounding = PRECISIONS[precision]
    torch.set_float32_matmul_precision(rounding)
    each: dict[str, Any] = {}
    totals: dict[str, list[list[float]]] = {}
    for own in convolutions(case, batch, chosen, device):
        features, kernel = own.features.to(dtype), own.kernel.to(dtype)
        functions = {"products": _products(own, features, kernel), "fused": _ours(own, features, kernel)}
        found: dict[str, Any] = {"pairs": own.kernel_map.num_pairs, "count": own.count}
        if features.shape[1] > 1:
            functions["gathered"] = _ours(own, features, kernel, alone=True)
        if own.keeps_voxels and importlib.util.find_spec("spconv") is not None:
            functions["spconv"], found["spconv_error"] = _spconv(own, features, kernel, tf32=precision == "tf32")
        times = turns(rounds, {key: lambda f=f: seconds_of(f, device) for key, f in functions.items()})
        found["seconds"] = {key: spread(values) for key, values in times.items()}
        found |= {f"fused_over_{key}": ratio(times["fused"], times[key]) for key in times if key != "fused"}
        each[own.name] = found
        for key in times if "spconv" in times else ():
            totals.setdefault(key, []).append([own.count * value for value in times[key]])
    torch.set_float32_matmul_precision("highest")
    sums = {key: [sum(turn) for turn in zip(*rows, strict=True)] for key, rows in totals.items()}
    # Over the convolutions that all can do.
    return {"each": each} | {f"sum_fused_over_{key}": ratio(sums["fused"], sums[key]) for key in sums if key != "fused"}


def _ours(own: Distinct, features: Tensor, kernel: Tensor, *, alone: bool = False) -> Callable[[], None]:
    x, k = features.clone().requires_grad_(own.wants_features), kernel.clone().requires_grad_()
    gradient = torch.rand(own.kernel_map.num_out, kernel.shape[2], device=x.device, dtype=x.dtype)

    def run() -> None:
        x.grad = k.grad = None
        convolution.convolve(x, k, own.kernel_map).backward(gradient)

    def gathered() -> None:
        with _GATHERED():
            run()

    return gathered if alone else run


def _products(own: Distinct, features: Tensor, kernel: Tensor) -> Callable[[], None]:
    """Return the matrix products alone, one call of torch.mm each, on rows that lie one after the other already."""
    counts = own.kernel_map.pairs.counts
    x = torch.rand(sum(counts), kernel.shape[1], device=kernel.device, dtype=kernel.dtype).split(counts)
    y = torch.rand(sum(counts), kernel.shape[2], device=kernel.device, dtype=kernel.dtype).split(counts)
    offsets = [offset for offset in zip(x, y, kernel, strict=True) if len(offset[0])]

    def multiply() -> None:
        for rows, _, matrix in offsets:
            torch.mm(rows, matrix)
        for rows, gradients, matrix in offsets:
            torch.mm(rows.t(), gradients)
            if own.wants_features:
                torch.mm(gradients, matrix.t())

    return multiply


def _spconv(own: Distinct, features: Tensor, kernel: Tensor, *, tf32: bool) -> tuple[Callable[[], None], float]:
    """Return spconv's forward and backward of the same convolution, and how far its output is from ours, relatively."""
    import spconv.constants
    import spconv.pytorch as spconv

    spconv.constants.SPCONV_ALLOW_TF32 = tf32
    size = round(len(kernel) ** (1 / 3))
    layer = spconv.SubMConv3d(*kernel.shape[1:], size, bias=False, indice_key="a").to(features.device, features.dtype)
    cube = kernel.view(size, size, size, *kernel.shape[1:])
    x = features.clone().requires_grad_(own.wants_features)
    places = own.coordinates.clone()
    step = own.tensor_stride[0]
    places[:, 1:] = places[:, 1:].div(step, rounding_mode="floor")
    places[:, 1:] -= places[:, 1:].amin(dim=0)
    shape, samples = (places[:, 1:].amax(dim=0) + 1).tolist(), int(places[:, 0].max()) + 1
    tensor = spconv.SparseConvTensor(x, places.contiguous(), shape, samples)
    expected = convolution.convolve(features, kernel, own.kernel_map).float()
    errors = []
    with torch.no_grad():
        for order in ((0, 1, 2), (2, 1, 0)):  # which axis of the kernel comes first
            layer.weight.copy_(cube.permute(4, *order, 3))
            found = layer(tensor).features.float()
            errors.append(float((found - expected).norm() / expected.norm()))
    gradient = torch.rand_like(expected, dtype=features.dtype)

    def run() -> None:
        x.grad = layer.weight.grad = None
        layer(tensor.replace_feature(x)).features.backward(gradient)

    return run, min(errors)


def table(document: Mapping[str, Any]) -> str:
    """Return the document as lines: medians, quartiles in brackets."""
    lines = [f"{document['device']}, {document['rounds']} rounds"]
    for name, found in document["cases"].items():
        lines += _case_lines(name, found)
    return "\n".join(lines)


def _case_lines(case: str, found: Mapping[str, Any]) -> list[str]:
    def cell(value: Mapping[str, Any]) -> str:
        low, high = value["quartiles"]
        return f"{value['median']:.2f} [{low:.2f}, {high:.2f}]"

    steps = found["steps"]
    lines = [f"{case}, {found['voxels']} voxels, peak {steps['peak_bytes'] / 2**20:.0f} MiB"]
    lines += [f"  {name:18} step {1000 * own['median']:.2f} ms" for name, own in steps["seconds"].items()]
    lines.append(
        f"  gathered over native {cell(steps['gathered_over_native'])}, kernel maps {steps['kernel_map_share']:.0%}"
    )
    for precision, own in found["convolutions"].items():
        sums = [f"{key.removeprefix('sum_fused_')} {cell(value)}" for key, value in own.items() if key != "each"]
        lines.append(f"  convolutions, {precision}: fused {', '.join(sums) or 'alone'}")
        for name, one in own["each"].items():
            times = ", ".join(f"{key} {1000 * value['median']:.3f}" for key, value in one["seconds"].items())
            error = f", differ by {one['spconv_error']:.1e}" if "spconv_error" in one else ""
            lines.append(f"    {name} x {one['count']}, {one['pairs']} pairs: {times} ms{error}")
    return lines
