"""What is sent with coded exponents arrives to the bit, in as few bytes as its codes can take; so does training."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from coded import raises
from hypothesis import example, given
from hypothesis import strategies as st
from runtime_jobs import NORMED, PLAIN, Job, plan_of, run_jobs, same_training, settings, shapes

from sparsepipe.engines import engine
from sparsepipe.networks import network
from sparsepipe.runtime.stages.base import InFlight, Output
from sparsepipe.runtime.stages.network_stage import NetworkStage
from sparsepipe.runtime.training_state.weights import Version
from sparsepipe.runtime.transport.compression import (
    Compressor,
    num_present,
    packed,
    restored,
    unpacked,
    with_coded_exponents,
    with_plain_exponents,
    without_zeros,
)
from sparsepipe.runtime.transport.packet import BACKWARD, FORWARD, Packet, Slot, decode, encode
from sparsepipe.util.io.files import read_rows

CPU = torch.device("cpu")


def _bits(rows: torch.Tensor) -> torch.Tensor:
    return rows.contiguous().view(torch.int32)


def _normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 1001])
def test_bits_are_packed_on_any_device_as_numpy_packs_them(length: int) -> None:
    flags = _normal(length) > 0
    bits = np.packbits(flags.numpy(), bitorder="little")
    assert np.array_equal(packed(flags).numpy(), bits)
    assert torch.equal(unpacked(torch.from_numpy(bits), length), flags)


def _arrived(packet: Packet) -> Packet:
    header, payload = encode(packet)
    return decode(header.clone(), payload.clone())


def _num_bytes(rows: torch.Tensor, how: str) -> int:
    return len(encode(Packet(FORWARD, 0, 0, Compressor(how).shrink((Slot(rows),))))[1])


@given(
    shape=st.one_of(
        st.tuples(st.integers(0, 80), st.integers(1, 33)),
        st.tuples(st.integers(1, 4), st.integers(1, 9), st.integers(1, 3), st.integers(1, 3)),
        st.tuples(st.integers(0, 600)),
    ),
    exponents=st.sampled_from([1, 7, 256]),  # as many bytes to choose from: every bit pattern, or few exponents
    share=st.sampled_from([0.0, 0.5, 0.97, 1.0]),
    seed=st.integers(0, 2**32),
    transposed=st.booleans(),
)
@example((40, 30), 1, 0.0, 0, False)  # coded, and half of them NaNs with payloads
@example((40, 30), 7, 0.5, 0, True)
def test_rows_arrive_to_the_bit(shape: tuple, exponents: int, share: float, seed: int, transposed: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    bits = torch.randint(0, 2**24, shape, generator=generator)
    bits += (255 - torch.randint(0, exponents, shape, generator=generator)) << 24
    rows = bits.int().view(torch.float32).where(torch.rand(shape, generator=generator) >= share, torch.zeros(()))
    rows = rows.t() if transposed and rows.dim() == 2 else rows
    packet = Packet(FORWARD, 0, 0, Compressor("lossless").shrink((Slot(rows, None, True), Slot(torch.ones(3, 5)))))
    first, second = _arrived(packet).slots
    back = restored(first)
    assert first.needs_gradient and torch.equal(restored(second), torch.ones(3, 5))
    assert back.shape == rows.shape and back.dtype == torch.float32
    assert torch.equal(_bits(back), _bits(rows))


def test_every_kind_of_number_is_kept() -> None:
    rows = _normal(30, 64)
    rows[0, :6] = torch.tensor([-0.0, torch.nan, torch.inf, -torch.inf, 1e-45, -1e-40])
    _bits(rows)[1, 0] = -0x7F_FFFF  # 0xFF80_0001: a signalling NaN
    slot = with_coded_exponents(Slot(rows))
    assert slot.upper is not None
    assert torch.equal(_bits(with_plain_exponents(slot).rows), _bits(rows))


@pytest.mark.parametrize(("rectified", "width", "share"), [(True, 2, 0.85), (False, 4, 0.88)])
def test_first_bytes_take_a_short_code_or_an_escape(rectified: bool, width: int, share: float) -> None:
    """The better of the two widths, and a byte more for each that is none of the frequent; by Shannon's bound nothing
    takes less than the entropy. The other three bytes and the bits of zeros come on top."""
    rows = _normal(200, 64).relu() if rectified else _normal(200, 64)
    values = rows[rows != 0]
    counts = torch.bincount((_bits(values) >> 24) & 255).sort(descending=True).values.double()
    shares = counts[counts > 0] / len(values)
    entropy = -(shares * shares.log2()).sum().item() / 8 * len(values)
    takes = {w: 2**w + 1 + math.ceil(w / 8 * len(values)) + int(counts[2**w - 1 :].sum()) for w in (2, 4)}
    first_bytes = with_coded_exponents(Slot(values)).upper[len(values) :]
    assert len(first_bytes) == takes[width] == min(takes.values()) > entropy
    assert _num_bytes(rows, "lossless") < share * _num_bytes(rows, "zeros")


@pytest.mark.parametrize(
    "rows",
    [
        ((torch.arange(2560) << 24) + 1).int().view(torch.float32).view(40, 64),  # every first byte as often
        torch.ones(3, 7),  # as many bytes saved as padding takes
        torch.zeros(0, 8),
        _normal(50, 40).double(),
        _normal(50, 40).half(),
    ],
)
def test_what_would_not_shrink_or_is_not_single_precision_is_left_alone(rows: torch.Tensor) -> None:
    slots = (Slot(rows),)
    assert Compressor("lossless").shrink(slots)[0] is slots[0]


def test_values_whose_first_bytes_change_later_arrive_to_the_bit() -> None:
    """The frequent are looked for among some: others take a byte more, and nothing else."""
    rows = torch.cat([_normal(3000, 64), 1e-20 * _normal(3000, 64)]).sort(dim=0).values
    slot = with_coded_exponents(Slot(rows))
    assert slot.upper is not None
    assert torch.equal(_bits(with_plain_exponents(slot).rows), _bits(rows))


def test_each_tensor_decides_alone() -> None:
    few = torch.eye(40)  # too few values to code, but without their zeros
    small = Compressor("lossless").shrink((Slot(few), Slot(_normal(50, 40)), Slot(_normal(50, 40).relu())))
    assert [(slot.present is not None, slot.upper is not None) for slot in small] == [
        (True, False),
        (False, True),
        (True, True),
    ]


@pytest.mark.parametrize(
    "damage",
    [
        lambda coded: coded[:-9],
        lambda coded: coded[:0],
        lambda coded: torch.cat([coded, coded[:1]]),
        lambda coded: coded | 7,
    ],
)
def test_damaged_exponents_are_refused_in_one_line(damage) -> None:
    slot = with_coded_exponents(Slot(_normal(50, 40)))
    third, coded = slot.upper[:2000], slot.upper[2000:]
    with raises("packet.coding_damaged", "2000 values") as error:
        restored(replace(slot, upper=torch.cat([third, damage(coded)])))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("count", [1999, 2001])
def test_exponents_of_another_number_of_values_are_refused(count: int) -> None:
    slot = with_coded_exponents(Slot(_normal(2000)))
    others = torch.zeros(count, dtype=torch.int16)
    with raises("packet.coding_damaged", count):
        restored(replace(slot, rows=others, upper=torch.cat([slot.upper[:count], slot.upper[2000:]])))


# --- stages ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def clouds(tmp_path_factory):
    return shapes(tmp_path_factory.mktemp("exponents"))


def test_a_gradient_goes_back_coded_and_for_the_features_that_are_not_zero_alone() -> None:
    """Behind a ReLU: no bits, since both sides have them, and the values that are left are coded."""
    net, plan = network(PLAIN, num_classes=3), plan_of(PLAIN, [[0], [1]], schedule="1f1b", cuts=(2,))
    config = settings("none", compression="lossless")
    before, behind = (NetworkStage(net, engine("native"), plan, k, config=config, device=CPU) for k in (0, 1))
    features, gradient = _normal(100, 16).relu(), _normal(16, 100).t()
    (slot,) = Compressor("lossless").shrink((Slot(features, 0, True),))
    present = slot.present
    flight = InFlight(0, Version(0, {}), (), (), leaves_present=(present,))
    packet = _arrived(behind.pack_input_gradients(flight, [gradient]))
    assert packet.direction == BACKWARD and packet.slots[0].present is None
    assert packet.slots[0].upper is not None and packet.slots[0].rows.shape == (num_present(present),)
    flight.outputs = Output.of(features.clone().requires_grad_())
    flight.outputs_present = (present,)
    (found,) = before.unpack_output_gradients(flight, packet)
    assert torch.equal(_bits(found), _bits(gradient.where(features != 0, torch.zeros(()))))


FULL = {"voxel_size": 0.04, "num_points": 384, "batch_size": 5, "learning_rate": 0.003, "minibatches": 4}


@pytest.fixture(scope="module")
def laws(tmp_path_factory, clouds):
    """Run a plan with compression and without, all in the same three processes."""
    plan = plan_of(NORMED, [[0], [1], [2]], schedule="1f1b", recompute=True, cuts=(3, 4))
    memory = settings(clouds, model=NORMED, **FULL)
    sockets = replace(memory, shared_memory=False)
    configs = {"memory": memory, "memory-coded": replace(memory, compression="lossless")}
    configs |= {"sockets": sockets, "sockets-plain": replace(sockets, compression="none")}
    return run_jobs(tmp_path_factory.mktemp("runs"), [Job(name, plan, config) for name, config in configs.items()])


@pytest.mark.slow
def test_training_with_coded_exponents_changes_no_bit(laws) -> None:
    same_training(laws["memory-coded"], laws["memory"])


@pytest.mark.slow
def test_what_goes_through_sockets_is_coded_unless_told_otherwise_and_nothing_in_shared_memory(laws) -> None:
    sent = {}
    for name in ("sockets", "sockets-plain", "memory"):
        same_training(laws[name], laws["memory"])
        rows = read_rows(laws[name].folder / "metrics.jsonl")
        sent[name] = sum(row["sent_bytes"] for row in rows if row["event"] == "epoch")
    assert sent["sockets"] < 0.75 * sent["sockets-plain"] and sent["sockets-plain"] == sent["memory"]


@pytest.mark.gpu
def test_what_lies_on_a_gpu_is_coded_as_on_a_cpu() -> None:
    rows = _normal(100, 70).relu()
    here, there = (with_coded_exponents(without_zeros(Slot(r))) for r in (rows, rows.cuda()))
    for one, other in zip(here.sections, there.sections, strict=True):
        assert other.device == CPU and torch.equal(one, other)
    on_gpu = replace(there, rows=there.rows.cuda(), upper=there.upper.cuda(), present=there.present.cuda())
    assert restored(on_gpu).is_cuda and torch.equal(restored(on_gpu).cpu(), rows)
