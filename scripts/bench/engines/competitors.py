"""Who trains: a network under an engine, in this process or in one with an environment of its own."""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as functional

from sparsepipe.data import PointBatch
from sparsepipe.engines import Engine, Subnetwork
from sparsepipe.networks import INPUT, network

from .cases import CLASSES, Case, for_network
from .children import child_command
from .products import CPU, wait_for


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

    def __init__(self, case: Case, chosen: Engine, *, half: bool = False, device: torch.device = CPU) -> None:
        net = network(case.model, num_classes=CLASSES[case.clouds])
        self.engine, self.half, self.last, self.device = chosen, half, net.rows[-1].id, device
        self.module = Subnetwork(net, chosen, seed=0).to(device)
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=1e-4, momentum=0.9)

    def step(self, batch: PointBatch, tensor: Any = None) -> dict[str, float]:
        """Return the seconds of forward, loss and backward, also of processor time, and of the whole step.

        `tensor` is one used before, whose kernel maps are there.
        """
        self.optimizer.zero_grad(set_to_none=True)
        wait_for(self.device)
        start, busy = time.perf_counter(), time.process_time()
        if tensor is None:
            tensor = self.engine.tensor(batch, self.device)
        else:
            tensor = self.engine.replace(tensor, self.engine.features(tensor).detach())
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.half):
            rows = self.engine.features(self.module({INPUT: tensor}, minibatch=0, keep=(self.last,))[self.last])
        # Rows have the engine's own order, which costs the same.
        functional.cross_entropy(rows.float(), batch.labels.to(self.device)).backward()
        wait_for(self.device)
        trained, spent = time.perf_counter(), time.process_time() - busy
        self.optimizer.step()
        wait_for(self.device)
        return {"step": trained - start, "step_with_sgd": time.perf_counter() - start, "step_processor": spent}
