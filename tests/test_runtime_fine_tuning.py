"""Initial weights, frozen layers, parameter groups, optimizers by name: stages train like one process, to the bit."""

import json
import os
from fnmatch import fnmatchcase
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as functional
from coded import raises
from runtime_jobs import NORMED, Job, plan_of, run_jobs, same_training, settings, shapes
from safetensors.torch import load_file, save_file

import sparsepipe as sp
from sparsepipe import data
from sparsepipe.engines import Subnetwork, engine
from sparsepipe.engines.subnetwork import frozen_network
from sparsepipe.launching.prepare import prepare
from sparsepipe.networks import network
from sparsepipe.networks.traced.building import freeze
from sparsepipe.runtime.training_state import checkpoint
from sparsepipe.runtime.training_state.checkpoint_folders import INITIAL
from sparsepipe.runtime.training_state.initial_weights import Match, StateNames, read_state
from sparsepipe.runtime.worker.epoch_end import gather_weights
from sparsepipe.runtime.workloads.learning import check_training
from sparsepipe.runtime.workloads.resolved import resolve

FLUSH = {"schedule": "gpipe", "weights": "flush", "num_microbatches": 2}
ONE, TWO = [[0]], [[0], [1]]
FROZEN = ("conv1_1.*", "bn1_1.*", "bn2_1.bn.weight", "bn2_1.bn.bias", "conv2_1.*")
THAWED = ("conv2_1.*", "bn2_1.*")  # which get gradients from the second epoch on
GROUPS = {
    "bn*": {"optimizer": "torch.optim:NAdam"},
    "*.bias": {"weight_decay": 0},
    "fc*": {"learning_rate_factor": 3, "optimizer": "lion"},
}
SETTINGS = {
    "frozen": {"freeze": FROZEN, "initial": "given"},
    "thawed": {"freeze": (*FROZEN[:2], *(f"{pattern}@1" for pattern in THAWED)), "initial": "given"},
    "groups": {
        "optimizer": "muon",
        "nesterov": True,
        "parameter_groups": json.dumps(GROUPS),
        "clip_norm": 0.5,
        "learning_rate_schedule": "plateau",
        "schedule_args": '{"patience": 0, "threshold": 1}',  # no loss is good enough
        "freeze": ("conv1_1.*@1", "bn1_1.*@1"),
        "validate": True,
    },
}


