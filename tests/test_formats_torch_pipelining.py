"""Plans as scripts for torch.distributed.pipelining: torch's own runtime trains our cuts as one process does."""

import os
import re
import runpy
import subprocess
import sys
from argparse import Namespace

import pytest
import torch
from coded import raises
from test_formats_layouts import graph

from scripts.free_port import free_port
from sparsepipe import Plan, Stage
from sparsepipe.networks.traced import trace
from sparsepipe.networks.traced.building import called_once
from sparsepipe.records.formats.layouts import read_layout, stages_of
from sparsepipe.records.formats.torch_pipelining import SCRIPT, ScriptTraining, split_points, training_script
from sparsepipe.util.io.functions import UserFunction

RANK = """
import os, runpy, sys
for number, script in enumerate(sys.argv[1:]):
    os.environ["MASTER_PORT"] = os.environ["PORTS"].split()[number]
    sys.argv = [script, "--steps", "3", "--learning-rate", "0.5"]
    print(script, flush=True)
    runpy.run_path(script, run_name="__main__")
"""
LAYOUTS = {"gpt": "Et|ttL", "bert": "Et*2|tL", "resnet": "[1, 1, 1, 1]"}  # of the last, two stages on each rank
DATA = {"gpt": ("words", "tokens"), "bert": ("words", "tokens"), "resnet": ("images", "classes")}


def losses(text):
    return [float(each) for each in re.findall(r"^step \d+ loss (\S+)", text, re.MULTILINE)]


