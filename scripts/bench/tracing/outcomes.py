"""What becomes of a network that is cut in two where the time is: cut, unbalanced, one layer, refused, wrong, crash."""

import multiprocessing
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from scripts.bench.tracing import families
from sparsepipe.errors import InputError
from sparsepipe.networks.traced import TracedNetwork, trace
from sparsepipe.networks.traced.verification import differences

KINDS = ("cut", "unbalanced", "one layer", "refused", "wrong", "crash")
HEAVIEST = 0.65  # share of the time of the heavier of two stages, unless one layer alone takes more
ROUNDING = {True: 1e-4, False: 1e-9}  # of the largest number compared with, by whether that is in float32
LONGEST = 400  # seconds
REPEATS = 7  # of which the fastest counts


@dataclass(frozen=True)
class Outcome:
    """What became of one network. `share`: of the time, in the heavier stage of two."""

    network: str
    kind: str
    layers: int = 0
    share: float = 0.0
    largest: float = 0.0  # share of the slowest layer
    lines: tuple[str, ...] = ()  # what was said, or why not

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        shares = f"{self.share:5.2f} (layer {self.largest:.2f})" if self.layers else ""
        return f"{self.network:27s} {self.kind:10s} {self.layers:4d} {shares:18s} {'; '.join(self.lines)[:200]}"


def outcome(name: str) -> Outcome:
    """Return what becomes of a network, in a process of its own: one that ends it is a crash, too."""
    families.import_package(name)  # once for all of its networks
    read, write = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=lambda: write.send(_outcome(name)))
    process.start()
    write.close()
    try:
        if read.poll(LONGEST):
            return read.recv()  # type: ignore[no-any-return]
        return Outcome(name, "crash", lines=(f"it takes more than {LONGEST} s",))
    except EOFError:
        process.join()
        return Outcome(name, "crash", lines=(f"its process ended with {process.exitcode}",))
    finally:
        process.kill()
        process.join()


def _outcome(name: str) -> Outcome:
    """Trace a network, cut it in two, and compare it with plain torch on three minibatches."""
    said: list[str] = []
    try:
        module, minibatches = families.build(name)
        rounding = ROUNDING[any(parameter.dtype == torch.float32 for parameter in module.parameters())]
        network = trace(module, minibatches[0], name=name, say=said.append, another=minibatches[1])
        if len(network.rows) < 2 or "" in network.opaque_paths:
            return Outcome(name, "one layer", lines=tuple(said))
        seconds = layer_seconds(network, minibatches[1])
        cut = best_cut(seconds)
        total, ids = sum(seconds), [row.id for row in network.rows]
        share = max(sum(seconds[:cut]), sum(seconds[cut:])) / total
        largest = max(seconds) / total
        options: dict[str, Any] = {"engine": families.engine(name), "stages": [ids[:cut], ids[cut:]]}
        for inputs in minibatches:
            for training in (True, False):
                for each in differences(network, inputs, training=training, **options):
                    if each.relative > rounding:
                        why = f"{each.what} is off by {each.size:.1g}, training={training}"
                        return Outcome(name, "wrong", len(ids), share, largest, (why, *said))
    except InputError as error:
        return Outcome(name, "refused", lines=(str(error), *said))
    except Exception as error:  # that is the outcome
        return Outcome(name, "crash", lines=(f"{type(error).__name__}: {' '.join(str(error).split())}", *said))
    kind = "cut" if share <= max(HEAVIEST, largest + 1e-9) else "unbalanced"
    return Outcome(name, kind, len(ids), share, largest, tuple(said))


def layer_seconds(network: TracedNetwork, inputs: Any) -> list[float]:
    """Return the forward time of each layer, the fastest of several."""
    stage = network.build(engine=None).train()
    best = [float("inf")] * len(network.rows)
    for _ in range(REPEATS):
        tensors = stage.enter(inputs)
        for i, row in enumerate(network.rows):
            begin = time.perf_counter()
            tensors = {**tensors, **stage.run_layer(row, tensors, minibatch=0)}
            best[i] = min(best[i], time.perf_counter() - begin)
    return best


def best_cut(seconds: Sequence[float]) -> int:
    """Return how many layers the first of two stages has, so that the heavier one is as light as can be."""
    return min(range(1, len(seconds)), key=lambda cut: max(sum(seconds[:cut]), sum(seconds[cut:])))


def counts(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """Return how many networks became of each kind."""
    return {kind: sum(each.kind == kind for each in outcomes) for kind in KINDS}
