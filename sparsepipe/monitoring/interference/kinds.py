"""What intruders do, by name: each kind makes a function that is called again and again, on a processor or a GPU.

They are unlike in what they take from their neighbours: arithmetic units, memory, caches, or some of each. On a GPU
each step ends when the GPU has done it: kernels that wait in a queue disturb no one, and would still be there when the
intruder is to be gone.
"""

from collections.abc import Callable, Mapping

import numpy as np

from ...errors import InputError
from .places import CPU, torch_device

Step = Callable[[], object]
BEGIN, REST = "begin", "rest"  # what one that rests at first is told, in a line on its stdin
_MATRIX_ROWS = 512  # three such float32 matrices are 3 MB: they stay in caches, and arithmetic units are what is used
_STREAM_BYTES = 64_000_000  # more than most last-level caches
_CLOUD_POINTS, _CHANNELS = 4000, 32
_TRAINED = "minkvgg11bn-narrow"


def matrix_products(device: str = CPU) -> Step:
    """Products of two matrices: arithmetic units alone. On a CPU they stay in the caches."""
    if device != CPU:
        from ...profiling.layer_timer import products

        return products(torch_device(device))
    a, b = (np.random.default_rng(k).random((_MATRIX_ROWS, _MATRIX_ROWS), dtype=np.float32) for k in (0, 1))
    out = np.empty_like(a)
    return lambda: np.matmul(a, b, out=out)


def memory_streams(device: str = CPU) -> Step:
    """Copies between two arrays larger than caches: the memory's bandwidth."""
    if device != CPU:
        from ...profiling.layer_timer import copies

        return copies(torch_device(device))
    source, target = (np.ones(_STREAM_BYTES // 8) for _ in range(2))
    return lambda: np.copyto(target, source)


def sparse_convolutions(device: str = CPU) -> Step:
    """Forward and backward of two sparse convolutions by the native engine, kernel maps rebuilt each time."""
    from ...data.synthetic_batches import scattered_batch
    from ...engines import engine
    from ...engines.subnetwork import build
    from ...networks.rows import Network, Row
    from ...profiling.layer_timer import whole_step

    place = torch_device(device)
    sizes = {"kernel_size": 3, "out_channels": _CHANNELS}
    first = Row("conv1", "convolution", ("input",), {"in_channels": 1, **sizes})
    second = Row("conv2", "convolution", ("conv1",), {"in_channels": _CHANNELS, **sizes})
    subnetwork = build(Network("two_convolutions", (first, second), 1, _CHANNELS), engine("native"), seed=0).to(place)
    batch = scattered_batch(_CLOUD_POINTS, seed=0)
    return lambda: whole_step(subnetwork, batch, device=place)


def training(device: str = CPU) -> Step:
    """Training steps of a narrow MinkVGG11 on handwritten digits: forward, backward and update."""
    from ...engines.subnetwork import build
    from ...profiling.layer_timer import Updates, update_step, whole_step
    from ...profiling.of_model import opened
    from ...runtime.config import RunConfig
    from ...runtime.workloads.resolved import resolve

    place = torch_device(device)
    config = RunConfig(_TRAINED, "digits", voxel_size=0.1, batch_size=16, num_points=512, engine="native")
    task, order = opened(resolve(config))
    batch = task.training.batch(order[0])
    subnetwork = build(task.network, task.engine, seed=0).to(place)
    updates = Updates(subnetwork)

    def step() -> None:
        whole_step(subnetwork, batch, device=place)
        update_step(updates, device=place)

    return step


KINDS: Mapping[str, Callable[[str], Step]] = {
    "matrix-products": matrix_products,
    "memory-streams": memory_streams,
    "sparse-convolutions": sparse_convolutions,
    "training": training,
}


def check_kind(kind: str) -> None:
    """Raise InputError for a kind of intruder that is none, listing those there are."""
    if kind not in KINDS:
        raise InputError(
            "intruder.kind_unknown",
            f"unknown co-located workload {kind!r}, expected one of {', '.join(KINDS)}",
            kind=kind,
        )


def check_share(share: float) -> None:
    """Raise InputError for a share of a device's time that an intruder cannot take."""
    if not 0 < share <= 1:
        raise InputError(
            "intruder.share_out_of_range",
            f"the workload's share is {share:g}, expected more than 0 and at most 1, such as 0.25",
        )
