"""Convolution by oneDNN's products, one offset at a time, against sums in double precision."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparsepipe import processor
from sparsepipe.engines.native import onednn
from sparsepipe.engines.native.convolution import convolve
from sparsepipe.engines.native.kernel_map import KernelMap

pytestmark = pytest.mark.skipif(
    not (torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")),
    reason="torch has no oneDNN here",
)


def _map(counts: list[int], num_in: int, num_out: int, *, identity: bool, seed: int) -> KernelMap:
    """Pair random rows, each at most once under an offset."""
    generator = torch.Generator().manual_seed(seed)
    columns: list[list[torch.Tensor]] = [[], []]
    for count in counts:
        for column, size in zip(columns, (num_in, num_out), strict=True):
            column.append(torch.randperm(size, generator=generator)[:count].sort().values)
    middle = len(counts) // 2 if identity else None
    return KernelMap(torch.cat(columns[0]), torch.cat(columns[1]), tuple(counts), num_in, num_out, middle)


def _expected(features: torch.Tensor, kernel: torch.Tensor, kernel_map: KernelMap) -> torch.Tensor:
    """Add up, offset by offset."""
    output = features.new_zeros(kernel_map.num_out, kernel.shape[2])
    pairs = kernel_map.pairs
    for rows_in, rows_out, matrix in zip(
        pairs.in_rows.split(pairs.counts), pairs.out_rows.split(pairs.counts), kernel, strict=True
    ):
        output = output.index_add(0, rows_out, features[rows_in] @ matrix)
    return output


@pytest.mark.parametrize("identity", [True, False])
@pytest.mark.parametrize("wants_features", [True, False])
@pytest.mark.parametrize(
    ("counts", "num_rows", "channels"),
    [
        ([63, 0, 64, 0, 65], 70, (5, 7)),
        ([0, 0, 0], 1, (3, 4)),  # the identity alone, or nothing at all
        ([300, 517, 0, 700, 129], 701, (33, 64)),
        ([1, 2, 0, 1400, 900], 1500, (16, 8)),
        ([40, 10, 0], 50, (256, 320)),
    ],
)
def test_offsets_add_up(counts, num_rows, channels, identity: bool, wants_features: bool) -> None:
    if identity:
        counts = [count if k != len(counts) // 2 else 0 for k, count in enumerate(counts)]
    num_out = num_rows if identity else num_rows + 9
    kernel_map = _map(counts, num_rows, num_out, identity=identity, seed=len(counts))
    generator = torch.Generator().manual_seed(0)
    features, kernel = torch.randn(num_rows, channels[0], generator=generator), torch.randn(len(counts), *channels)
    gradient = torch.randn(num_out, channels[1], generator=generator)
    exact = features.double().requires_grad_(), kernel.double().requires_grad_()
    output = _expected(*exact, kernel_map)
    output.backward(gradient.double())

    torch.testing.assert_close(onednn.forward_offsets(features, kernel, kernel_map).double(), output, **CLOSE)
    grad_features, grad_kernel = onednn.backward_offsets(
        features, kernel.transpose(1, 2), gradient, kernel_map, wants_features
    )
    torch.testing.assert_close(grad_kernel.double(), exact[1].grad, **CLOSE)
    assert (grad_features is not None) == wants_features
    if wants_features:
        torch.testing.assert_close(grad_features.double(), exact[0].grad, **CLOSE)


CLOSE = {"rtol": 1e-5, "atol": 2e-4}  # sums of up to 1400 products of normal numbers


def test_one_convolution_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    """Taken where it suits, by a convolution with its gradients, it gives what the other way gives."""
    kernel_map = _map([900, 0, 800], 1000, 1000, identity=True, seed=3)
    gradient = torch.randn(1000, 48, generator=torch.Generator().manual_seed(5))
    found, taken, multiply = [], [], onednn.multiply

    def counted(rows: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
        taken.append(len(rows))
        return multiply(rows, matrix)

    monkeypatch.setattr(onednn, "_LEAST_PRODUCTS", 2**10)
    monkeypatch.setattr(onednn, "_LEAST_NUMBERS", 2**10)
    monkeypatch.setattr(onednn, "multiply", counted)
    for faster in (False, True):
        monkeypatch.setattr(onednn, "is_faster", lambda faster=faster: faster)
        generator = torch.Generator().manual_seed(4)
        features = torch.randn(1000, 64, generator=generator).requires_grad_()
        kernel = torch.randn(3, 64, 48, generator=generator).requires_grad_()
        output = convolve(features, kernel, kernel_map)
        output.backward(gradient)
        assert bool(taken) == faster
        found.append((output.detach(), features.grad, kernel.grad))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=2e-4)


@given(count=st.integers(0, 5000), numbers=st.sampled_from([2**6, 2**14, 2**18]), threads=st.integers(1, 3))
def test_blocks_have_few_sizes(count: int, numbers: int, threads: int) -> None:
    """Every row is in one block, in order; zeros are few, and what torch.mm is left with is little."""
    blocks = onednn.blocks(count, numbers, threads)
    assert [row for block, _ in blocks for row in range(count)[block]] == list(range(count))
    large, small = onednn.block_sizes(numbers, threads)
    assert large == 512 * threads and small == (256 if numbers == 2**18 else large)
    lengths = [(block.stop - block.start, size) for block, size in blocks]
    assert {size for _, size in lengths} <= {0, large, small, small // 2}
    assert all(rows == size for rows, size in lengths[:-1]), "only the last one is filled up or left to torch.mm"
    rows, size = lengths[-1]
    assert rows > size / 2 if size else rows <= small / 4
    gather = onednn._gatherer(torch.ones(count, 1), _map([count], count, count, identity=False, seed=0))
    gathered = gather(torch.arange(count), blocks)
    assert len(gathered) == count + max(0, size - rows) and float(gathered.sum()) == count


@pytest.mark.parametrize(
    ("vendor", "family", "expected"),
    [("AuthenticAMD", 26, True), ("AuthenticAMD", 25, False), ("GenuineIntel", 26, False), ("GenuineIntel", 6, False)],
)
def test_which_processors_have_vector_units_that_mkl_leaves_alone(vendor, family, expected) -> None:
    cpuinfo = (
        f"processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: {family}\nflags\t\t: fpu avx512f\npower management:\n\n"
    )
    assert onednn.has_whole_avx512(processor.parsed(2 * cpuinfo)) == expected
    assert not onednn.has_whole_avx512(processor.parsed("processor\t: 0\nBogoMIPS\t: 50.00\nCPU implementer\t: 0x41\n"))


def test_half_precision_and_small_offsets_stay_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn, "is_faster", lambda: True)
    kernel_map = _map([1000] * 3, 1000, 1000, identity=False, seed=0)
    wide, narrow = torch.empty(3, 512, 512), torch.empty(3, 32, 32)
    assert onednn.suits(torch.empty(1000, 512), wide, kernel_map)
    assert not onednn.suits(torch.empty(1000, 32), narrow, kernel_map)
    assert not onednn.suits(torch.empty(1000, 512, dtype=torch.bfloat16), wide, kernel_map)
    assert not onednn.suits(torch.empty(1000, 512, dtype=torch.float64), wide, kernel_map)
