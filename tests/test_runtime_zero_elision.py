"""What is sent without its zeros arrives to the bit, and training with it is training without it, to the bit."""

import pytest
import torch
from coded import raises
from hypothesis import given
from hypothesis import strategies as st
from runtime_jobs import NORMED, PLAIN, UNET, Job, plan_of, run_jobs, same_training, settings, shapes

from sparsepipe import data
from sparsepipe.engines import engine
from sparsepipe.networks import INPUT, Network, Row, network
from sparsepipe.runtime.stages.base import InFlight, Output
from sparsepipe.runtime.stages.network_stage import NetworkStage
from sparsepipe.runtime.training_state.weights import Version
from sparsepipe.runtime.transport.compression import (
    Compressor,
    num_present,
    restored,
    values_at,
    with_zeros,
    without_zeros,
)
from sparsepipe.runtime.transport.packet import BACKWARD, FORWARD, Packet, Slot, decode, encode

CPU = torch.device("cpu")


def _bits(rows: torch.Tensor) -> torch.Tensor:
    return rows.contiguous().view(torch.int32)


def _sent(rows: torch.Tensor) -> torch.Tensor:
    packet = Packet(FORWARD, 0, 0, Compressor("zeros").shrink((Slot(rows, None, True), Slot(torch.ones(3, 5)))))
    header, payload = encode(packet)
    first, second = decode(header.clone(), payload.clone()).slots
    assert first.needs_gradient and torch.equal(restored(second), torch.ones(3, 5))
    return restored(first)


