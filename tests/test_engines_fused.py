"""The fused Triton kernels against the gathering path: in Triton's interpreter, and on a GPU where there is one.

The interpreter is chosen as Triton is imported, hence a process of its own: it runs the functions below by name.
"""

import importlib.util
import json
import os
import subprocess
import sys
import traceback
from pathlib import Path

import pytest
import torch
from engine_clouds import close, random_batch

from sparsepipe.data.reach import reach
from sparsepipe.engines import Subnetwork, engine
from sparsepipe.engines.native import convolution, tuning
from sparsepipe.engines.native.coordinates import CoordinateManager, pack
from sparsepipe.engines.native.kernel_map import KernelMap
from sparsepipe.engines.native.tuning import Choices
from sparsepipe.engines.native.warm_up import tensor_strides
from sparsepipe.networks import INPUT, Network, Row, network

WIDTHS = [(33, 7), (2, 65)]  # more than a block of inputs, and of outputs
SHAPES = [(2, 2, 1), (1, 2, 1), (3, 2, 1), (3, 1, 2)]  # in the interpreter, which is slow, the first two
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}


def problem(shape, widths, dtype, device, *, seed=0):
    """Return features, kernel, kernel map and an output's gradient of one convolution."""
    size, stride, dilation = shape
    manager = CoordinateManager(3)
    coordinates = random_batch(2, 40, reach=3, seed=seed).coordinates.to(device)
    manager.insert((1, 1, 1), pack(coordinates).sort().values)
    target = (1, 1, 1) if stride == 1 else manager.downsampled((1, 1, 1), stride)
    kernel_map = manager.kernel_map((1, 1, 1), target, kernel_size=size, dilation=dilation)
    generator = torch.Generator().manual_seed(seed)
    drawn = (
        torch.randn(kernel_map.num_in, widths[0], generator=generator),
        torch.randn(size**3, *widths, generator=generator),
        torch.randn(kernel_map.num_out, widths[1], generator=generator),
    )
    features, kernel, gradient = (tensor.to(device, dtype) for tensor in drawn)
    return features, kernel, kernel_map, gradient


def compare(features, kernel, kernel_map, gradient, *, choices=slice(None)):
    """Hold choices of blocks to the gathering path, forward and both gradients, and to their own bits."""
    from sparsepipe.engines.native import fused

    tolerance = TOLERANCE[features.dtype]
    expected = convolution._forward_gathered(features, kernel, kernel_map)
    transposed = kernel.transpose(1, 2)
    given = features, transposed, gradient, kernel_map, True
    grad_features, grad_kernel = convolution._backward_gathered(*given)
    for blocks in fused.FORWARD_BLOCKS[choices]:
        found = fused.forward(features, kernel, kernel_map, blocks)
        assert found.dtype == features.dtype
        close(found, expected, tolerance)
        close(fused.forward(gradient, transposed, kernel_map.transposed, blocks), grad_features, tolerance)
    for blocks in fused.GRADIENT_BLOCKS[choices]:
        found = fused.kernel_gradient(features, gradient, kernel_map, blocks)
        assert torch.equal(found, fused.kernel_gradient(features, gradient, kernel_map, blocks))
        close(found, grad_kernel.float(), tolerance)


def compare_all(device="cpu"):
    """Shapes, widths and types, with one choice of blocks each; then the other blocks."""
    for position, shape in enumerate(SHAPES if device == "cuda" else SHAPES[:2]):
        for dtype in TOLERANCE if position == 0 else [torch.float32]:
            place = position % 2  # the smaller two
            given = problem(shape, WIDTHS[position % len(WIDTHS)], dtype, device, seed=position)
            compare(*given, choices=slice(place, place + 1))
    compare(*problem((2, 2, 1), (48, 16), torch.float32, device), choices=slice(1, None))


def many_shares(device="cpu"):
    """An offset whose pairs several programs share."""
    from sparsepipe.engines.native import fused

    fused._PAIRS_PER_PROGRAM = 40
    given = problem((2, 2, 1), (16, 16), torch.float32, device)
    everywhere = torch.arange(100, device=device)
    kernel_map = KernelMap(everywhere, everywhere, (90, 0, 10), 100, 100)
    features, gradient = (torch.randn(100, 16, device=device) for _ in range(2))
    compare(features, given[1][:3], kernel_map, gradient, choices=slice(1))


