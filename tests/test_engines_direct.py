"""Convolution by machine code of its own, against sums in double precision, and how that code is made and kept."""

import contextlib
import os
import re
import subprocess
import sys
from dataclasses import replace
from importlib import metadata
from types import SimpleNamespace

import pytest
import torch
from coded import mentions
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsepipe.engines import engine
from sparsepipe.engines.native import convolution, direct
from sparsepipe.engines.native.convolution import convolve
from sparsepipe.engines.native.kernel_map import KernelMap
from sparsepipe.util.io.files import sealed, unsealed
from sparsepipe.util.io.options import tell

AVX512 = torch.backends.cpu.get_cpu_capability() == "AVX512"
pytestmark = pytest.mark.skipif(direct.lanes() == 0, reason="no machine code for this processor, or no llvmlite")
CLOSE = {"rtol": 1e-5, "atol": 2e-4}  # sums of up to 1400 products of normal numbers


@pytest.fixture(params=[8, 16])
def lanes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Vectors as AVX2 has them, and AVX-512."""
    if request.param == 16 and not AVX512:
        pytest.skip("no AVX-512 here")
    monkeypatch.setattr(direct, "lanes", lambda: request.param)
    return request.param


@pytest.fixture(scope="module", autouse=True)
def _new_memory_is_nan():
    """So that what nobody wrote shows."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def no_code(monkeypatch: pytest.MonkeyPatch):
    """A process that has no code yet; what it gets is forgotten afterwards."""
    cached = (direct._code, direct._team, direct.compiled, direct.lanes)
    for function in cached:
        function.cache_clear()
    yield
    monkeypatch.undo()
    for function in cached:
        function.cache_clear()


def _map(counts: list[int], num_in: int, num_out: int, *, identity: bool = False, seed: int = 0) -> KernelMap:
    """Pair random rows, each at most once under an offset, both columns growing."""
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


