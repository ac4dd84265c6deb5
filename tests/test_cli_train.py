"""`train`, `predict`, `import`, `init` and run.toml: what a plan's file and a run.toml say, and in which order."""

import json
import shutil
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from coded import raises
from command_line import sparsepipe

from sparsepipe import Cluster, CostSample, LayerCost, Plan, Profile, RunRecord, Stage, partition
from sparsepipe.cli.plan_file_verbs import PlanFacts
from sparsepipe.cli.run_file import read_changes, read_run_file, run_file_text
from sparsepipe.data import make_shapes
from sparsepipe.data.shapes import FAMILIES
from sparsepipe.networks import network
from sparsepipe.runtime import RunConfig
from sparsepipe.runtime.config import PARTS
from sparsepipe.util.io.settings import rows

MODEL = "minkvgg11bn-narrow"
GRAPH = network(MODEL, num_classes=2).graph()
IDS = tuple(layer.id for layer in GRAPH.layers)
MEASURED = {"model": MODEL, "batch_size": 4, "voxel_size": 0.1, "num_points": 256}


@pytest.fixture(scope="module")
def shapes(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "shapes"
    return make_shapes(folder, num_train=8, num_test=2, seed=0, families=list(FAMILIES)[:3])


def made(folder: Path, data: Path | str) -> Path:
    """A profile of a network's layers and, by `plan`, a plan of two stages with it."""
    origin = {"model": MODEL, "batch_size": 4, "settings": {**MEASURED, "data": str(data)}}
    costs = (LayerCost((CostSample(4000, 0.01, 0.02, 40),)),) * len(IDS)
    Profile(GRAPH, {"cpu": costs}, origin=origin).save(folder / "profile.json")
    words = ["plan", "-p", "profile.json", "-n", 2, "--planner", "model-parallel", "-o", "plan.json"]
    code, _, errors = sparsepipe(*words, folder=folder)
    assert code == 0, errors
    return folder / "plan.json"


@pytest.mark.slow
def test_a_plan_alone_trains_and_its_run_file_repeats_the_run(shapes: Path, tmp_path: Path) -> None:
    """Losses of `train PLAN`, of its run.toml, and of the old `run` with all settings are the same to the bit."""
    made(tmp_path, shapes)
    said = ["--epochs", 1, "--engine", "native", "--threads", 1, "--seed", 3]
    for words in (
        ["train", "plan.json", *said, "-o", "a"],
        ["train", "a/run.toml", "-o", "b"],
        ["run", "plan.json", "--model", MODEL, "--data", shapes, "--voxel-size", 0.1, "--batch-size", 4]
        + ["--num-points", 256, *said, "--run-dir", "c"],
    ):
        code, _, errors = sparsepipe(*words, folder=tmp_path)
        assert code == 0, errors
    records = [RunRecord.load(tmp_path / name) for name in "abc"]
    losses = [[row["loss"] for row in record.metrics("step")] for record in records]
    assert len(losses[0]) == 6 and losses[0] == losses[1] == losses[2]
    assert records[0].config == records[1].config == records[2].config
    compared = [(record.folder / "profile.json").exists() for record in records]
    assert compared == [True, True, False], "the plan's own profile, which `run` did not look for"
    code, out, errors = sparsepipe("predict", "b", "-o", "predicted", "--json", folder=tmp_path)
    assert code == 0 and json.loads(out)["samples"] == 6, errors
    code, out, errors = sparsepipe("train", "--resume", "b", "--epochs", 2, "--json", folder=tmp_path)
    assert code == 0 and json.loads(out)["minibatches"] == 12, errors
    assert read_run_file(tmp_path / "b/run.toml")["epochs"] == 2


def test_dry_run_says_what_would_run_and_writes_nothing(shapes: Path, tmp_path: Path) -> None:
    made(tmp_path, shapes)
    before = sorted(tmp_path.rglob("*"))
    words = ["train", "plan.json", "--dry-run", "--json", "--cache", tmp_path / "cache"]
    code, out, errors = sparsepipe(*words, "--set", "optimizer.learning_rate=0.5", folder=tmp_path)
    told = json.loads(out)
    assert code == 0 and told["compared"] and told["launcher"] == "local", errors
    expected = {**MEASURED, "data": str(shapes), "learning_rate": 0.5}
    assert {name: told["config"][name] for name in expected} == expected
    code, out, _ = sparsepipe("emulate", "plan.json", "-p", "profile.json", "-n", 2, "--dry-run", folder=tmp_path)
    assert code == 0 and out
    assert sorted(tmp_path.rglob("*")) == before
    words = ["emulate", "plan.json", "-p", "profile.json", "-n", 2, "-o", ".", "--dry-run"]
    code, _, errors = sparsepipe(*words, folder=tmp_path)
    assert code == 2 and errors[-1].endswith("[run_dir.taken]")
    for more, told in (
        (["-m", "minkvgg16bn"], "plan.violations"),
        (["--memory-limit", "1kB"], "memory.limit_below_weights"),
        (["-o", "."], "run_dir.taken"),
        (["-o", "profile.json"], "run_dir.unusable"),
        (["-s", "port=99999"], "port.malformed"),
        (["-s", "launcher=nosuch"], "launcher.unknown"),
        (["-s", "replan=nosuch"], "replan.unknown"),
        (["-s", "replication=nosuch"], "replication.unknown"),
        (["-s", "predictor=nosuch"], "file.not_found"),
    ):
        code, out, errors = sparsepipe("train", "plan.json", *more, "--dry-run", folder=tmp_path)
        assert (code, out) == (2, "") and errors[-1].endswith(f"[{told}]"), errors
    assert sorted(tmp_path.rglob("*")) == before


def config_of(folder: Path, *words: object) -> dict:
    code, out, errors = sparsepipe("train", *words, "--dry-run", "--json", folder=folder)
    assert code == 0, errors
    return json.loads(out)["config"]


def test_the_command_line_comes_before_set_before_the_file_before_the_plan(shapes: Path, tmp_path: Path) -> None:
    made(tmp_path, shapes)
    (tmp_path / "run.toml").write_text(
        'plan = "plan.json"\n[data]\nbatch_size = 32\nmodel_args = {width = 3}\nfeatures = ["occupancy"]\n'
        "[optimizer]\nlearning_rate = 0.5\nepochs = 3\n[processes]\nthreads = 2\nstragglers = 'slow:rank=1,factor=2'\n"
    )
    of_file = config_of(tmp_path, "run.toml")
    assert (of_file["batch_size"], of_file["voxel_size"], of_file["epochs"]) == (32, 0.1, 3), "32 is the default"
    assert json.loads(of_file["model_args"]) == {"width": 3} and of_file["stragglers"] == "slow:rank=1,factor=2"
    assert config_of(tmp_path, "run.toml", "-s", "threads=1", "--set", "data.batch_size=8")["batch_size"] == 8
    line = ("run.toml", "-s", "data.batch_size=8", "-s", "seed=5", "-b", 2, "--minibatches", 7, "--inject", "slow:1")
    both = config_of(tmp_path, *line)
    assert (both["batch_size"], both["seed"], both["minibatches"], both["epochs"]) == (2, 5, 7, 1)
    assert both["stragglers"] == "slow:1"
    budget = config_of(tmp_path, "run.toml", "--batch-voxels", "2k")
    assert budget["batch_voxels"] == 2000, "a budget takes the place of the file's batch size"
    other = config_of(tmp_path, "plan.json", "-d", tmp_path)
    assert other["num_points"] == "all" and other["voxel_size"] == 0.1, "points are the plan's data's alone"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("plan = 3", "run_file.wrong_type"),
        ("plan = ", "run_file.not_toml"),
        ("plam = 'p'", "run_file.unknown"),
        ("[optimiser]\nepochs = 1", "run_file.unknown"),
        ("[optimizer]\nepoch = 1", "run_file.unknown"),
        ("[optimizer]\nepochs = 0", "setting.not_whole"),
        ("[optimizer]\nbatch_size = 1", "run_file.unknown"),
        ("[launch]\nport = 'x'", "run_file.wrong_type"),
        ("[launch]\nport = true", "run_file.wrong_type"),
        ("optimizer = 3", "run_file.wrong_type"),
        (f"[optimizer]\nepochs = {'1' * 6000}", "run_file.not_toml"),
        (f"[data]\nmodel_args = {'[' * 9000}", "run_file.not_toml"),
        ("[data]\nmodel_args = {a = 1979-05-27}", "setting.not_json"),
        ("[launch]\nexpect = [1]", "run_file.wrong_type"),
        ("[data]\nshuffle = 1", "setting.not_a_boolean"),
    ],
)
def test_what_is_wrong_in_a_run_file_is_one_line_that_names_it(tmp_path: Path, text: str, code: str) -> None:
    (tmp_path / "run.toml").write_text(text)
    with raises(code, "run.toml"):
        read_run_file(tmp_path / "run.toml")
    ended, out, errors = sparsepipe("train", "run.toml", folder=tmp_path)
    assert (ended, out, len(errors)) == (2, "", 1) and errors[0].endswith(f"[{code}]")