@given(
    shape=st.one_of(
        st.tuples(st.integers(0, 40), st.integers(1, 17)),
        st.tuples(st.integers(1, 4), st.integers(1, 9), st.integers(1, 3), st.integers(1, 3)),
    ),
    share=st.sampled_from([0.0, 0.02, 0.5, 0.9, 1.0]),
    seed=st.integers(0, 2**32),
    transposed=st.booleans(),
)
def test_rows_arrive_to_the_bit(shape: tuple, share: float, seed: int, transposed: bool) -> None:
    """Any bit pattern, among them numbers below the least normal one, and any share of zeros, none and all included."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(-(2**31), 2**31, shape, generator=generator, dtype=torch.int64).int().view(torch.float32)
    rows = rows.where(torch.rand(shape, generator=generator) >= share, torch.zeros(()))
    rows = rows.transpose(0, 1) if transposed else rows
    back = _sent(rows)
    assert back.shape == rows.shape and back.dtype == torch.float32
    assert torch.equal(_bits(back), _bits(rows))


def test_minus_zero_and_nan_are_values() -> None:
    rows = torch.zeros(10, 8)
    rows[2, 3], rows[4, 5], rows[6, 7] = -0.0, torch.nan, torch.inf
    slot = without_zeros(Slot(rows))
    assert len(slot.rows) == num_present(slot.present) == 3
    assert torch.equal(_bits(_sent(rows)), _bits(rows))


@pytest.mark.parametrize(
    "rows",
    [torch.ones(20, 8), torch.ones(20, 8, dtype=torch.float64) * 0, torch.zeros(20, 8).half(), torch.zeros(0, 8)],
)
def test_what_would_not_shrink_or_is_not_single_precision_is_left_alone(rows: torch.Tensor) -> None:
    slots = (Slot(rows),)
    assert Compressor("zeros").shrink(slots)[0] is slots[0]


def test_half_of_zeros_is_little_more_than_half_of_the_bytes() -> None:
    rows = torch.randn(1000, 64, generator=torch.Generator().manual_seed(0)).relu()
    assert len(encode(Packet(FORWARD, 0, 0, Compressor("zeros").shrink((Slot(rows),))))[1]) < 0.54 * rows.nbytes
    zeros = Compressor("zeros").shrink((Slot(torch.zeros(1000, 64)),))
    assert len(encode(Packet(FORWARD, 0, 0, zeros))[1]) == 1000 * 64 / 8


def test_values_of_a_gradient_go_back_to_their_elements() -> None:
    rows, gradient = torch.randn(30, 7).relu(), torch.randn(30, 7)
    present = without_zeros(Slot(rows)).present
    assert torch.equal(with_zeros(values_at(present, gradient), present, (30, 7)), gradient * (rows != 0))


def test_values_too_many_are_refused() -> None:
    present = without_zeros(Slot(torch.eye(8))).present
    with raises("packet.value_count", "[9]", "8"):
        with_zeros(torch.ones(9), present, (8, 8))


def test_gradients_are_dropped_behind_relus_and_their_max_pools_alone() -> None:
    rows = (
        Row("conv", "convolution", (INPUT,), {"in_channels": 1, "out_channels": 4, "kernel_size": 3}),
        Row("early", "max_pool", ("conv",), {"kernel_size": 2, "stride": 2}),
        Row("relu", "relu", ("early",)),
        Row("pool", "max_pool", ("relu",), {"kernel_size": 2, "stride": 2}),
        Row("again", "max_pool", ("pool",), {"kernel_size": 2, "stride": 2}),
        Row("mean", "average_pool", ("relu",), {"kernel_size": 2, "stride": 2}),
        Row("dropout", "dropout", ("again",), {"probability": 0.5}),
        Row("sum", "add", ("again", "again")),
        Row("both", "concatenate", ("again", "again")),
        Row("leaky", "leaky_relu", ("sum",)),
        Row("last", "max_pool", ("leaky",), {"kernel_size": 2, "stride": 2}),
    )
    assert Network("n", rows, 1, 4).rectified == {"relu", "pool", "again"}


# --- two stages, without processes -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def clouds(tmp_path_factory):
    return shapes(tmp_path_factory.mktemp("zeros"))


def _over_the_cut(clouds, cut: int, compression: str | None) -> tuple[int, int, list[torch.Tensor]]:
    """Return the bytes that cross a cut forwards and backwards, and the gradients of the weights of both stages."""
    config = settings(clouds, model=NORMED, compression=compression, voxel_size=0.04, num_points=384)
    net, plan = network(NORMED, num_classes=3), plan_of(NORMED, [[0], [1]], schedule="1f1b", cuts=(cut,))
    first, second = (NetworkStage(net, engine("native"), plan, k, config=config, device=CPU) for k in (0, 1))
    one, two = (Version(0, dict(runner.module.named_parameters())) for runner in (first, second))
    batch = data.load(clouds, split="train", voxel_size=0.04, num_points=384).batch([0, 6, 12])
    flight, outputs = first.forward(batch, one, 0)
    packet, flight.outputs, flight.outputs_present = first.pack_outputs(outputs, 0, batch.num_voxels)
    header, features = encode(packet)
    behind, outputs = second.forward(decode(header.clone(), features.clone()), two, 0)
    behind.outputs = Output.of(second.loss(outputs, batch.labels, samples=3)[0])
    of_second, of_arrived = second.backward(behind, [None])
    header, gradients = encode(second.pack_input_gradients(behind, of_arrived))
    returned = first.unpack_output_gradients(flight, decode(header.clone(), gradients.clone()))
    of_first, _ = first.backward(flight, returned)
    return features.nbytes, gradients.nbytes, [*of_first, *of_second]


@pytest.mark.parametrize(
    ("cut", "after", "forward", "backward"),
    [(3, "relu1_1", 0.6, 0.6), (4, "pool1", 0.9, 0.85), (5, "conv2_1", 1.0, 1.0), (2, "bn1_1", 1.0, 1.0)],
)
def test_behind_a_relu_little_more_than_half_crosses(cut: int, after: str, forward: float, backward: float, clouds):
    """Both ways, and no bit of the gradients in the stage before is another."""
    assert network(NORMED, num_classes=3).rows[cut - 1].id == after
    *whole, wanted = _over_the_cut(clouds, cut, None)
    *part, found = _over_the_cut(clouds, cut, "zeros")
    for before, now, bound in zip(whole, part, (forward, backward), strict=True):
        assert now <= bound * before, now / before
    assert all(torch.equal(_bits(one), _bits(other)) for one, other in zip(wanted, found, strict=True))


@pytest.mark.parametrize("rows", [torch.ones(7), torch.ones(9), torch.ones(8, 1), torch.ones(8, 8)])
def test_a_gradient_of_another_size_is_refused(rows: torch.Tensor, clouds) -> None:
    """The features had 8 elements that were not zero."""
    config, plan = settings(clouds, compression="zeros"), plan_of(PLAIN, [[0], [1]], schedule="1f1b", cuts=(2,))
    runner = NetworkStage(network(PLAIN, num_classes=3), engine("native"), plan, 0, config=config, device=CPU)
    present = without_zeros(Slot(torch.eye(8))).present
    flight = InFlight(3, Version(0, {}), (), Output.of(torch.eye(8, requires_grad=True)), outputs_present=(present,))
    with raises("packet.gradient_shapes", minibatch=3, sent="[(8,)]"):
        runner.unpack_output_gradients(flight, Packet(BACKWARD, 3, 0, (Slot(rows),)))


def test_a_gradient_that_is_not_behind_a_relu_is_whole() -> None:
    """Zeros in the features of a convolution say nothing of its gradient."""
    net, plan = network(PLAIN, num_classes=3), plan_of(PLAIN, [[0], [1]], schedule="1f1b", cuts=(1,))
    runner = NetworkStage(net, engine("native"), plan, 1, config=settings("none", compression="zeros"), device=CPU)
    arrived = Packet(FORWARD, 0, 0, (without_zeros(Slot(torch.zeros(9, 16), 0, True)),))
    assert arrived.slots[0].present is not None and runner._present(runner.before, arrived.slots) == (None,)
    flight = InFlight(0, Version(0, {}), (), (), leaves_present=(None,))
    (slot,) = runner.pack_input_gradients(flight, [torch.ones(9, 16)]).slots
    assert slot.rows.shape == (9, 16)


# --- the law: whatever the plan, the same numbers --------------------------------------------------------------------

BUBBLE = {"schedule": "zero-bubble", "num_microbatches": 3}
FULL = {"voxel_size": 0.04, "num_points": 384, "batch_size": 5, "learning_rate": 0.003}
FOUR = [[0], [1], [2], [3]]
LAWS: dict[str, tuple] = {  # name -> (model, ranks of the stages, options of the plan, changes of the settings)
    "relu, pool and convolution": (PLAIN, FOUR, {**BUBBLE, "cuts": (2, 3, 4)}, {}),
    "recompute, batch norm": (NORMED, FOUR, {"schedule": "1f1b", "recompute": True, "cuts": (3, 4, 5)}, FULL),
    "U-Net, replicated": (UNET, [[0], [1, 2], [3]], {"schedule": "1f1b"}, FULL),
}


@pytest.fixture(scope="module")
def laws(tmp_path_factory, clouds):
    """Run every plan with compression and without, all in the same four processes."""
    jobs = [
        Job(
            f"{name} {compression}".replace(" ", "-"),
            plan_of(model, ranks, **options),
            settings(clouds, model=model, compression=compression, minibatches=3, **changes),
        )
        for name, (model, ranks, options, changes) in LAWS.items()
        for compression in (None, "zeros")
    ]
    return run_jobs(tmp_path_factory.mktemp("runs"), jobs)


@pytest.mark.slow
@pytest.mark.parametrize("name", LAWS)
def test_training_without_the_zeros_changes_no_bit(name: str, laws) -> None:
    plain, small = (laws[f"{name} {how}".replace(" ", "-")] for how in (None, "zeros"))
    same_training(small, plain)


@pytest.mark.gpu
def test_on_a_gpu_as_on_a_cpu() -> None:
    rows = torch.randn(100, 7).relu()
    here, there = without_zeros(Slot(rows)), without_zeros(Slot(rows.cuda()))
    assert torch.equal(there.rows.cpu(), here.rows) and torch.equal(there.present.cpu(), here.present)
    assert torch.equal(restored(there).cpu(), rows)
    assert torch.equal(values_at(there.present, rows.cuda()).cpu(), here.rows)
