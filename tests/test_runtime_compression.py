"""What compression loses is bounded, and what it lost of a channel's mean comes back."""

import pytest
import torch

from sparsepipe.runtime.transport.compression import Compressor, restored
from sparsepipe.runtime.transport.packet import FORWARD, Packet, Slot, decode, encode


def _sent(compressor: Compressor, rows: torch.Tensor) -> torch.Tensor:
    packet = Packet(FORWARD, 0, 0, compressor.shrink((Slot(rows, None, True),)))
    header, payload = encode(packet)
    (slot,) = decode(header.clone(), payload.clone()).slots
    assert slot.needs_gradient
    return restored(slot)


@pytest.mark.parametrize(("how", "share"), [("float16", 2**-11), ("bfloat16", 2**-8)])
@pytest.mark.parametrize("shape", [(50, 8), (4, 8, 3, 3)])
def test_halves_lose_the_last_bits(how: str, share: float, shape: tuple) -> None:
    rows = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    back = _sent(Compressor(how), rows)
    assert back.dtype == torch.float32 and back.shape == rows.shape
    assert bool(((back - rows).abs() <= share * rows.abs() + 1e-7).all())


@pytest.mark.parametrize("shape", [(50, 8), (4, 8, 3, 3)])
def test_integers_lose_half_a_step_of_their_channel(shape: tuple) -> None:
    rows = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    rows[:, 3] *= 1000  # one loud channel leaves the others alone
    rows[:, 5] = 0
    back = _sent(Compressor("int8"), rows)
    others = [axis for axis in range(rows.dim()) if axis != 1]
    step = rows.abs().amax(dim=others) / 127
    assert bool(((back - rows).abs().amax(dim=others) <= 0.51 * step + 1e-9).all())


def test_a_channels_mean_comes_back_over_minibatches() -> None:
    """Values that rounding always pushes the same way: without feedback their mean would stay wrong."""
    rows = torch.full((10, 1), 0.3)
    rows[0] = 127.0  # a step of 1: 0.3 is rounded to 0
    compressor = Compressor("int8")
    first = _sent(compressor, rows)[1:].mean().item()
    means = [_sent(compressor, rows)[1:].mean().item() for _ in range(50)]
    assert first == 0.0
    assert sum(means) / len(means) == pytest.approx(0.3, abs=0.06)


def test_too_large_for_half_precision_is_cut_off_not_infinite() -> None:
    assert bool(torch.isfinite(_sent(Compressor("float16"), torch.tensor([[1e6, -1e6]]))).all())


def test_nothing_is_done_unasked() -> None:
    slots = (Slot(torch.randn(3, 2)),)
    assert Compressor("none").shrink(slots) is slots


def test_a_quarter_of_the_bytes() -> None:
    rows = torch.randn(1000, 64)
    sizes = [len(encode(Packet(FORWARD, 0, 0, Compressor(how).shrink((Slot(rows),))))[1]) for how in ("none", "int8")]
    assert sizes[1] < 0.26 * sizes[0]