def no_pairs(device="cpu"):
    """Maps without pairs, without outputs, without inputs: zeros of the right shapes."""
    from sparsepipe.engines.native import fused

    none = torch.empty(0, dtype=torch.int64, device=device)
    for num_in, num_out in ((5, 4), (5, 0), (0, 4), (0, 0)):
        empty = KernelMap(none, none, (0,) * 8, num_in, num_out)
        features, kernel = torch.ones(num_in, 3, device=device), torch.ones(8, 3, 2, device=device)
        assert torch.equal(fused.forward(features, kernel, empty, (32, 32, 32)), features.new_zeros(num_out, 2))
        gradient = fused.kernel_gradient(features, features.new_ones(num_out, 2), empty, (32, 32, 32))
        assert torch.equal(gradient, features.new_zeros(8, 3, 2))


def small_network():
    """A U-Net of one level: down, up again onto the voxels it came from, its input's channels beside."""
    widths = {"in_channels": 4, "out_channels": 8, "kernel_size": 2, "stride": 2}
    rows = (
        Row("first", "convolution", (INPUT,), {"in_channels": 1, "out_channels": 4, "kernel_size": 2}),
        Row("down", "convolution", ("first",), widths),
        Row("up", "transposed_convolution", ("down", "first"), widths | {"in_channels": 8}),
        Row("both", "concatenate", ("up", "first")),
        Row("last", "convolution", ("both",), {"in_channels": 12, "out_channels": 3, "kernel_size": 1, "bias": True}),
    )
    return Network("small", rows, in_channels=1, num_classes=3)


def train(device):
    """Return the output and the gradients of a small network under the native engine on a device."""
    native = engine("native")
    module = Subnetwork(small_network(), native, seed=1).to(device)
    batch = random_batch(2, 30, reach=2, channels=1)
    output = native.features(module({INPUT: native.tensor(batch, device)}, minibatch=0)["last"])
    output.square().sum().backward()
    return [output.detach().cpu(), *(p.grad.cpu() for p in module.parameters())]


def whole_network(device="cpu"):
    """Warm up part of a network: classes are measured, no gradient is left; then train all of it each way."""
    tuning._TURNS = 1
    native, batch = engine("native"), random_batch(2, 30, reach=2, channels=1)
    part = Subnetwork(small_network(), native, ["down", "up"], seed=1).to(device)
    assert native.warm_up(part, lambda: batch, torch.device(device)) == 2
    assert all(p.grad is None for p in part.parameters())
    choices = tuning.choices_for(torch.empty(0, device=device).device)
    kinds = {" ".join(kind.split()[:2]) for kind in json.loads(choices.path.read_text())}
    assert kinds == {"forward float32", "backward float32", "kernel map"}
    train(device)  # measures the first convolution too, which is not of that part
    measured = {kind: set(sizes) for kind, sizes in choices._known.items()}
    choose = {"gather": "box", "fused (32, 32, 32)": "hash table"}  # how convolutions and kernel maps are computed

    def chosen(way):
        ways = {kind: choose[way] if kind == "kernel map" else way for kind in measured}
        return {kind: dict.fromkeys(sizes, ways[kind]) for kind, sizes in measured.items()}

    choices._known = chosen("gather")
    expected = train("cpu")
    choices._known = chosen("fused (32, 32, 32)")
    for found, wanted in zip(train(device), expected, strict=True):
        close(found, wanted, 1e-4)
    assert {kind: set(sizes) for kind, sizes in choices._known.items()} == measured  # nothing was measured after all