def _problem(kernel_map: KernelMap, channels: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return features, kernel and an output's gradient."""
    generator = torch.Generator().manual_seed(1)
    shapes = (kernel_map.num_in, channels[0]), (len(kernel_map.counts), *channels), (kernel_map.num_out, channels[1])
    features, kernel, gradient = (torch.randn(shape, generator=generator) for shape in shapes)
    return features, kernel, gradient


def _all(kernel_map: KernelMap, features, kernel, gradient) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the output, and the gradients of features and kernel."""
    return (
        direct.convolve(features, kernel, kernel_map),
        direct.convolve(gradient, kernel.transpose(1, 2), kernel_map.transposed),
        direct.kernel_gradient(features, gradient, kernel_map),
    )


def _check(kernel_map: KernelMap, channels: tuple[int, int]) -> None:
    features, kernel, gradient = _problem(kernel_map, channels)
    exact = features.double().requires_grad_(), kernel.double().requires_grad_()
    output = _expected(*exact, kernel_map)
    output.backward(gradient.double())
    expected = output.detach(), exact[0].grad, exact[1].grad
    for found, value in zip(_all(kernel_map, features, kernel, gradient), expected, strict=True):
        torch.testing.assert_close(found.double(), value, **CLOSE)


@pytest.mark.parametrize("identity", [True, False])
@pytest.mark.parametrize(
    ("counts", "num_rows", "channels"),
    [
        ([63, 0, 64, 0, 65], 70, (16, 32)),
        ([0, 0, 0], 1, (16, 16)),  # the identity alone, or nothing at all
        ([0], 0, (16, 16)),  # no row
        ([300, 517, 0, 700, 129], 701, (48, 64)),
        ([1, 2, 0, 1400, 900], 1500, (16, 80)),  # more than a tile, pairs and rows left over
        ([40, 10, 0], 50, (272, 320)),  # more inputs than are packed at a time
        ([200, 300], 310, (24, 40)),  # whole vectors of the shorter kind alone
    ],
)
def test_offsets_add_up(lanes: int, counts: list[int], num_rows: int, channels, identity: bool) -> None:
    if identity:
        counts = [count if k != len(counts) // 2 else 0 for k, count in enumerate(counts)]
    _check(_map(counts, num_rows, num_rows if identity else num_rows + 9, identity=identity), channels)


@pytest.mark.parametrize("num_inputs", [1, 3, 20, 130])
def test_inputs_that_fill_no_vectors_add_up(lanes: int, num_inputs: int) -> None:
    """As those of a network: their own gradient is another's matter."""
    kernel_map = _map([150, 0, 99, 260], 300, 290)
    features, kernel, gradient = _problem(kernel_map, (num_inputs, 48))
    assert direct.suits(features, kernel) and not direct.suits(gradient, kernel.transpose(1, 2))
    exact = kernel.double().requires_grad_()
    output = _expected(features.double(), exact, kernel_map)
    output.backward(gradient.double())
    torch.testing.assert_close(direct.convolve(features, kernel, kernel_map).double(), output.detach(), **CLOSE)
    found = direct.kernel_gradient(features, gradient, kernel_map)
    torch.testing.assert_close(found.double(), exact.grad, **CLOSE)


@pytest.mark.parametrize("channels", [(16, 32), (272, 320), (24, 40)])
def test_output_rows_with_one_pair_each(lanes: int, channels: tuple[int, int]) -> None:
    """Such as a transposed convolution's: there is nothing to add to."""
    counts = [500, 0, 3, 797]
    kernel_map = _map(counts, 800, 1300)
    order = torch.randperm(1300, generator=torch.Generator().manual_seed(2))
    kernel_map = replace(kernel_map, out_rows=torch.cat([own.sort().values for own in order.split(counts)]))
    assert kernel_map.pairs_outputs_once and not kernel_map.transposed.pairs_outputs_once
    _check(kernel_map, channels)


def test_as_many_pairs_as_output_rows_are_not_one_each(lanes: int) -> None:
    rows = torch.cat([torch.arange(40), torch.arange(39, 89)])  # 39 twice, 89 not at all
    kernel_map = KernelMap(rows, rows, (40, 50), 90, 90)
    assert not kernel_map.pairs_outputs_once
    _check(kernel_map, (16, 32))


@settings(max_examples=20)
@given(
    counts=st.lists(st.integers(0, 150), min_size=1, max_size=4),
    widths=st.tuples(st.integers(1, 12), st.integers(1, 12)),
    seed=st.integers(0, 99),
)
def test_any_counts_and_widths_add_up(counts: list[int], widths: tuple[int, int], seed: int) -> None:
    _check(_map(counts, 150, 170, seed=seed), (8 * widths[0], 8 * widths[1]))


def test_bits_do_not_depend_on_threads_tiles_or_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of one machine, and of unlike ones, must round alike."""
    kernel_map = _map([900, 333, 0, 800, 1000], 1000, 1000)
    problem = _problem(kernel_map, (176, 96))
    threads, found = torch.get_num_threads(), []
    try:
        for lanes, count, rows in ((8, 1, 64), (8, 3, 1024), *([(16, 1, 1024), (16, 2, 128)] if AVX512 else [])):
            monkeypatch.setattr(direct, "lanes", lambda lanes=lanes: lanes)
            monkeypatch.setattr(direct, "_MOST_TILE_ROWS", rows)
            torch.set_num_threads(count)
            found.append(_all(kernel_map, *problem))
    finally:
        torch.set_num_threads(threads)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_a_convolution_takes_it_and_gives_what_torch_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel_map = _map([900, 0, 800], 1000, 1000, identity=True, seed=3)
    features, kernel, gradient = _problem(kernel_map, (64, 48))
    found, taken, run = [], [], direct.run
    forward, gradients = (direct.operation(direct.lanes(), name) for name in ("convolve", "gradient"))
    monkeypatch.setattr(direct, "run", lambda arguments: (taken.append(arguments[1]), run(arguments)))
    for suits in (lambda *_: False, direct.suits):
        monkeypatch.setattr(direct, "suits", suits)
        x, k = features.clone().requires_grad_(), kernel.clone().requires_grad_()
        output = convolve(x, k, kernel_map)
        assert taken == ([forward] if found else [])
        output.backward(gradient.t().contiguous().t())  # as no layer's gradient is, but any may be
        found.append((output.detach(), x.grad, k.grad))
    assert taken == [forward, forward, gradients]
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, **CLOSE)


def test_what_else_there_is_stays_away(lanes: int) -> None:
    kernel = torch.empty(3, 2 * lanes, lanes)
    assert direct.suits(torch.empty(9, 2 * lanes), kernel)
    assert direct.suits(torch.empty(9, 8), torch.empty(3, 8, 24))
    assert not direct.suits(torch.empty(9, 2 * lanes, dtype=torch.float64), kernel)
    assert not direct.suits(torch.empty(9, lanes), torch.empty(3, lanes - 1, lanes).transpose(1, 2))
    assert not direct.suits(torch.empty(9, lanes), torch.empty(3, lanes, 20))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_summed_in_single_and_rounded_once(dtype: torch.dtype) -> None:
    kernel_map = _map([90, 333, 0, 200], 400, 410)
    problem = [tensor.to(dtype) for tensor in _problem(kernel_map, (80, 48))]
    assert direct.suits(problem[0], problem[1])
    wide = _all(kernel_map, *(tensor.float() for tensor in problem))
    output, grad_features, grad_kernel = _all(kernel_map, *problem)
    assert torch.equal(output, wide[0].to(dtype)) and torch.equal(grad_features, wide[1].to(dtype))
    assert torch.equal(grad_kernel, wide[2])


GUARDED = """
import ctypes, mmap, sys
import torch
from sparsepipe.engines.native import direct
from sparsepipe.engines.native.kernel_map import KernelMap
from sparsepipe.util.io.files import sealed, unsealed
from sparsepipe.util.io.options import tell

libc = ctypes.CDLL(None)
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
kept = []

def at_the_end(tensor):
    "The same numbers, with memory right behind them that may not be touched."
    num_bytes = tensor.numel() * tensor.element_size()
    pages = -(-num_bytes // mmap.PAGESIZE)
    memory = mmap.mmap(-1, (pages + 1) * mmap.PAGESIZE)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    assert libc.mprotect(whole.data_ptr() + pages * mmap.PAGESIZE, mmap.PAGESIZE, 0) == 0
    own = whole[pages * mmap.PAGESIZE - num_bytes : pages * mmap.PAGESIZE].view(tensor.dtype).view(tensor.shape)
    kept.append(memory)
    return own.copy_(tensor)

lanes = direct.lanes()
for rows, channels in ((61, (lanes, 3 * lanes)), (200, (5 * lanes, 4 * lanes)), (7, (9 * lanes, 7 * lanes))):
    same = torch.arange(rows)
    kernel_map = KernelMap(at_the_end(same.repeat(2)), at_the_end(same.repeat(2)), (rows, rows), rows, rows)
    features = at_the_end(torch.randn(rows, channels[0]))
    kernel, gradient = at_the_end(torch.randn(2, *channels)), at_the_end(torch.randn(rows, channels[1]))
    found = direct.convolve(features, kernel, kernel_map)
    torch.testing.assert_close(found, features @ kernel.sum(dim=0), rtol=1e-3, atol=1e-3)
    direct.convolve(gradient, kernel.transpose(1, 2), kernel_map.transposed)
    direct.kernel_gradient(features, gradient, kernel_map)
print("whole", flush=True)
import os
os._exit(0)  # torch still holds the memory that goes
"""


@pytest.mark.slow
def test_nothing_is_read_behind_a_tensor() -> None:
    done = subprocess.run([sys.executable, "-c", GUARDED], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "whole\n"), done.stderr


@pytest.mark.parametrize(("lanes", "processor"), [(8, "haswell"), (16, "znver5")])
def test_code_for_any_processor_is_code_alone(lanes: int, processor: str) -> None:
    from sparsepipe.engines.native.direct_code import Direct

    if direct.cpu.facts().get("flags", "").split().count("lm") == 0:
        pytest.skip("not x86-64")
    assert len(Direct(lanes).code(processor=processor)) > 2**12


@pytest.mark.slow
def test_code_is_compiled_once_and_kept(no_code, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file whose bytes have changed counts as none; where none can be written, one warning says so."""
    earlier = direct._code(direct.lanes()).memory[:]  # compiled for this user, whenever that was
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    direct._code.cache_clear()
    assert direct._code(direct.lanes()) is not None
    (path,) = (tmp_path / "sparsepipe" / "kernels").iterdir()
    content = path.read_bytes()
    assert unsealed(content) == earlier, "the same code each time it is compiled"
    runs = []
    monkeypatch.setattr(subprocess, "run", lambda *args, **rest: (runs.append(args), _compiled_to(content))[1])
    direct._code.cache_clear()
    assert direct._code(direct.lanes()) is not None and not runs
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    direct._code.cache_clear()
    assert direct._code(direct.lanes()) is not None and len(runs) == 1
    assert path.read_bytes() == content
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    direct._code.cache_clear()
    with pytest.warns(UserWarning, match="cannot be written"):
        assert direct._code(direct.lanes()) is not None
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(direct.Path, "home", _nowhere)
    direct._code.cache_clear()
    assert direct._code(direct.lanes()) is not None and len(runs) == 3


def _compiled_to(content: bytes) -> subprocess.CompletedProcess:
    """What the process that compiles, which takes seconds, answers: the code of a file, as it was found above."""
    return subprocess.CompletedProcess([], 0, stdout=unsealed(content))


@pytest.mark.parametrize("how", ["another user's file", "others may write to it", "another user's folder", "a link"])
def test_code_that_others_may_have_written_is_not_run(no_code, tmp_path, monkeypatch, how: str) -> None:
    """A sealed file of another user, mode 0666, was run as it was: the seal is a checksum that anybody can make."""
    assert (lanes := direct.lanes()) > 0
    content = sealed(direct._code(lanes).memory[:])
    monkeypatch.setattr(subprocess, "run", lambda *args, **rest: _compiled_to(content))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    direct._code.cache_clear()
    assert direct._code(lanes) is not None
    folder = tmp_path / "sparsepipe" / "kernels"
    (path,) = folder.iterdir()
    assert path.stat().st_mode & 0o777 == 0o600 and folder.stat().st_mode & 0o777 == 0o700
    assert path.read_bytes() == content
    planted = sealed(b"\x0f\x0b" * 100)  # an instruction that no processor knows
    if how == "others may write to it":
        path.write_bytes(planted)
        path.chmod(0o666)
    elif how == "a link":
        (tmp_path / "planted").write_bytes(planted)
        path.unlink()
        path.symlink_to(tmp_path / "planted")
    elif os.geteuid() != 0:
        pytest.skip("only root can give a file to another user")
    else:
        path.write_bytes(planted)
        os.chown(path if how == "another user's file" else folder, 65534, 65534)
    direct._code.cache_clear()
    told = r"cannot be written \(another user's folder\)" if "folder" in how else "other users can write"
    with pytest.warns(UserWarning, match=told) if how != "a link" else contextlib.nullcontext():
        code = direct._code(lanes)
    assert code is not None and code.memory[:] == unsealed(content)
    if "folder" not in how:
        assert path.read_bytes() == content and not path.is_symlink()


def _nowhere():
    raise RuntimeError("Could not determine home directory.")


def _no_package(name: str) -> str:
    raise metadata.PackageNotFoundError(name)


@pytest.mark.parametrize(
    ("place", "name", "value", "told"),
    [
        (metadata, "version", _no_package, "llvmlite is not installed"),
        (sys, "executable", "false", r"its machine code could not be compiled \(exit code 1\)"),
        (sys, "executable", "/nowhere/python", "No such file"),
        (direct.threadpoolctl, "threadpool_info", list, "torch uses several OpenMP libraries"),
        (torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT", "no machine code for processors without AVX2"),
    ],
)
def test_without_code_torch_convolves_and_it_is_said_once(
    no_code, tmp_path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, place, name, value, told
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(place, name, value)
    kernel_map = _map([90, 80], 100, 100)
    features, kernel, _ = _problem(kernel_map, (32, 32))
    for _ in range(2):
        torch.testing.assert_close(convolve(features, kernel, kernel_map), _expected(features, kernel, kernel_map))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("engine native: ") and line.endswith("which takes longer")
    assert told.replace("\\", "") in line
    assert convolution.direct is direct and direct.lanes() == 0
    chosen = engine("auto").name
    line = capsys.readouterr().err
    if chosen == "minkowski":
        assert re.match(rf"engine: minkowski \(native .*{told}", line)
    else:
        assert mentions(line, "(MinkowskiEngine")


def test_auto_is_native_where_it_has_machine_code(capsys: pytest.CaptureFixture) -> None:
    assert engine("auto").name == "native"
    assert capsys.readouterr().err.startswith("engine: native (")


def test_what_is_told_in_a_cell_is_no_error(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook showed "engine: native …" in a red box."""
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=object))
    tell("engine: native")
    assert tuple(capsys.readouterr()) == ("engine: native\n", "")
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))
    tell("engine: native")
    assert tuple(capsys.readouterr()) == ("", "engine: native\n")
