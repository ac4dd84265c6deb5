"""A pipeline for a process of its own, with a thread for each of its ranks.

It trains a few tensors towards a target, on the minibatches that a coordinator hands out, and writes what it ends with.
"""

import json
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from exchanging_pipelines import Trained, network

from sparsepipe.runtime.pipelines.base import Kind
from sparsepipe.runtime.pipelines.client import connect
from sparsepipe.runtime.replication.between_pipelines.state import fetch_state
from sparsepipe.values.replication import rule_from_json

TIMEOUT, EPOCH, EPOCHS, SECONDS = 60.0, 1000, 1000, 0.02  # until it is told to stop


class Remote:
    """A coordinator that is a process."""

    def __init__(self, run_dir: Path, attempt: int, num_holders: int) -> None:
        self.run_dir, self.attempt, self.num_holders = run_dir, attempt, num_holders
        self.rule = rule_from_json(json.loads((run_dir / "rule.json").read_text()))

    def of(self, pipeline: int, rank: int = 0) -> Any:
        client = connect(self.run_dir, pipeline=pipeline, rank=rank, attempt=self.attempt, timeout=TIMEOUT)
        told = {"epoch_minibatches": EPOCH, "total_minibatches": EPOCH * EPOCHS, "num_holders": self.num_holders}
        client.begin(whole=1, **told)
        return client


def gradient(name: str, weight: torch.Tensor, minibatch: int) -> torch.Tensor:
    """Of half the squared distance to a target, 1 everywhere, and noise of the minibatch."""
    draw = torch.Generator().manual_seed(zlib.crc32(f"{minibatch} {name}".encode()))
    return weight - 1 + 0.1 * torch.randn(weight.shape, generator=draw)


def train(run_dir: Path, attempt: int, cuts: Sequence[int], pipeline: int) -> None:
    """Train until the run is told to stop, and write the weights. A second `attempt` joins the others again."""
    torch.set_num_threads(1)
    remote = Remote(run_dir, attempt, len(cuts) + 1)
    layers, weights, buffers = network(0)
    state = None
    if attempt:
        begun = time.monotonic()
        state = fetch_state(remote.of(pipeline, 0), layers, timeout=TIMEOUT)
        (run_dir / f"joined-{pipeline}.json").write_text(json.dumps(time.monotonic() - begun))
    one = Trained(remote, pipeline, layers, weights, buffers, cuts=cuts, momentum=0.5, state=state, timeout=TIMEOUT)
    coordinator, number = one.client, 0
    while (task := coordinator.next_task(number)).kind is not Kind.END:
        if task.kind is Kind.TRAIN:
            one.update, place = task.update, 0
            while place < task.most and (minibatch := coordinator.take_minibatch(number, place)) is not None:
                of_run = task.epoch * EPOCH + minibatch
                one.step(lambda name, weight, m=of_run: gradient(name, weight, m))
                coordinator.done(number, place, {"loss": 1.0, "samples": 4})
                place += 1
                time.sleep(SECONDS)
        elif task.kind is Kind.CLOSE_EPOCH:
            coordinator.closed(task.epoch, {})
        elif task.kind is Kind.FINISH:
            one.finish()
        number += 1
    torch.save(one.weights(), run_dir / f"weights-{pipeline}.pt")
    one.close()