def drawn(seed: int) -> dict[str, torch.Tensor]:
    return dict(Subnetwork(network(NORMED, num_classes=3), engine("native"), seed=seed).state_dict())


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs of the same settings in one process and in two; of those in two, one is interrupted and resumed."""
    folder = tmp_path_factory.mktemp("runs")
    clouds = shapes(folder)
    jobs = []
    for name, chosen in SETTINGS.items():
        config = settings(clouds, model=NORMED, epochs=2).replace(**chosen)
        jobs += [Job(f"{name} whole", plan_of(NORMED, ONE, **FLUSH), config)]
        first = {"epochs": 1} if name == "groups" else {}
        jobs += [Job(f"{name} cut", plan_of(NORMED, TWO, **FLUSH), config.replace(**first), folder=f"{name} cut")]
        if first:
            jobs += [Job(f"{name} resumed", jobs[-1].plan, config, resume=True, folder=f"{name} cut")]
    for job in jobs:
        (folder / (job.folder or job.name)).mkdir(exist_ok=True)
        if job.config.initial:
            save_file({f"module.{key}": one for key, one in drawn(7).items()}, folder / job.name / INITIAL)
    return run_jobs(folder, jobs), clouds


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_stages_train_like_one_process(name, runs):
    whole, cut = (runs[0][f"{name} {how}"] for how in ("whole", "cut"))
    assert len(whole.losses) == 10
    same_training(whole, cut)
    held = [checkpoint.latest(each.folder) for each in (whole, cut)]
    one, other = (each.read(list(each.manifest["layers"])) for each in held)
    assert one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["frozen", "thawed"])
def test_frozen_layers_keep_weights_and_statistics(name, runs):
    """A plain loop with torch's own means is the oracle: requires_grad, eval() of batch norms, SGD."""
    result, clouds = runs[0][f"{name} cut"], runs[1]
    frozen = {"frozen": (FROZEN, FROZEN), "thawed": ((*FROZEN[:2], *THAWED), FROZEN[:2])}[name]  # by epoch
    module = Subnetwork(network(NORMED, num_classes=3), engine("native"))
    module.load_state_dict(drawn(7))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-3)
    dataset = data.load(str(clouds), split="train", voxel_size=0.12, num_points=128, seed=0)
    losses = []
    for epoch in range(2):
        module.train()
        for key, parameter in module.named_parameters():
            parameter.requires_grad_(not any(fnmatchcase(key, pattern) for pattern in frozen[epoch]))
        for norm in ("bn1_1", "bn2_1"):
            if f"{norm}.*" in frozen[epoch]:
                module.get_submodule(norm).bn.eval()
        order = data.minibatches(len(dataset), batch_size=4, seed=0, epoch=epoch)
        for step in range(0, len(order), 2):
            members = order[step : step + 2]
            optimizer.zero_grad()
            for number, indices in enumerate(members, epoch * len(order) + step):
                batch = dataset.batch(indices)
                outputs = module({"input": module.engine.tensor(batch)}, minibatch=number)
                loss = functional.cross_entropy(module.engine.rows(outputs[module.table[-1].id]), batch.labels)
                (loss * len(indices) / sum(map(len, members))).backward()
                losses.append(float(loss.detach()))
            optimizer.step()
    assert result.losses == pytest.approx(losses, rel=1e-4)
    exported = sp.export_weights(result.folder, result.folder / "model.safetensors")
    state = load_file(exported)
    module.load_state_dict(state)  # each name, and none besides
    for key, tensor in drawn(7).items():
        kept = any(fnmatchcase(key, pattern) for pattern in frozen[-1])
        assert torch.equal(state[key], tensor) == kept, key
    assert not any("conv1_1" in key for key in result.tensors("velocity"))


@pytest.mark.slow
def test_a_plateau_follows_the_validation_of_the_run_before(runs):
    rates = [row["learning_rate"] for row in runs[0]["groups cut"].rows("step")]
    assert rates == pytest.approx([0.01] * 5 + [0.001] * 5)


# --- names ------------------------------------------------------------------------------------------------------------

NETWORK = StateNames({"conv.weight": (2, 2), "conv.bias": (2,), "head.weight": (3, 2)}, {}, ())
CASES = {
    "as it is": ({"conv.weight": (2, 2), "conv.bias": (2,)}, {}, "", ""),
    "stripped": ({"module.model.conv.weight": (2, 2), "module.model.conv.bias": (2,)}, {}, "module.model.", ""),
    "of a backbone": ({"backbone.conv.weight": (2, 2), "head.other": (9,)}, {}, "backbone.", ""),
    "another head": ({"conv.weight": (2, 2), "head.weight": (5, 2)}, {"allow_shape": True}, "", ""),
}


@pytest.mark.parametrize("case", CASES)
def test_names_match_without_their_prefix(case):
    file, options, stripped, added = CASES[case]
    match = Match.of(file, NETWORK, where="file", **options)
    assert (match.stripped, match.added) == (stripped, added)
    assert match.source == {
        n: f"{stripped}{n}" for n in NETWORK.shapes if file.get(f"{stripped}{n}") == NETWORK.shapes[n]
    }
    assert set(match.drawn) == NETWORK.shapes.keys() - match.source.keys()
    assert set(match.unused) == {n for n in file if n.removeprefix(stripped) not in NETWORK.shapes}


def test_a_backbones_weights_go_where_the_network_has_it():
    names = StateNames({"backbone.conv.weight": (2, 2), "head.weight": (3, 2)}, {}, ())
    assert Match.of({"conv.weight": (2, 2)}, names, where="file").source == {"backbone.conv.weight": "conv.weight"}