def script(folder, name, *, recompute):
    from scripts.bench.export import networks  # here: transformers take two seconds of whoever only collects tests

    module = getattr(networks, name)()
    data, loss = DATA[name]
    network = trace(module, getattr(networks, data)("train")[:4][0])
    found, _ = stages_of(read_layout(LAYOUTS[name]), network.graph(), num_devices=2)
    ids = [row.id for row in network.rows]
    stages = (Stage(tuple(ids[k] for k in each), (k % 2,), recompute=recompute) for k, each in enumerate(found))
    source = networks.__file__
    modules = called_once(module, getattr(networks, data)("train")[:4][0])
    smoothing = {"label_smoothing": 0.0} if loss == "tokens" else {}
    training = ScriptTraining(
        UserFunction(source, name), {}, modules, UserFunction(source, data), {}, loss, smoothing, batch_size=4
    )
    plan = Plan(tuple(stages), "gpipe" if recompute else "1f1b-flush", num_microbatches=4)
    export = training_script(plan, training, folder / name, graph=network.graph())
    assert export.lost == ()
    return export.save(folder / name)[0]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_torchs_runtime_trains_our_cuts_as_one_process_does(tmp_path, capsys):
    """A GPT whose stages share a parameter, a BERT whose mask crosses, a ResNet with statistics of batches."""
    (tmp_path / "rank.py").write_text(RANK)
    paths = [script(tmp_path, name, recompute=name == "bert") for name in LAYOUTS]
    ports = {"MASTER_ADDR": "127.0.0.1", "PORTS": " ".join(str(free_port()) for _ in paths), "WORLD_SIZE": "2"}
    ranks = [
        subprocess.Popen(
            [sys.executable, tmp_path / "rank.py", *paths],
            env={**os.environ, **ports, "RANK": str(rank), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    expected = []
    for path in paths:
        options = Namespace(seed=0, learning_rate=0.5, steps=3)
        runpy.run_path(str(path))["whole"](options, torch.device("cpu"))
        expected.append(losses(capsys.readouterr().out))
    try:
        printed = [rank.communicate(timeout=150) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], printed[0][1][-2000:]
    (last,) = [out for out, _ in printed if losses(out)]
    assert len(expected[0]) == 3 and len({round(each, 4) for each in expected[2]}) == 3
    assert losses(last) == pytest.approx(sum(expected, []), rel=2e-6)


def test_modules_that_a_forward_calls_once():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.steps = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
            self.shared, self.unused = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)

        def forward(self, x, y):
            for step in self.steps:
                x = step(x)
            return self.shared(self.shared(x)) + y

    x = torch.zeros(1, 2)
    for batch in ((x, x), [x, x], {"y": x, "x": x}):
        assert called_once(Net(), batch) == {"steps.0", "steps.1"}
    with raises("model.raises"):
        called_once(Net(), x)


NETWORK = graph(4)
IDS = [layer.id for layer in NETWORK.layers]
MODULES = ["tok_embeddings", "norm", "output", *(f"layers.{k}" for k in range(4))]
MODULES += [f"layers.{k}.{part}" for k in range(4) for part in ("attention", "mlp")]


def plan(*cuts, ids=IDS):
    bounds = [0, *cuts, len(ids)]
    parts = [ids[a:b] for a, b in zip(bounds, bounds[1:], strict=False)]
    return Plan(tuple(Stage(tuple(part), (k,)) for k, part in enumerate(parts)), "1f1b-flush", num_microbatches=4)


def test_cuts_are_the_outermost_modules_there():
    assert split_points(plan(4, 10), MODULES, NETWORK) == [("layers.1", "BEGINNING"), ("norm", "BEGINNING")]
    found = split_points(plan(2), MODULES, NETWORK)
    assert found == [("layers.0", "BEGINNING")]
    inside = ["a", "b.first", "b.add", "b.second", "b.relu", "c"]
    assert split_points(plan(2, ids=inside), ["a", "b", "b.first", "b.second", "c"]) == [("b.first", "END")]
    assert split_points(plan(5, ids=inside), ["a", "b", "b.first", "b.second"]) == [("b", "END")]


def test_cuts_between_functions_and_modules_that_are_called_again_are_refused():
    inside = ["a", "b.first", "b.add", "b.relu", "b.second"]
    with raises("export.cut_inside", "b.add", "b.relu"):
        split_points(plan(3, ids=inside), ["a", "b", "b.first", "b.second"])
    twice = ["a", "b", "c", "b-2", "d.relu"]
    with raises("export.cut_inside"):
        split_points(plan(4, ids=twice), ["a", "c"])
    moved = [*IDS[:4], IDS[5], IDS[4], *IDS[6:]]
    with raises("export.order"):
        split_points(plan(5, ids=moved), MODULES, NETWORK)


def training(**options):
    of = {"model": UserFunction("net.py", "build"), "data": UserFunction("package.data", "digits"), "loss": "classes"}
    of |= {"model_args": {"width": 3}, "data_args": {}, "loss_args": {}, "modules": MODULES, "batch_size": 4}
    return ScriptTraining(**(of | options))


def test_a_script_says_what_it_leaves_out_and_keeps_the_ranks_of_whole_pipelines(tmp_path):
    stages = (Stage(tuple(IDS[:4]), (0, 3, 4)), Stage(tuple(IDS[4:]), (1, 2)))
    model = UserFunction(str(tmp_path / "net.py"), "build")
    export = training_script(Plan(stages, "1f1b"), training(model=model), tmp_path / "out", graph=NETWORK)
    text = export.texts[SCRIPT]
    assert len(export.lost) == 2 and all(f"# Not expressed: {line}" in text for line in export.lost)
    assert "PIPELINES = ((0, 1), (3, 2))" in text and "MICROBATCHES = 8" in text and "'1F1B'" in text
    assert "'package.data:digits'" in text and "{'width': 3}" in text
    assert "'../net.py:build'" in text and str(tmp_path) not in text
    parts = (IDS[:2], IDS[2:4], IDS[4:8], IDS[8:])
    stages = tuple(Stage(tuple(part), (rank,)) for part, rank in zip(parts, (1, 0, 0, 1), strict=True))
    v = training_script(Plan(stages, "1f1b-v"), training(model=model), tmp_path / "out", graph=NETWORK)
    assert len(v.lost) == 2 and "STAGES = ((0, 2), (1, 3))" in v.texts[SCRIPT], "Interleaved1F1B takes no V"
    assert "PIPELINES = ((1, 0),)" in v.texts[SCRIPT]
    hostile = Plan((Stage(('a"""\nimport os', "b"), (0, 1)), Stage(("c",), (2,))), "1f1b", planner='"""')
    written = training_script(hostile, training(modules=["c"]), tmp_path).texts[SCRIPT]
    compile(written, SCRIPT, "exec")
    assert "\nimport os'" not in written


def test_losses_that_torch_lacks_are_refused(tmp_path):
    for loss in ("masked-words", "output", "voxels"):
        with raises("export.loss"):
            training_script(plan(4), training(loss=loss), tmp_path, graph=NETWORK)
    given = training(loss=UserFunction("package.losses", "mine"), loss_args={"weight": 2})
    assert (
        "function('package.losses:mine')(output, target, **{'weight': 2})"
        in training_script(plan(4), given, tmp_path).texts[SCRIPT]
    )