def test_a_run_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "folder.toml").mkdir()
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\x00")
    for name, code in (("no", "file.not_found"), ("folder", "file.is_folder"), ("bytes", "file.unreadable")):
        ended, out, errors = sparsepipe("train", f"{name}.toml", folder=tmp_path)
        assert (ended, out, len(errors)) == (2, "", 1) and errors[0].endswith(f"[{code}]")


def test_set_reads_values_as_toml_and_text_without_quotes() -> None:
    changes = ["optimizer.learning_rate=1e-3", "model=net.py:build", "validate=false", "launch.replan=live"]
    expected = {"learning_rate": 1e-3, "model": "net.py:build", "validate": False, "replan": "live"}
    assert read_changes([*changes, 'data_args={"size"=3}']) == expected | {"data_args": '{"size": 3}'}
    for text, code in (
        ("seed", "set.malformed"),
        ("seed=-1", "setting.not_whole"),
        ("data.seed=1", "run_file.unknown"),
        (f"seed={'1' * 6000}", "setting.not_whole"),
        (f"seed={'[' * 9000}", "setting.not_whole"),
        ("seed=1\nthreads=1", "setting.not_whole"),
        ("model_args={a = 1979-05-27}", "setting.not_json"),
    ):
        with raises(code, "--set"):
            read_changes([text])


