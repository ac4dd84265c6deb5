"""A leading ~ is the home folder wherever a path is given: no read is refused, and no folder called ~ is made."""

from argparse import ArgumentParser
from pathlib import Path

import pytest
from coded import raises
from command_line import sparsepipe
from runtime_jobs import plan_of

from sparsepipe import Cluster, Plan, RunConfig, RunRecord, data, launch
from sparsepipe.cli.command import parser
from sparsepipe.data.cache import open_cache
from sparsepipe.data.folder import data_folders
from sparsepipe.records import Origin
from sparsepipe.records.formats.clusters import load_cluster
from sparsepipe.util.host.ssh import ssh_command
from sparsepipe.util.io.files import expanded, read_json, read_rows, sha256, write_atomic, write_json, write_rows
from sparsepipe.util.io.functions import UserFunction

MODEL = "minkvgg11bn-narrow"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's home folder, which is not the current one; afterwards none called ~ is there."""
    place, current = tmp_path / "home", tmp_path / "current"
    for folder in (place, current):
        folder.mkdir()
    monkeypatch.setenv("HOME", str(place))
    monkeypatch.chdir(current)
    yield place
    assert not list(current.iterdir())


def test_a_name_that_is_no_users_is_left_as_it_is(home: Path) -> None:
    assert [expanded(path) for path in ("~/a b", Path("~"), "./~/a", "a/~", "/x", "~$draft.json")] == [
        *(home / "a b", home, Path.cwd() / "~/a", Path("a/~"), Path("/x"), Path("~$draft.json"))
    ]


def test_values_are_written_and_read(home: Path) -> None:
    plan = plan_of(MODEL, [[0]])
    assert Plan.load(plan.save("~/plans/one.json")) == plan == Plan.load(home / "plans/one.json")
    write_atomic("~/cluster.toml", Cluster.uniform(2).to_toml())
    assert load_cluster("~/cluster.toml") == Cluster.load("~/cluster.toml") == Cluster.load(home / "cluster.toml")
    write_json("~/a.json", [1])
    write_rows("~/rows.jsonl", [{"x": 1}])
    assert read_json("~/a.json") == [1] and read_rows("~/rows.jsonl") == [{"x": 1}]
    assert sha256("~/a.json") == sha256(home / "a.json")
    record = RunRecord.create("~/runs/one", plan, {}, Origin.here())
    assert record.folder == home / "runs/one" == RunRecord.load("~/runs/one").folder


def test_data_settings_and_functions_are_found(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data.make_shapes("~/shapes", num_train=2, num_test=2, families=["box", "cone"])
    assert (home / "shapes/box/train").is_dir() and data.find("~/shapes") == home / "shapes"
    assert len(data.load("~/shapes", split="test", voxel_size=0.1)) == 4
    assert data.info("~/shapes")["samples"] == 8 and not data.check("~/shapes").faults
    assert data.open_folder("~/shapes").path == home / "shapes"
    config = RunConfig("~/net.py:build", "~/shapes", cache="~/kept", loss="~/loss.py:f")
    named = [f"{home}/{name}" for name in ("net.py:build", "shapes", "kept", "loss.py:f")]
    assert [config.model, config.data, config.cache, config.loss] == named
    assert config == RunConfig.from_json(config.to_json())
    (home / "net.py").write_text("def build():\n    return 3\n")
    assert UserFunction.parse("~/net.py:build").load()() == 3
    monkeypatch.setenv("SPARSEPIPE_DATA", "~/one:~/two")
    assert data_folders()[:2] == (home / "one", home / "two")
    assert open_cache("~/kept").folder == home / "kept"
    monkeypatch.setenv("SPARSEPIPE_CACHE", "~/other")
    assert open_cache(None).folder == home / "other"
    with raises("dataset.not_found"):
        launch(plan_of(MODEL, [[0]]), RunConfig(MODEL, "~/none"), run_dir="~/runs/two")


def test_the_command_line_takes_them(home: Path) -> None:
    code, _, _ = sparsepipe("data", "make", "shapes", "--out", "~/made", "--train", 1, "--test", 1)
    assert code == 0 and (home / "made/dataset.json").is_file()
    assert sparsepipe("data", "info", "~/made")[0] == 0
    write_atomic("~/c.toml", Cluster.uniform(3).to_toml())
    code, out, _ = sparsepipe("cluster", "show", "~/c.toml", "--json")
    assert code == 0 and str(home) not in out


def test_no_option_takes_a_path_as_it_is() -> None:
    def actions(one: ArgumentParser):
        for action in one._actions:
            yield one.prog, action
            for inner in (action.choices or {}).values() if isinstance(action.choices, dict) else ():
                yield from actions(inner)

    found = list(actions(parser()))
    assert len(found) > 200 and not [(verb, action.dest) for verb, action in found if action.type is Path]


def test_a_hosts_own_home_is_left_to_its_shell() -> None:
    words = ssh_command("host", ["env", "A=~/x", "~/my venv/bin/python", "-c", "~"])
    assert words[-1] == "env 'A=~/x' ~/'my venv/bin/python' -c '~'"
