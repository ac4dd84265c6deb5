"""Intruders alongside a job, for measurements and demonstrations: a process for each processor or GPU to disturb."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from ...errors import InputError
from ...util.host.background_load import processes_at_work
from ...util.io.fields import shown
from .victims import CPU, GPU, check_places, torch_device

Step = Callable[[], object]
BEGIN, REST = "begin", "rest"  # what one that rests at first is told, in a line on its stdin
_MATRIX_ROWS = 512  # three such float32 matrices are 3 MB: they stay in caches, and arithmetic units are what is used
_STREAM_BYTES = 64_000_000  # more than most last-level caches
_CLOUD_POINTS, _CHANNELS = 4000, 32
_TRAINED = "minkvgg11bn-narrow"


# What intruders do, by name: each kind makes a function that is called again and again, on a processor or a GPU
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
    from ...data.batch import scattered_batch
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


_LOOK = 0.1  # seconds between two looks at whether all are done, and whether whoever asked is still there
MOST_SECONDS = 1e6


@dataclass(frozen=True)
class Intruder:
    """A process that disturbs one processor (device "cpu") or one GPU ("cuda")."""

    kind: str
    device: str
    number: int  # of the processor, or of the GPU as torch counts them
    process: subprocess.Popen[str]

    def begin(self) -> None:
        """Have one that rests compute, at once."""
        self._tell(BEGIN)

    def rest(self) -> None:
        """Have it compute no more, once its step is done, until it is to begin again."""
        self._tell(REST)

    def _tell(self, word: str) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(f"{word}\n")
            self.process.stdin.flush()
        except OSError:
            raise InputError(
                "intruder.gone",
                f"the co-located workload on {_where(self)} ended unexpectedly; its last command was {word}",
            ) from None


@contextmanager
def intruding(
    kinds: Sequence[str],
    *,
    cores: Sequence[int] = (),
    gpus: Sequence[int] = (),
    after: float = 0.0,
    seconds: float | None = None,
    share: float = 1.0,
    resting: bool = False,
) -> Iterator[tuple[Intruder, ...]]:
    """Run an intruder of each of `kinds` on each of the processors `cores`, or of `gpus`, while the `with` block runs.

    The block starts once all of them are ready. They wait `after` seconds, then compute for `seconds` (None: until the
    block ends), or, `resting`, from each `begin` of an intruder to its `rest`. `share`: of its processor's time (a
    GPU's: of the time) each computes so much at most, a quarter of it for 0.25; whoever gets less does not catch up.
    They are killed at the block's end, and when this process dies, whatever kills it.
    Raises InputError for unknown kinds, for processors that this process may not use, and GPUs that are missing.
    """
    for kind in kinds:
        check_kind(kind)
    check_share(share)
    device, numbers = (GPU, gpus) if gpus and not cores else (CPU, cores)
    check_places(device, numbers)
    if cores and gpus:
        raise InputError(
            "intruder.place_undecided",
            f"cores {shown(list(cores))} and GPUs {shown(list(gpus))} given; give only cores or only GPUs",
        )
    for name, value in (("after", after), ("seconds", seconds)):
        if value is not None and not 0 <= value <= MOST_SECONDS:
            raise InputError(
                "intruder.seconds_out_of_range", f"{name} is {value:g} seconds, expected 0 to {MOST_SECONDS:g}"
            )
    places = [(kind, device, number) for kind in kinds for number in numbers]
    when = {"after": after, "seconds": seconds, "share": share, "resting": resting}
    asked = [{"kind": k, "device": d, "number": n, **when} for k, d, n in places]
    alone = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    with processes_at_work(__package__, asked, **alone) as processes:
        yield tuple(Intruder(*place, process) for place, process in zip(places, processes, strict=True))


def run_intruders(
    kind: str,
    *,
    cores: Sequence[int] = (),
    gpus: Sequence[int] = (),
    after: float,
    seconds: float,
    share: float = 1.0,
    say: Callable[[str], None],
) -> dict[int, int]:
    """Intrude once, to the end; return the steps made by the number of the processor or GPU.

    The intruders end early with whoever started this process. Raises InputError if one of them failed.
    """
    parent = os.getppid()
    with intruding([kind], cores=cores, gpus=gpus, after=after, seconds=seconds, share=share) as intruders:
        where = f"{'GPU ' if gpus else ''}{', '.join(map(str, gpus or cores))}"
        say(f"{kind} on {where}: ready; begins in {after:g} s, for {seconds:g} s")
        while any(one.process.poll() is None for one in intruders):
            if os.getppid() != parent:
                raise InputError("intruder.orphaned", "the workload stopped because its parent process ended")
            time.sleep(_LOOK)
        return {one.number: _steps(one) for one in intruders}


def _where(intruder: Intruder) -> str:
    return f"{'processor' if intruder.device == CPU else 'GPU'} {intruder.number}"


def _steps(intruder: Intruder) -> int:
    assert intruder.process.stdout is not None
    told = intruder.process.stdout.read().split()
    if intruder.process.returncode != 0 or not told:
        raise InputError(
            "intruder.ended",
            f"the co-located workload on {_where(intruder)} ended with code {intruder.process.returncode}; start "
            "it again",
        )
    return int(told[-1])
