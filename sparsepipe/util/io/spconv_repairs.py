"""Repairs of spconv 2.3.8, with which it trains on a CPU under torch 2.9 and later."""

import sys
from collections.abc import Callable, Sequence
from functools import wraps
from inspect import signature
from types import ModuleType
from typing import Any, TypeAlias

from .options import tell

Tensor: TypeAlias = Any  # torch's, which this folder does not import


def repair_spconv() -> None:
    """Repair spconv if it is imported and was not repaired yet; a line says so.

    - `SparseConvTensor.dense` indexes with a list, which torch takes for an index of the first axis alone.
    - The backward asks for a CUDA stream, on a CPU too.
    - In evaluation a convolution gives its bias to a function that adds none on a CPU.
    - With several threads on a CPU, convolutions and pools add into the same rows at once: sums are lost.
    """
    core, ops = (sys.modules.get(f"spconv.pytorch.{name}") for name in ("core", "ops"))
    if core is None or ops is None or core.scatter_nd is _scattered:
        return
    vars(core).update(scatter_nd=_scattered)
    stream = _stream_of_gpus(ops.get_current_stream, ops.torch.cuda)
    vars(ops).update(get_current_stream=stream, indice_conv=_with_bias(ops.indice_conv))
    vars(ops).update({name: _in_one_thread(vars(ops)[name], ops.torch) for name in _RACING})
    tell("spconv: repaired for CPUs in this process: dense(), the backward, biases in evaluation, sums by one thread")


_RACING = ("indice_conv", "indice_conv_backward", "indice_maxpool", "indice_maxpool_backward")


def _scattered(indices: Tensor, updates: Tensor, shape: Sequence[int]) -> Tensor:
    """Return zeros of a shape with rows `updates` [N, C] at `indices` [N, D]."""
    return updates.new_zeros(shape).index_put(tuple(indices.unbind(dim=-1)), updates)


def _stream_of_gpus(current: Callable[[], int], cuda: ModuleType) -> Callable[[], int]:
    """Return a function that gives the current CUDA stream, or 0 if there is no GPU. `cuda`: torch.cuda."""
    return lambda: current() if cuda.is_available() else 0


def _with_bias(convolve: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a convolution that adds its bias on a CPU, too."""
    parameters = signature(convolve)

    @wraps(convolve)
    def convolved(*args: object, **kwargs: object) -> Tensor:
        given = parameters.bind(*args, **kwargs).arguments
        if given["features"].is_cuda or (bias := given.pop("bias", None)) is None:
            return convolve(*args, **kwargs)
        return convolve(**given) + bias

    return convolved


def _in_one_thread(operation: Callable[..., Any], torch: ModuleType) -> Callable[..., Any]:
    """Return an operation on rows, its first argument, that uses one thread on a CPU."""

    @wraps(operation)
    def operated(*args: Any, **kwargs: object) -> Any:
        threads = torch.get_num_threads()
        if threads == 1 or args[0].is_cuda:
            return operation(*args, **kwargs)
        torch.set_num_threads(1)
        try:
            return operation(*args, **kwargs)
        finally:
            torch.set_num_threads(threads)

    return operated
