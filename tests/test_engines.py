"""The native engine against MinkowskiEngine, layer by layer and on a whole network: outputs, gradients, state_dicts."""

import subprocess
import sys

import pytest
import torch
from engine_clouds import close, leaf, random_batch, real_batch, sorted_rows

from sparsepipe.engines import CoordinateSet, Feature, Parts, Subnetwork, engine
from sparsepipe.engines.initialisation import initialise
from sparsepipe.errors import InputError
from sparsepipe.models import INPUT, Row, network

NATIVE = engine("native")
ROWS = [
    Row("a", "convolution", (INPUT,), {"in_channels": 2, "out_channels": 5, "kernel_size": 3}),
    Row(
        "b", "convolution", (INPUT,), {"in_channels": 2, "out_channels": 5, "kernel_size": 3, "stride": 2, "bias": True}
    ),
    Row("c", "convolution", (INPUT,), {"in_channels": 2, "out_channels": 3, "kernel_size": 2, "stride": 2}),
    Row("d", "convolution", (INPUT,), {"in_channels": 2, "out_channels": 3, "kernel_size": 2}),
    Row("e", "convolution", (INPUT,), {"in_channels": 2, "out_channels": 3, "kernel_size": 1}),
    Row("f", "convolution", (INPUT,), {"in_channels": 2, "out_channels": 3, "kernel_size": 1, "stride": 2}),
    Row("g", "convolution", (INPUT,), {"in_channels": 2, "out_channels": 3, "kernel_size": 5, "bias": True}),
    Row("h", "convolution", (INPUT,), {"in_channels": 2, "out_channels": 3, "kernel_size": 3, "dilation": 2}),
    Row("i", "convolution", (INPUT,), {"in_channels": 2, "out_channels": 3, "kernel_size": 3, "stride": 3}),
    Row("j", "batch_norm", (INPUT,), {"channels": 2}),
    Row("k", "relu", (INPUT,)),
    Row("l", "max_pool", (INPUT,), {"kernel_size": 2, "stride": 2}),
    Row("m", "max_pool", (INPUT,), {"kernel_size": 3, "stride": 2}),
    Row("n", "max_pool", (INPUT,), {"kernel_size": 3, "stride": 1}),
    Row("o", "global_max_pool", (INPUT,)),
    Row("p", "linear", (INPUT,), {"in_channels": 2, "out_channels": 4}),
]


@pytest.fixture(scope="module")
def minkowski():
    try:
        return engine("minkowski")
    except InputError as error:
        pytest.skip(str(error))


def run(chosen, row, batch, *, stride=None, state=None):
    """Run one layer forward and backward; return coordinates, output, input gradient, module, in coordinate order.

    Features and the output's gradient are functions of the coordinates, so engines agree whatever their row order.
    """
    module = chosen.layer(row)
    initialise(module, row, seed=1)
    if state is not None:
        module.load_state_dict(state)
    order = chosen.split({"x": chosen.tensor(batch)}).coordinate_sets[0].coordinates
    x, features = leaf(chosen, batch, stride=stride, rows=wave(order, batch.features.shape[1]))
    output = module(x)
    rows = chosen.features(output)
    sets = chosen.split({"y": output}).coordinate_sets
    coordinates = sets[0].coordinates if sets else torch.arange(len(rows)).unsqueeze(1)
    rows.backward(wave(coordinates, rows.shape[1], phase=1.0))
    in_order = sorted_rows(order, features.grad)
    return *sorted_rows(coordinates, rows.detach()), in_order[1], module, sets[0].tensor_stride if sets else None


def wave(coordinates, channels, *, phase=0.0):
    """Distinct values for every voxel and channel (a maximum has one winner), the same whatever the order of rows."""
    places = coordinates.float() @ torch.tensor([0.9137, 1.7719, 2.3371, 3.1953, 4.7117])[: coordinates.shape[1]]
    return torch.sin(places.unsqueeze(1) * (1 + torch.arange(channels)) + phase)


