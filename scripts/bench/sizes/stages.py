"""The peak of a stage's tensors, measured: each stage of a plan runs by itself, on what its neighbours would send."""

import copy
from bisect import bisect_left
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from sparsepipe import Cluster, Profile
from sparsepipe.planning import Problem
from sparsepipe.planning.estimate import estimate
from sparsepipe.profiling.temporary_bytes import peak_bytes
from sparsepipe.runtime.config import RunConfig
from sparsepipe.runtime.stages.base import InFlight, Output, PacketAndSamples
from sparsepipe.runtime.stages.network_stage import NetworkStage
from sparsepipe.runtime.training_state.parameter_groups import open_optimizer
from sparsepipe.runtime.training_state.weights import Version, Weights
from sparsepipe.runtime.transport.packet import Packet, decode, encode
from sparsepipe.runtime.workloads.opening import LearningTask
from sparsepipe.values.plan import Plan, Stage
from sparsepipe.values.schedule import Op, compile

CPU = torch.device("cpu")


def equal_cuts(profile: Profile, count: int) -> Plan:
    """Cut a network into `count` stages that keep about as many bytes each."""
    (kind,) = profile.device_types
    kept = np.cumsum(profile.costs_at(kind, [profile.size()])["saved_bytes"][:, 0])
    ids = [layer.id for layer in profile.graph.layers]
    ends = [bisect_left(kept.tolist(), kept[-1] * k / count) + 1 for k in range(1, count)]
    stages = (Stage(tuple(ids[a:b]), (k,)) for k, (a, b) in enumerate(pairwise([0, *ends, len(ids)])))
    return Plan(tuple(stages), "1f1b")


def predicted_peaks(profile: Profile, plan: Plan, size: float) -> list[float]:
    """Return the bytes that a plan's stages are estimated to hold with minibatches of this size."""
    (kind,) = profile.device_types
    cluster = Cluster.uniform(len(plan.stages), device_type=kind)
    problem = Problem(replace(profile, sizes=(size,)), cluster, plan.schedule, plan.num_microbatches)
    return [stage.memory_bytes for stage in estimate(plan, problem).stages]


class StagePeaks:
    """The stages of a plan for a task, on this machine's CPU."""

    def __init__(self, task: LearningTask, plan: Plan, config: RunConfig) -> None:
        self._task, self._plan, self._config = task, plan, config

    def measured(self, batch: Any, *, minibatches: int) -> list[int]:
        """Return the most bytes of tensors that each stage holds at once, weights too.

        It trains on `minibatches` that are all the same.
        """
        forwards, backwards = self._packets(batch)
        return [
            peak_bytes(partial(self._train, stage, batch, *received, minibatches), device=CPU)
            for stage, received in enumerate(zip(forwards, backwards, strict=True))
        ]

    def _open(self, stage: int) -> NetworkStage:
        task = self._task
        per_voxel = not task.training.targets_are_labels
        return NetworkStage(
            task.network,
            task.engine,
            self._plan,
            stage,
            config=self._config,
            device=CPU,
            loss=task.loss,
            per_voxel=per_voxel,
        )

    def _packets(self, batch: Any) -> tuple[list[Any], list[Any]]:
        """Return what each stage receives of a minibatch: forwards, and backwards."""
        forwards, flights = [batch], list[InFlight]()
        stages = [self._open(k) for k in range(len(self._plan.stages))]
        for stage in stages:
            flight, packet = _forward(stage, Version(0, stage.parameters()), 0, forwards[-1], batch)
            flights.append(flight)
            if packet is not None:
                forwards.append(encode(packet, packed=False))
        backwards: list[Any] = [None]
        for stage, flight in zip(reversed(stages), reversed(flights), strict=True):
            gradients = [None] if stage.is_last else stage.unpack_output_gradients(flight, decode(*backwards[-1]))
            _, features = stage.backward(flight, gradients)
            if not stage.is_first:
                backwards.append(encode(stage.pack_input_gradients(flight, features), packed=False))
        return forwards, backwards[::-1]

    def _train(self, stage: int, batch: Any, forwards: Any, backwards: Any, minibatches: int) -> None:
        """Do a stage's actions as a rank's worker does them."""
        runner, config = self._open(stage), self._config
        parameters = runner.parameters()
        weights, program = Weights(parameters, open_optimizer(config, parameters)), compile(self._plan, minibatches)
        (rank,) = self._plan.stages[stage].ranks
        weights.expect(program.weights[stage, m] for _, op, m in program.actions[rank] if op is Op.FORWARD)
        flights = dict[int, InFlight]()
        for _, op, m in program.actions[rank]:
            if op is Op.FORWARD:
                version = weights.acquire(program.weights[stage, m])
                flights[m], _ = _forward(runner, version, m, forwards, batch)
            elif op is Op.BACKWARD:
                _backward(runner, weights, flights.pop(m), backwards)
            else:
                weights.update(weights.take_gradients(), config.learning_rate)


def _forward(
    runner: NetworkStage, version: Version, m: int, received: Any, batch: Any
) -> tuple[InFlight, Packet | None]:
    packet: Packet | None = None
    flight, outputs = runner.forward(_copied(runner, received, batch), version, m)
    if runner.is_last:
        flight.outputs = Output.of(runner.loss(outputs, batch.target, samples=len(batch))[0])
    else:
        packet, flight.outputs, flight.outputs_present = runner.pack_outputs(outputs, m, flight.size)
    return flight, packet


def _backward(runner: NetworkStage, weights: Weights, flight: InFlight, received: Any) -> None:
    packet = None if runner.is_last else decode(*map(torch.clone, received))
    gradients = [None] if packet is None else runner.unpack_output_gradients(flight, packet)
    found, features = runner.backward(flight, gradients)
    weights.accumulate(found)
    weights.release(flight.version)
    if not runner.is_first:
        runner.pack_input_gradients(flight, features)


def _copied(runner: NetworkStage, received: Any, batch: Any) -> Any:
    """Return what a stage receives forwards in memory of its own: samples, or a packet, or both."""
    if runner.is_first:
        return copy.deepcopy(received)
    packet: Packet = decode(*map(torch.clone, received))
    return PacketAndSamples(packet, copy.deepcopy(batch)) if runner.reads_samples else packet