def same_kernel_maps(device="cpu"):
    """Hold kernel maps by the hash table to those by the box, to the bit, in 1 to 4 dimensions, near and far."""
    choices = tuning.choices_for(torch.empty(0, device=device).device)
    generator = torch.Generator().manual_seed(0)
    for dimension, stride, size, dilation in (
        (1, 1, 3, 2),
        (2, 2, 3, 1),
        (3, 1, 3, 1),
        (3, 2, 2, 1),
        (3, 1, 2, 3),
        (4, 1, 3, 1),
    ):
        for far in (0, reach("native", dimension) - 8):
            places = torch.randint(-4, 5, (60, dimension), generator=generator)
            places[::3] += far  # some voxels at the rim of what keys hold
            places[1::3] -= far
            coordinates = torch.cat([torch.randint(0, 2, (60, 1), generator=generator), places], dim=1)
            keys = pack(coordinates).unique().to(device)
            maps = []
            for way in ("box", "hash table"):
                choices._known = {"kernel map": {str(bits): way for bits in range(40)}}
                manager = CoordinateManager(dimension)
                fine = (1,) * dimension
                manager.insert(fine, keys)
                coarse = manager.downsampled(fine, stride) if stride > 1 else fine
                maps.append(manager.kernel_map(fine, coarse, kernel_size=size, dilation=dilation))
            box, hashed = maps
            assert box.counts == hashed.counts and box.num_pairs > len(keys) // 2
            assert torch.equal(box.in_rows, hashed.in_rows) and torch.equal(box.out_rows, hashed.out_rows)


def rows_in_table(device="cpu"):
    """Hold the hash table to a dictionary, with keys that share slots and none at all."""
    from sparsepipe.engines.native import fused

    generator = torch.Generator().manual_seed(0)
    for num_keys, num_wanted in ((0, 5), (5, 0), (1, 1), (300, 200), (129, 513)):
        keys = torch.randperm(600, generator=generator)[:num_keys] << 40
        wanted, steps = torch.randint(0, 600, (num_wanted,), generator=generator) << 40, [0, 1, 1 << 40]
        row_of = {int(key): row for row, key in enumerate(keys)}
        expected = [[row_of.get(int(key) + step, -1) for key in wanted] for step in steps]
        rows = fused.rows_at(keys.to(device), wanted.to(device), steps)
        assert rows.tolist() == expected


INTERPRETED = [
    same_kernel_maps,
    rows_in_table,
    compare_all,
    no_pairs,
    whole_network,
    many_shares,
]  # the last changes a number for good


def interpret(path):
    """Call one function after the other, and write what those that fail say: to import Triton takes seconds."""
    said = {}
    for function in INTERPRETED:
        try:
            function()
        except Exception:
            said[function.__name__] = traceback.format_exc()
    path.write_text(json.dumps(said))


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory):
    """What each function that fails in Triton's interpreter says."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed: the fused kernels are not tested here")
    folder = tmp_path_factory.mktemp("interpreted")
    path = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parent.parent)])
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": path, "XDG_CACHE_HOME": str(folder)}
    script = f"import test_engines_fused as t; t.interpret(t.Path({str(folder / 'said.json')!r}))"
    command = [sys.executable, "-W", "error", "-c", script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=550, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "said.json").read_text())


@pytest.mark.slow  # the interpreter takes its time
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [function.__name__ for function in INTERPRETED])
def test_in_the_interpreter(name, interpreted):
    assert name not in interpreted, interpreted[name]


@pytest.mark.parametrize(("dtype", "precision", "capability"), [("fp32", "tf32", 80), ("bf16", "ieee", 90)])
def test_they_compile_for_gpus(dtype, precision, capability):
    """Triton's compiler needs no GPU: machine code for those of a given compute capability."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed: the fused kernels are not compiled here")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    from sparsepipe.engines.native import fused

    types = dict.fromkeys(("features", "kernel", "output", "gradients"), f"*{dtype}")
    types |= {"neighbours": "*i32", "starts": "*i32", "in_rows": "*i64", "out_rows": "*i64", "sums": "*fp32"}
    for function, first, blocks in (
        (fused._forward_kernel, "ROWS", fused.FORWARD_BLOCKS[1]),
        (fused._gradient_kernel, "PAIRS", fused.GRADIENT_BLOCKS[1]),
    ):
        fixed = dict(zip((first, "INPUTS", "OUTPUTS"), blocks, strict=True)) | {"PRECISION": precision, "WIDEN": False}
        signature = {name: "constexpr" if name in fixed else types.get(name, "i32") for name in function.arg_names}
        source = ASTSource(function, signature, fixed)
        compiled = compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 4})
        assert f"sm_{capability}" in compiled.asm["ptx"] and "mma" in compiled.asm["ptx"]
        assert len(compiled.asm["cubin"]) > 1000 and compiled.metadata.shared < 100_000