def test_a_run_file_holds_every_setting(tmp_path: Path) -> None:
    """What is written is read again: of other values than the defaults, and of the defaults."""
    config = RunConfig(
        "path/net.py:build",
        'a "quoted" \\ folder',
        model_args='{"width": 3}',
        features=("occupancy", "xyz") if "xyz" in str(rows(RunConfig)["features"].kind) else ("occupancy",),
        learning_rate=1e-30,
        weight_decay=3.0,
        validate=False,
        batch_bytes=2e9,
        stragglers="slow:rank=1,factor=2;seed=3",
        threads=3,
    )
    values = {name: value for name, value in config.to_json().items() if value is not None}
    path = tmp_path / "run.toml"
    path.write_text(run_file_text({**values, "plan": "p.json", "expect": ["a=b.json"], "port": 9000}))
    assert read_run_file(path) == {**values, "plan": Path("p.json"), "expect": ["a=b.json"], "port": 9000}
    commented = run_file_text({}).splitlines()
    for part in PARTS.values():
        for name in rows(part).keys() - {"composition", "fitting_sizes"}:
            assert any(line.startswith(f"# {name} =") for line in commented), name
    assert tomllib.loads(run_file_text({})) == {name: {} for name in (*PARTS, "launch")}


def test_init_fills_in_what_the_plan_knows_and_keeps_a_file_that_exists(shapes: Path, tmp_path: Path) -> None:
    made(tmp_path, shapes)
    words = ["init", "plan.json", "--set", "optimizer.learning_rate=0.1", "--set", "batch_size=8", "--json"]
    code, out, errors = sparsepipe(*words, folder=tmp_path)
    assert code == 0 and Path(json.loads(out)["file"]) == Path("run.toml"), errors
    values = {**MEASURED, "data": str(shapes), "plan": Path("plan.json"), "learning_rate": 0.1, "batch_size": 8}
    assert read_run_file(tmp_path / "run.toml") == values
    assert config_of(tmp_path, "run.toml")["learning_rate"] == 0.1
    (tmp_path / "other.json").write_text('{"a": 1}')
    for more, told in (
        ([], "run_file.exists"),
        (["-o", "x.json"], "run_file.suffix"),
        (["profile.json", "-o", "x.toml"], "plan.malformed"),
        (["other.json", "-o", "x.toml"], "plan.malformed"),
    ):
        code, _, errors = sparsepipe("init", *more, folder=tmp_path)
        assert code == 2 and errors[-1].endswith(f"[{told}]")


def test_the_expected_profile_is_the_one_that_the_plan_was_made_from(shapes: Path, tmp_path: Path) -> None:
    path = made(tmp_path, shapes)
    plan, facts = Plan.load(path), PlanFacts.load(path)
    code, out, _ = sparsepipe("train", "plan.json", "--dry-run", "--json", folder=tmp_path)
    assert code == 0 and json.loads(out)["compared"]
    assert facts.expected(plan, "another network", cluster=None) is None
    profile = Profile.load(tmp_path / "profile.json")
    replace(profile, origin={**profile.origin, "seed": 7}).save(tmp_path / "profile.json")
    for told in ("plan.profile_changed", "file.not_found"):
        code, out, errors = sparsepipe("train", "plan.json", "--dry-run", "--json", folder=tmp_path)
        assert code == 0 and not json.loads(out)["compared"]
        assert any(told in line for line in errors), errors
        (tmp_path / "profile.json").unlink(missing_ok=True)
    python = partition(profile, Cluster.uniform(2, device_type="cpu"))
    python.save(tmp_path / "python.json")
    assert PlanFacts.load(tmp_path / "python.json").settings["data"] == str(shapes), "of Python, too"
    code, out, _ = sparsepipe("train", "python.json", "--dry-run", "--json", folder=tmp_path)
    assert code == 0 and not json.loads(out)["compared"], "Python knows no file"