def test_another_shape_and_another_network_are_refused():
    with raises("initial.shapes_differ", "(5, 2)", "(3, 2)"):
        Match.of({"conv.weight": (2, 2), "head.weight": (5, 2)}, NETWORK, where="file")
    with raises("initial.nothing_matches"):
        Match.of({"layer.weight": (2, 2)}, NETWORK, where="file")


class Unpickled:
    """What a file must not bring back."""


def test_files_are_read_without_their_code(tmp_path):
    state = {"a": torch.ones(2), "b.c": torch.zeros(1)}
    for number, content in enumerate([state, {"epoch": 3, "state_dict": state}, {"model": {"state_dict": state}}]):
        torch.save(content, tmp_path / f"{number}.pth")
        assert read_state(tmp_path / f"{number}.pth").keys() == state.keys()
    torch.save({"state_dict": state, "args": Unpickled()}, tmp_path / "code.pt")
    (tmp_path / "text.pth").write_text("no weights")
    torch.save({"epoch": 3}, tmp_path / "empty.pt")
    torch.save({"a": torch.ones(2).to_sparse()}, tmp_path / "sparse.pt")
    torch.save({"a": torch.ones(2, dtype=torch.complex128)}, tmp_path / "complex.pt")
    torch.save({"epoch": 3, "w": torch.ones(2)}, tmp_path / "cut.pt", _use_new_zipfile_serialization=False)
    (tmp_path / "cut.pt").write_bytes((tmp_path / "cut.pt").read_bytes()[:-35])
    within: dict[str, object] = {}
    within["model"] = within
    torch.save(within, tmp_path / "within.pt")
    for name, code in (
        ("sparse.pt", "initial.unreadable"),
        ("complex.pt", "initial.type_unsupported"),
        ("cut.pt", "initial.unreadable"),
        ("within.pt", "initial.no_tensors"),
        ("code.pt", "initial.needs_code"),
        ("text.pth", "initial.needs_code"),
        ("empty.pt", "initial.no_tensors"),
        ("none.pt", "initial.no_file"),
        ("", "initial.no_checkpoint"),
    ):
        with raises(code):
            read_state(tmp_path / name)


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
        self.b.weight = self.a.weight
        self.norm = torch.nn.BatchNorm1d(2)
        self.register_buffer("scratch", torch.zeros(1), persistent=False)


def test_an_exported_state_has_every_name_of_the_module(tmp_path):
    names = StateNames.of(Tied())
    assert names.to_json() == {"tied_names": {"b.weight": "a.weight"}, "unsaved_buffers": ["scratch"]}
    held = {f"weight:{name}": tensor for name, tensor in Tied().named_parameters()}
    held |= {f"buffer:{name}": tensor for name, tensor in Tied().named_buffers()}
    checkpoint.begin(tmp_path, 1)
    checkpoint.write_shard(tmp_path, 1, "stage0", held)
    layers = dict.fromkeys(("a", "b", "norm", "scratch"), "stage0.safetensors")
    facts = {"model": "tied", "optimizer": "sgd", **names.to_json()}
    folder = checkpoint.finish(tmp_path, 1, keep=1, layers=layers, **facts)
    state = load_file(sp.export_weights(folder, tmp_path / "model.safetensors"))
    Tied().load_state_dict(state)
    alone = SimpleNamespace(rank=0, world_size=1, sum=lambda values, what: values)
    context = SimpleNamespace(process=alone, plan=plan_of(NORMED, ONE), workload=SimpleNamespace(state_names=names))
    given = gather_weights(context, [SimpleNamespace(writes=True, tensors=lambda: held)])
    Tied().load_state_dict(given)  # what on_epoch gets
    with raises("export.suffix"):
        sp.export_weights(folder, tmp_path / "model.pth")
    (tmp_path / "folder.safetensors").mkdir()
    with pytest.raises(IsADirectoryError):
        sp.export_weights(folder, tmp_path / "folder.safetensors")