def test_the_hash_table_compiles_for_gpus():
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed: the hash table is not compiled here")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    from sparsepipe.engines.native import fused

    types = dict.fromkeys(("keys", "steps", "slot_keys"), "*i64") | dict.fromkeys(("slot_rows", "output"), "*i32")
    for function, instruction in ((fused._insert_kernel, "atom"), (fused._look_up_kernel, "ld.global")):
        fixed = {"BLOCK": 128}
        signature = {name: "constexpr" if name in fixed else types.get(name, "i32") for name in function.arg_names}
        compiled = compile(ASTSource(function, signature, fixed), target=GPUTarget("cuda", 90, 32))
        assert instruction in compiled.asm["ptx"] and len(compiled.asm["cubin"]) > 1000


@pytest.mark.gpu
@pytest.mark.parametrize("test", INTERPRETED)
def test_on_a_gpu(test, monkeypatch, tmp_path):
    pytest.importorskip("triton")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tuning.choices_for.cache_clear()
    test("cuda")
    tuning.choices_for.cache_clear()


def test_without_a_gpu_nothing_is_fused(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert tuning.fused_kernels(torch.ones(1)) is None
    net, native = network("minkvgg11bn-narrow", num_classes=3), engine("native")

    def read():
        raise AssertionError("nobody needs a minibatch")

    assert native.warm_up(Subnetwork(net, native), read, torch.device("cpu")) == 0


def test_choices_are_kept_and_shared(tmp_path):
    path = tmp_path / "kernels" / "a.json"
    choices, beside = Choices(path), Choices(path)
    assert choices.find("forward", 1000) is None
    choices.keep("forward", 1000, "gather")
    beside.keep("backward", 1000, "fused")
    assert Choices(path).find("forward", 1000) == "gather"
    assert Choices(path).find("backward", 1000) == "fused"
    assert [Choices(path).find("forward", size) for size in (511, 255, 2000, 2048)] == ["gather", None, "gather", None]
    path.write_text('{"forward": ')
    assert Choices(path).find("forward", 1000) is None
    path.write_text("[1]")
    assert Choices(path).find("forward", 1000) is None


def test_choices_that_cannot_be_written_are_said(tmp_path):
    (tmp_path / "file").write_text("")
    choices = Choices(tmp_path / "file" / "a.json")
    with pytest.warns(UserWarning, match="cannot be written"):
        choices.keep("forward", 10, "gather")
    assert choices.find("forward", 10) == "gather"


def test_the_fastest_way_is_measured_once(tmp_path, monkeypatch):
    calls = []
    choices = Choices(tmp_path / "a.json")
    monkeypatch.setattr(tuning, "choices_for", lambda device: choices)
    monkeypatch.setattr(tuning, "_seconds", lambda function, device: function())
    ways = {"slow": lambda: calls.append("slow") or 2.0, "fast": lambda: calls.append("fast") or 1.0}
    cpu = torch.device("cpu")
    assert tuning.fastest("forward", 100, ways, cpu) == 1.0
    assert calls == ["slow", "fast", "fast"]
    assert tuning.fastest("forward", 120, ways, cpu) == 1.0
    assert calls == ["slow", "fast", "fast", "fast"]
    assert tuning.fastest("forward", 120, {"slow": ways["slow"]}, cpu) == 2.0  # a way there is no more


@pytest.mark.parametrize("name", ["minkunet14a-narrow", "minkvgg11bn-narrow", "minkresnet14-narrow"])
def test_tensor_strides_are_those_of_a_pass(name):
    net, native = network(name, num_classes=3), engine("native")
    with torch.no_grad():
        found = Subnetwork(net, native)({INPUT: native.tensor(random_batch(channels=1))}, minibatch=0)
    sparse = {id: tensor.tensor_stride for id, tensor in found.items() if not isinstance(tensor, torch.Tensor)}
    assert tensor_strides(net.rows, (1, 1, 1)) == sparse


def test_tensor_strides_end_where_tensors_are_dense():
    strides = tensor_strides(network("vgg16-3d", num_classes=3).rows, (1, 1, 1))
    assert strides == {INPUT: (1, 1, 1)}