def test_a_plan_for_minibatches_of_several_sizes_is_trained_on_them(shapes: Path, tmp_path: Path) -> None:
    made(tmp_path, shapes)
    words = ["plan", "-p", "profile.json", "-n", 2, "--order", "planned", "--batch-voxels", 9000]
    words += ["--sample-sizes", "lognormal:cv=0.5", "-o", "sized.json"]
    code, _, errors = sparsepipe(*words, folder=tmp_path)
    assert code == 0, errors
    config = config_of(tmp_path, "sized.json")
    assert (config["order"], config["batch_voxels"]) == ("planned", 9000)
    assert config_of(tmp_path, "sized.json", "--order", "snake")["order"] == "snake"


def test_a_plan_that_names_no_network_asks_for_one(tmp_path: Path) -> None:
    Plan((Stage(IDS, (0,)),)).save(tmp_path / "plan.json")
    for words in ([], ["plan.json"], ["plan.json", "-m", MODEL]):
        code, out, errors = sparsepipe("train", *words, folder=tmp_path)
        assert (code, out, len(errors)) == (2, "", 1) and errors[0].endswith("[option.missing]")


def test_import_makes_a_plan_and_a_run_file(shapes: Path, tmp_path: Path) -> None:
    """Of PipeDream's conf json the plan that `plan export` wrote; of a driver file its settings, too."""
    plan = Plan.load(made(tmp_path, shapes))
    assert sparsepipe("plan", "export", "plan.json", "-p", "profile.json", "-o", "conf", folder=tmp_path)[0] == 0
    code, out, errors = sparsepipe(
        "import", "conf/hybrid_conf.json", "-m", MODEL, "-o", "in", "--json", folder=tmp_path
    )
    assert code == 0, errors
    imported = Plan.load(tmp_path / "in/plan.json")
    assert [(stage.layers, stage.ranks) for stage in imported.stages] == [(s.layers, s.ranks) for s in plan.stages]
    assert read_run_file(tmp_path / "in/run.toml") == {"plan": Path("in/plan.json"), "model": MODEL}
    (tmp_path / "driver.yml").write_text(
        "module: models.vgg11bn-narrow\nmodel_type: Minkowski\nconfig_file: conf/hybrid_conf.json\n"
        f"data_dir: {shapes}\nmachines: ['localhost:0', 'localhost:1']\nbatch_size: 4\nlearning_rate: 0.25\n"
    )
    code, _, errors = sparsepipe("import", "driver.yml", "-m", MODEL, "-o", "driven", folder=tmp_path)
    assert code == 0, errors
    config = config_of(tmp_path, "driven/run.toml")
    assert (config["model"], config["batch_size"], config["learning_rate"]) == (MODEL, 4, 0.25)
    assert Path(config["data"]) == shapes
    code, _, errors = sparsepipe("import", "conf/hybrid_conf.json", "-o", "x", folder=tmp_path)
    assert code == 2 and errors[-1].endswith("[option.missing]") and not (tmp_path / "x").exists()


def test_plans_and_profiles_are_shown_from_their_files(shapes: Path, tmp_path: Path) -> None:
    path = made(tmp_path, shapes)
    code, out, _ = sparsepipe("plan", "show", "plan.json", "--json", folder=tmp_path)
    assert code == 0 and json.loads(out) == json.loads(path.read_text())
    assert sparsepipe("plan", "show", "plan.json", folder=tmp_path)[1].strip() == str(Plan.load(path)).strip()
    other = Plan((Stage(IDS[:3], (0,)), Stage(IDS[3:], (1,)))).save(tmp_path / "other.json")
    code, out, _ = sparsepipe("plan", "diff", "plan.json", "other.json", "--json", folder=tmp_path)
    assert code == 0 and json.loads(out) == json.loads(json.dumps(Plan.load(path).diff(Plan.load(other)).to_json()))
    code, out, _ = sparsepipe("profile", "show", "profile.json", "--json", folder=tmp_path)
    layers = json.loads(out)["layers"]
    assert code == 0 and [row["layer"] for row in layers] == list(IDS)
    assert layers[0] == {
        "layer": IDS[0],
        "forward_seconds": 0.01,
        "backward_seconds": 0.02,
        "output_bytes": 40,
        "parameter_bytes": GRAPH.layers[0].parameter_bytes,
    }
    assert sparsepipe("profile", "show", "minkvgg16bn", folder=tmp_path)[0] == 0
    code, _, errors = sparsepipe("profile", "show", "profile.json", "--device-type", "gpu", folder=tmp_path)
    assert code == 2 and errors[-1].endswith("[profile.no_device_type]")


