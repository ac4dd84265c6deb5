"""Which layers of a stage to recompute: compared with every choice there is, and with stages that keep all."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from runtime_jobs import UNET, FixedChoice, plan_of, settings, shapes

from sparsepipe import CostSample, Layer, LayerCost, LayerGraph, Plan, Profile, Stage, data
from sparsepipe.engines import engine
from sparsepipe.engines.allocator import allocated_bytes
from sparsepipe.errors import InputError
from sparsepipe.networks import network
from sparsepipe.runtime.failures import OutOfMemory, described
from sparsepipe.runtime.stages.base import Output
from sparsepipe.runtime.stages.kept_tensors import HostMemory
from sparsepipe.runtime.stages.memory_limit import RankMemory, SegmentChoice
from sparsepipe.runtime.stages.network_stage import NetworkStage
from sparsepipe.runtime.training_state.weights import Version
from sparsepipe.util.host.limits import is_out_of_memory
from sparsepipe.values import recomputation
from sparsepipe.values.recomputation import StageMemory

UNIT = 1000.0


def drawn_stage(num_layers: int, seed: int, *, skips: int = 0) -> StageMemory:
    """A chain of layers that keep their output, their input or nothing, with skip connections between some."""
    random = np.random.default_rng(seed)
    outputs = random.integers(1, 6, num_layers) * UNIT
    inputs = [() if p == 0 else (p - 1,) for p in range(num_layers)]
    for _ in range(skips):
        first, last = sorted(random.choice(num_layers, 2, replace=False))
        inputs[last] = tuple(sorted({*inputs[last], int(first)}))
    saved, saved_inputs = np.zeros(num_layers), np.zeros(num_layers)
    keeps = random.integers(0, 3, num_layers)
    for p, kind in enumerate(keeps):
        if kind == 1:
            saved[p] = outputs[p]
        elif kind == 2 and p and keeps[p - 1] != 1:
            saved[p] = saved_inputs[p] = outputs[p - 1]
    return StageMemory(
        saved=saved,
        maps=random.integers(0, 2, num_layers) * UNIT,
        forward_temporary=random.integers(0, 4, num_layers) * UNIT,
        backward_temporary=random.integers(0, 4, num_layers) * UNIT,
        left=np.zeros(num_layers),
        weights=random.integers(0, 2, num_layers) * UNIT,
        outputs=outputs,
        seconds=random.integers(1, 9, num_layers) / 8,
        inputs=tuple(inputs),
        saved_inputs=saved_inputs,
        sent=np.arange(num_layers) == num_layers - 1,
        repeatable=random.random(num_layers) > 0.1,
    )


def choices(stage: StageMemory):
    """Every set of segments: each layer is kept, begins a segment, or belongs to that of the layer before."""
    for states in product("kbm", repeat=len(stage)):
        segments, broken = [], False
        for p, state in enumerate(states):
            if state == "b":
                segments.append((p, p + 1))
            elif state == "m":
                if not segments or segments[-1][1] != p:
                    broken = True
                    break
                segments[-1] = (segments[-1][0], p + 1)
        if not broken and all(stage.repeatable[first:end].all() for first, end in segments):
            yield tuple(segments)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("skips", [0, 2])
def test_no_choice_within_a_budget_is_cheaper(seed: int, skips: int, monkeypatch) -> None:
    """Of chains exactly; with skip connections the choice fits, and is at most a little dearer."""
    stage = drawn_stage(6, seed, skips=skips)
    every = [(stage.held(segments), stage.recomputed_seconds(segments)) for segments in choices(stage)]
    whole, least = stage.held(), min(held.peak for held, _ in every)
    dearer = []
    for share, kept_share in product((0.0, 0.3, 0.7, 1.0), (0.4, 1.0)):
        peak = UNIT * round((least + share * (whole.peak - least)) / UNIT)
        kept = UNIT * round(kept_share * whole.kept / UNIT)
        monkeypatch.setattr(recomputation, "_CELLS", int(peak / UNIT))  # bytes are whole cells
        fitting = [seconds for held, seconds in every if held.peak <= peak and held.kept <= kept]
        found = stage.cheapest(kept_bytes=kept, peak_bytes=peak)
        if found is None:
            assert skips or not fitting
            continue
        held = stage.held(found)
        assert held.peak <= peak and held.kept <= kept
        dearer.append(stage.recomputed_seconds(found) / max(min(fitting), 1e-9) if min(fitting) else 1.0)
        assert skips or stage.recomputed_seconds(found) == pytest.approx(min(fitting))
    assert np.mean(dearer or [1.0]) < 1.3


def test_what_moves_to_the_host_leaves_two_layers_on_the_device() -> None:
    """Each of six layers keeps 1 kB: one at work, one on its way, and the gradient that came for the last output."""
    drawn, ones, none = drawn_stage(6, 0), np.full(6, UNIT), np.zeros(6)
    stage = replace(
        drawn, saved=ones, maps=none, forward_temporary=none, backward_temporary=none, weights=none, outputs=ones,
        saved_inputs=none, repeatable=np.ones(6, dtype=bool),
    )  # fmt: skip
    assert stage.held() == (6 * UNIT, 6 * UNIT) and stage.held(moved=True) == (0, 3 * UNIT)
    assert stage.moved_bytes(()) == 6 * UNIT and stage.moved_bytes(((1, 6),)) == UNIT
    slow, fast = (stage.cheapest_moved(kept_bytes=0, peak_bytes=1e9, bytes_per_second=rate) for rate in (1.0, 1e12))
    assert fast == () and stage.moved_bytes(slow) < stage.moved_bytes(fast)
    assert stage.cheapest_moved(kept_bytes=0, peak_bytes=2 * UNIT, bytes_per_second=1.0) is None
    fixed = replace(stage, repeatable=np.arange(6) != 1)  # its library may keep tensors that nobody can move
    assert fixed.held(moved=True).kept == UNIT


NETWORKS = {"batch norm, skips": UNET, "dropped paths": "ptv3-segmentation-narrow"}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("schedule", ["1f1b", "zero-bubble"])
def test_segments_change_no_bit(name: str, schedule: str, tmp_path) -> None:
    """Of losses, gradients and running statistics, with two minibatches in flight; nor do tensors that move."""
    model, clouds = NETWORKS[name], shapes(tmp_path)
    config = settings(clouds, model=model, voxel_size=0.06, num_points=256)
    plan = plan_of(model, [[0]], schedule="1f1b")
    if schedule != "1f1b":
        plan = Plan(plan.stages, schedule, num_microbatches=2)
    dataset = data.load(clouds, split="train", voxel_size=0.06, num_points=256)
    batches = [dataset.batch([0, 6, 12]), dataset.batch([1, 7])]
    net, native = network(model, num_classes=3), engine("native")
    n, results = len(net.rows), []
    ids = [row.id for row in net.rows]
    some, cpu, kept = ((2, 9), (9, n // 2), (n // 2 + 3, n - 1)), torch.device("cpu"), []
    for segments, moves in product(((), some, ((0, n),)), (False, True)):
        named = tuple((ids[first], ids[end - 1]) for first, end in segments)
        planned = replace(plan, stages=(replace(plan.stages[0], segments=named),))
        stage, host = NetworkStage(net, native, planned, 0, config=config, device=cpu), HostMemory(cpu)
        if moves:
            stage.limit(FixedChoice(SegmentChoice(segments, moves=True)), host)
        version, found = Version(0, stage.parameters()), []
        flights, losses = [], []
        before = allocated_bytes(cpu)()
        for m, batch in enumerate(batches):
            flight, outputs = stage.forward(batch, version, m)
            result = stage.module.result(outputs)
            rows = result if isinstance(result, torch.Tensor) else native.features(result)
            loss = (rows * torch.arange(rows.numel()).view_as(rows).cos()).sum()
            flight.outputs = Output.of(loss)
            flights.append(flight)
            losses.append(loss.detach())
            del outputs, result, rows, loss
        kept.append((allocated_bytes(cpu)() - before - host.held_bytes, host.held_bytes))
        for flight in flights:
            if schedule == "1f1b":
                found += stage.backward(flight, [None])[0]
            else:
                found += stage.backward_weight(flight, stage.backward_input(flight, [None])[1])
        results.append([*losses, *found, *(buffer.clone() for buffer in stage.buffers().values())])
        del flight, flights
        assert not host.held_bytes
    for other in results[1:]:
        assert all(a is b is None or torch.equal(a, b) for a, b in zip(results[0], other, strict=True))
    for (staying, _), (left, moved) in zip(kept[::2], kept[1::2], strict=True):
        assert left < 1.05 * staying - 0.5 * moved  # some of what moves is held by others, too
    assert kept[1][1] and kept[1][0] < 0.75 * kept[0][0], "kernel maps stay"


def test_an_allocation_that_fails_is_told_with_its_minibatch() -> None:
    """Whoever raised it, and whatever was raised from it; other errors are none."""
    plain = RuntimeError("[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory")
    for error in (plain, MemoryError(), torch.OutOfMemoryError("CUDA out of memory")):
        assert is_out_of_memory(error)
        told = OutOfMemory("out of memory in the forward of minibatch 3 of 9,000 voxels (a, b)")
        told.__cause__ = error
        document = described(told, run_dir=None, rank=1, stage=1)
        assert document["limit"] and document["kind"] == "OutOfMemory" and "9,000" in document["message"]
    assert not is_out_of_memory(RuntimeError("shapes differ"))


def test_a_rank_counts_weights_and_all_minibatches_in_flight() -> None:
    """The second minibatch gets what the first leaves; a limit below the weights is refused."""
    graph = LayerGraph(tuple(Layer(f"l{k}", parameter_bytes=10) for k in range(4)), ((0, 1), (1, 2), (2, 3)))
    cost = LayerCost((CostSample(100, 1.0, 2.0, 100, saved_bytes=100),))
    profile = Profile(graph, {"d": (cost,) * 4}, (100.0,))
    plan = Plan((Stage(("l0", "l1", "l2"), (0,)), Stage(("l3",), (1,))), "1f1b")
    memory = RankMemory(plan, 0, profile, limit_bytes=1e4)
    memory.open(0)
    assert memory.enter(0, 0, 100).segments == memory.enter(0, 1, 100).segments == ()
    tight = RankMemory(plan, 0, profile, limit_bytes=memory.least_bytes(0, 100))
    tight.open(0)
    first, second = tight.enter(0, 0, 100), tight.enter(0, 1, 100)
    assert first.segments and second.segments and not tight.minibatches_beyond
    tight.leave(0, 0)
    assert tight.enter(0, 2, 100).segments
    segmented = replace(plan, stages=(replace(plan.stages[0], segments=(("l1", "l1"),)), plan.stages[1]))
    memory = RankMemory(segmented, 0, profile, limit_bytes=1e4)
    memory.open(0)
    assert memory.enter(0, 0, 100).segments == ((1, 2),)  # the plan's, if a minibatch fits with them
    tight = RankMemory(segmented, 0, profile, limit_bytes=tight.limit_bytes)
    tight.open(0)
    assert tight.enter(0, 0, 100) == first and not tight.minibatches_beyond
    # What no recomputation fits moves to the host if it may.
    moving = RankMemory(plan, 0, profile, limit_bytes=0.95 * tight.limit_bytes, host_rate=1e9)
    assert moving.least_bytes(0, 100) < moving.limit_bytes
    assert moving.enter(0, 0, 100).moves and moving.enter(0, 1, 100).moves and not moving.minibatches_beyond
    assert not RankMemory(plan, 0, profile, limit_bytes=1.1 * tight.limit_bytes, host_rate=1e9).enter(0, 0, 100).moves
    with pytest.raises(InputError) as caught:
        RankMemory(plan, 0, profile, limit_bytes=50)
    assert caught.value.code == "memory.limit_below_weights"
