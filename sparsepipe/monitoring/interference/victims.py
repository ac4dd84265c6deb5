"""Victims: networks whose training steps are timed layer by layer while intruders compute."""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from ...errors import InputError
from ...runtime.processes.rank_readings import uuid_of
from ...util.host.background_load import processors_of
from ...util.io.fields import shown
from ...values.graph import LayerGraph

CPU, GPU = "cpu", "cuda"


def places(device: str) -> list[int]:
    """Return the numbers of the processors that this process may use; with "cuda" of the GPUs that torch sees."""
    if device == CPU:
        return sorted(processors_of()) or list(range(os.cpu_count() or 1))
    from ...profiling.devices import num_gpus

    return list(range(num_gpus()))


def check_places(device: str, numbers: Sequence[int]) -> None:
    """Raise InputError if there is no such processor that this process may use, or no such GPU, or none is given."""
    here = places(device)
    if numbers and not set(numbers) - set(here):
        return
    name = "cores" if device == CPU else "GPUs"
    told = f"{name} {shown(list(numbers))}" if numbers else f"no {name}"
    if not here:
        raise InputError("device.no_cuda", f"{told} given, but torch finds no CUDA device; give CPU cores instead")
    raise InputError(
        "intruder.core_unusable",
        f"{told} given, but this process can use {', '.join(map(str, here))}; choose some of these",
    )


def device_here() -> str:
    """Return "cuda" where torch sees a GPU, else "cpu"."""
    return GPU if places(GPU) else CPU


def device_at(device: str, number: int) -> str:
    """Return how torch calls a processor, which it does not distinguish, or a GPU."""
    return device if device == CPU else f"{device}:{number}"


def torch_device(name: str) -> Any:
    """Return a torch.device, the current one from now on where it is a GPU. Raises InputError for one not here."""
    from ...profiling.devices import made_current, usable

    return made_current(usable(name))


_LEAST_PASSES = 3
_WARMUP = 2


def kind_of(description: str) -> str:
    """Return the kind of a layer by its description, such as "convolution" of "convolution(in_channels=1, …)"."""
    return description.partition("(")[0].strip() or "layer"


@dataclass(frozen=True)
class Victim:
    """A network on a data set: what a measurement is of."""

    model: str
    data: str = "digits"
    batch_size: int = 16
    voxel_size: float = 0.1
    num_points: int = 512
    engine: str = "native"

    @property
    def name(self) -> str:
        return f"{self.model} × {self.batch_size}"


@dataclass(frozen=True)
class KindSeconds:
    """The layers of one kind in a victim: mean seconds of one of them in a step, forward and backward."""

    seconds: float
    layers: int
    parameter_bytes: float  # of one of them, on average


class OpenVictim:
    """A victim whose data are read and whose layers are built, ready to be timed again and again.

    `device`: "cpu", or a GPU such as "cuda:0". Raises InputError if its network, its data or its device are none.
    """

    def __init__(self, victim: Victim, *, device: str = CPU, seed: int = 0) -> None:
        from ...engines.subnetwork import build
        from ...profiling.of_model import opened
        from ...runtime.config import RunConfig
        from ...runtime.workloads.resolved import resolve

        config = RunConfig(
            victim.model,
            victim.data,
            voxel_size=victim.voxel_size,
            batch_size=victim.batch_size,
            num_points=victim.num_points,
            engine=victim.engine,
            seed=seed,
        )
        task, order = opened(resolve(config))
        self.victim, self._device = victim, torch_device(device)
        self._batch = task.training.batch(order[0])
        self._subnetwork: Any = build(task.network, task.engine, seed=seed).to(self._device)
        self._graph: LayerGraph = task.network.graph()
        for _ in range(_WARMUP):
            self._time()

    @property
    def gpu(self) -> str | None:
        """The UUID of its GPU; None on a CPU."""
        return uuid_of(self._device) if self._device.type == GPU else None

    def measure(self, seconds: float) -> tuple[int, Mapping[str, KindSeconds]]:
        """Make training steps for about so many seconds; return how many, and the means by kind of layer.

        Means, not medians: an intruder takes the processor away in turns, and what it takes is in the mean alone.
        """
        end, passes = time.monotonic() + seconds, 0
        total = dict.fromkeys((layer.id for layer in self._graph.layers), 0.0)
        while passes < _LEAST_PASSES or time.monotonic() < end:
            times = self._time()
            for id in total:
                total[id] += times.forward.get(id, 0.0) + times.backward.get(id, 0.0)
            passes += 1
        return passes, self._by_kind({id: taken / passes for id, taken in total.items()})

    def _time(self) -> Any:
        from ...profiling.layer_timer import time_layers

        return time_layers(self._subnetwork, self._batch, device=self._device)

    def _by_kind(self, seconds: Mapping[str, float]) -> Mapping[str, KindSeconds]:
        groups: dict[str, list[tuple[float, float]]] = {}
        for layer in self._graph.layers:
            groups.setdefault(kind_of(layer.description), []).append((seconds[layer.id], layer.parameter_bytes))
        return {
            kind: KindSeconds(sum(s for s, _ in part) / len(part), len(part), sum(b for _, b in part) / len(part))
            for kind, part in groups.items()
        }


@contextmanager
def pinned_to(core: int | None) -> Iterator[None]:
    """Keep this thread, and those that it starts, on one processor (None: on any), with one thread for each library."""
    from ...profiling.devices import limited_to

    before = processors_of()
    with limited_to(1):
        with suppress(AttributeError, OSError):
            os.sched_setaffinity(0, before if core is None else {core})
        try:
            yield
        finally:
            with suppress(AttributeError, OSError):
                os.sched_setaffinity(0, before)