@pytest.mark.slow
def test_logs_are_printed_and_followed_to_the_runs_end(shapes: Path, tmp_path: Path) -> None:
    made(tmp_path, shapes)
    assert sparsepipe("emulate", "plan.json", "-p", "profile.json", "-n", 2, "-o", "runs/a", folder=tmp_path)[0] == 0
    (tmp_path / "runs/a/logs/rank1.log").write_text("".join(f"line {k}\n" for k in range(100)) + "unfinished")
    code, out, _ = sparsepipe("runs", "logs", "a", "--rank", 1, "--lines", 3, folder=tmp_path)
    assert code == 0 and out.split("\n")[:3] == ["rank1: line 97", "rank1: line 98", "rank1: line 99"]
    for more, count in (([], 40), (["--lines", 0], 100), (["--lines", 0, "-f"], 100)):
        code, out, _ = sparsepipe("runs", "logs", "a", "--rank", 1, *more, "--json", folder=tmp_path)
        assert code == 0 and len(json.loads(out)["logs"]["rank1"]) == count
    code, out, _ = sparsepipe("runs", "logs", "a", "-f", folder=tmp_path)
    assert code == 0 and out.endswith("finished\n")
    code, _, errors = sparsepipe("runs", "logs", "a", "--rank", 7, folder=tmp_path)
    assert code == 2 and errors[-1].endswith("[run.no_logs]")


@pytest.mark.slow
def test_runs_are_deleted_after_a_question_and_nothing_else_is(shapes: Path, tmp_path: Path) -> None:
    made(tmp_path, shapes)
    words = ["emulate", "plan.json", "-p", "profile.json", "-n", 2, "--minibatches", 2]
    assert sparsepipe(*words, "-o", "runs/a", folder=tmp_path)[0] == 0
    for name in ("runs/b", "runs/c", "elsewhere"):
        shutil.copytree(tmp_path / "runs/a", tmp_path / name)
    (tmp_path / "runs/link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "runs/notes").mkdir()
    for name, code in (
        ("a", "runs.nobody_to_ask"),
        ("../elsewhere", "run.outside_folder"),
        (tmp_path / "elsewhere", "run.outside_folder"),
        ("..", "run.outside_folder"),
        (".", "run.outside_folder"),
        ("a/logs", "run.outside_folder"),
        ("notes", "run.not_found"),
        ("nothing", "run.not_found"),
    ):
        more = [] if code == "runs.nobody_to_ask" else ["--yes"]
        ended, _, errors = sparsepipe("runs", "rm", "b", name, *more, folder=tmp_path)
        assert ended == 2 and errors[-1].endswith(f"[{code}]"), (name, errors)
    assert (tmp_path / "runs/b").exists()
    code, out, errors = sparsepipe("runs", "rm", "a", "runs/b", "link", "--yes", "--json", folder=tmp_path)
    assert code == 0 and len(json.loads(out)["deleted"]) == 3, errors
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["c", "notes"]
    assert (tmp_path / "elsewhere/plan.json").exists(), "of a link the link alone goes"


@pytest.mark.slow
def test_a_running_job_is_not_deleted(plan_of_long_run: Path) -> None:
    folder = plan_of_long_run
    code, _, errors = sparsepipe("runs", "rm", "long", "--yes", folder=folder)
    assert code == 2 and errors[-1].endswith("[run.running]") and (folder / "runs/long/plan.json").exists()
    assert sparsepipe("runs", "cancel", "long", folder=folder)[0] == 0
    assert sparsepipe("runs", "rm", "long", "--yes", folder=folder)[0] == 0
    assert not (folder / "runs/long").exists()


@pytest.fixture
def plan_of_long_run(shapes: Path, tmp_path: Path) -> Path:
    made(tmp_path, shapes)
    words = ["train", "plan.json", "--epochs", 10_000, "--threads", 1, "-o", "runs/long", "--detach"]
    code, _, errors = sparsepipe(*words, folder=tmp_path)
    assert code == 0, errors
    return tmp_path