def compare(minkowski, row, batch, *, stride=None):
    ours = run(NATIVE, row, batch, stride=stride)
    theirs = run(minkowski, row, batch, stride=stride)
    assert torch.equal(ours[0], theirs[0])
    assert ours[4] == theirs[4]
    close(ours[1], theirs[1], 1e-5)
    close(ours[2], theirs[2], 1e-5)
    for (name, a), (other, b) in zip(ours[3].named_parameters(), theirs[3].named_parameters(), strict=True):
        assert name == other
        close(a.grad, b.grad, 1e-5)
    states = ours[3].state_dict(), theirs[3].state_dict()
    assert list(states[0]) == list(states[1])
    for name, value in states[0].items():
        assert value.shape == states[1][name].shape
        close(value.float(), states[1][name].float(), 1e-5)
    ours[3].load_state_dict(states[1])
    theirs[3].load_state_dict(states[0])


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.description)
def test_layers_equal_minkowski_on_random_voxels(minkowski, row):
    compare(minkowski, row, random_batch())


@pytest.mark.parametrize("row", [row for row in ROWS if row.id in "abhlm"], ids=lambda row: row.description)
def test_layers_equal_minkowski_on_a_coarser_grid(minkowski, row):
    compare(minkowski, row, random_batch(seed=1), stride=(4, 4, 4))


@pytest.mark.parametrize("row", [row for row in ROWS if row.id in "abclo"], ids=lambda row: row.description)
def test_layers_equal_minkowski_on_real_voxels(minkowski, row, shared_data):
    batch = real_batch(shared_data)
    batch = type(batch)(batch.coordinates, batch.features.expand(-1, 2).contiguous(), batch.labels)
    compare(minkowski, row, batch)


@pytest.mark.parametrize("name", ["minkvgg11bn-narrow", "minkvgg16-narrow"])
def test_whole_network_equals_minkowski(minkowski, name, request):
    try:
        batch = real_batch(request.getfixturevalue("shared_data"), voxel_size=0.04)
    except pytest.skip.Exception:
        batch = random_batch(channels=1)
    net = network(name, num_classes=10)
    found = {}
    for chosen in (NATIVE, minkowski):
        module = Subnetwork(net, chosen, seed=5)
        for step in range(2):
            module.zero_grad()
            rows = chosen.rows(module({INPUT: chosen.tensor(batch)}, minibatch=step)["fc3"])
            torch.nn.functional.cross_entropy(rows, batch.labels % 10).backward()
        module.eval()
        with torch.no_grad():
            evaluated = chosen.rows(module({INPUT: chosen.tensor(batch)}, minibatch=9)["fc3"])
        found[chosen.name] = rows.detach(), evaluated, module
    ours, theirs = found["native"], found["minkowski"]
    close(ours[0], theirs[0], 1e-4)
    close(ours[1], theirs[1], 1e-4)
    for name, parameter in ours[2].named_parameters():
        close(parameter.grad, theirs[2].get_parameter(name).grad, 1e-4)
    for name, value in ours[2].state_dict().items():
        close(value.float(), theirs[2].state_dict()[name].float(), 1e-4)


@pytest.mark.parametrize("name", ["native", "minkowski"])
def test_bad_tensors_are_refused(name, request):
    chosen = request.getfixturevalue("minkowski") if name == "minkowski" else NATIVE
    tensor = chosen.tensor(random_batch())
    parts = chosen.split({"x": tensor})
    (stride, coordinates), (rows, _) = parts.coordinate_sets[0], parts.features["x"]
    twice = CoordinateSet(stride, torch.cat([coordinates, coordinates[-1:]]))
    with pytest.raises(InputError, match="distinct"):
        chosen.join(Parts((twice,), {"x": Feature(torch.cat([rows, rows[:1]]), 0)}))
    with pytest.raises(InputError, match=f"x: {len(rows) - 1} feature rows for {len(rows)} coordinates"):
        chosen.join(Parts(parts.coordinate_sets, {"x": Feature(rows[:-1], 0)}))
    with pytest.raises(InputError, match="still sparse: pool it globally first"):
        chosen.rows(tensor)


def test_names_of_engines(capsys, monkeypatch):
    with pytest.raises(InputError, match="unknown engine 'torch', expected one of native, minkowski, auto"):
        engine("torch")
    monkeypatch.setitem(sys.modules, "MinkowskiEngine", None)  # what import finds where it is not installed
    monkeypatch.delitem(sys.modules, "sparsepipe.engines.minkowski", raising=False)
    with pytest.raises(InputError, match="does not import here"):
        engine("minkowski")
    assert engine("auto").name == "native"
    assert capsys.readouterr().err == "engine: native (MinkowskiEngine does not import here)\n"


def test_engines_are_imported_only_when_asked_for():
    code = (
        "import sys, sparsepipe.engines as e; assert 'MinkowskiEngine' not in sys.modules; "
        "e.engine('native'); assert 'MinkowskiEngine' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