# --- freezing ---------------------------------------------------------------------------------------------------------


def test_a_module_is_frozen_by_names():
    module = Tied()
    freeze(module, ["a.*", "norm.*"])
    assert {name for name, p in module.named_parameters() if p.requires_grad} == {"b.bias"}
    assert not module.train().norm.training and module.a.training
    with raises("setting.pattern_unmatched"):
        freeze(module, ["head.*"])
    for patterns in (["*"], ["*@2"], ["a.*", "norm.*@2", "b.*@1"]):
        with raises("freeze.nothing_left"):
            freeze(Tied(), patterns)
    module = Tied()
    freeze(module, ["a.*@2", "norm.*"])
    assert all(p.requires_grad for p in module.a.parameters()) and not module.train().norm.training
    with raises("setting.pattern_unmatched"):
        freeze(Tied(), ["head.*@2"])


@pytest.mark.parametrize("pattern", ["a.*@0", "a.*@two", "a.*@-1", "@2"])
def test_a_pattern_has_a_number_of_epochs(pattern):
    with raises("freeze.epochs"):
        sp.RunConfig("minkpointnet", "shapes", freeze=(pattern,))


def test_statistics_follow_the_data_unless_they_match():
    module = Tied()
    freeze(module, ["norm.weight", "norm.bias"])
    assert module.train().norm.training


def test_values_before_the_first_trained_layer_need_no_gradient():
    net = network(NORMED, num_classes=3)
    frozen = frozen_network(net, engine("native"), ["conv1_1.*", "bn1_1.*"])
    place = [row.id for row in net.rows].index("conv2_1")
    assert net.differentiable - frozen.differentiable == {row.id for row in net.rows[:place]}
    with raises("setting.pattern_unmatched"):
        frozen_network(net, engine("native"), ["backbone.*"])
    with raises("freeze.nothing_left"):
        frozen_network(net, engine("native"), ["*"])


def test_a_run_that_starts_from_another_networks_weights_is_refused_at_launch(tmp_path: Path):
    torch.save({"layer.weight": torch.ones(2)}, tmp_path / "other.pth")
    clouds, plan = shapes(tmp_path), plan_of(NORMED, TWO, **FLUSH)
    rate = tmp_path / "rate.py"
    rate.write_text("def falls(minibatch, **counts): return 1 - minibatch / counts['total_minibatches']")
    warmed = {"learning_rate_schedule": f"{rate}:falls", "warmup_minibatches": 3}
    check_training(resolve(settings(clouds, model=NORMED, **warmed)), {})
    for changes, code in (
        ({"initial": str(tmp_path / "other.pth")}, "initial.nothing_matches"),
        ({"parameter_groups": '{"backbone.*": {"weight_decay": 0}}'}, "setting.pattern_unmatched"),
        ({"freeze": ("backbone.*",)}, "setting.pattern_unmatched"),
        ({"optimizer": "adagrad", "optimizer_args": '{"speed": 1}'}, "optimizer.raises"),
        ({"learning_rate_schedule": "plateau"}, "setting.plateau_without_validation"),
    ):
        with raises(code):
            sp.launch(plan, settings(clouds, model=NORMED, **changes), run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_without_a_checkpoint_resumes_from_the_weights_that_are_asked_for(tmp_path: Path):
    clouds, plan = shapes(tmp_path), plan_of(NORMED, TWO, **FLUSH)
    for seed in (1, 2):
        path = tmp_path / f"{seed}.safetensors"
        save_file(drawn(seed), path)
        config = settings(clouds, model=NORMED, initial=str(path))
        _, locks = prepare(plan, resolve(config), run_dir=tmp_path / "run", resume=seed == 2)
        for lock in locks:
            os.close(lock)
        assert (tmp_path / "run" / INITIAL).read_bytes() == path.read_bytes()
