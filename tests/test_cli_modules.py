"""A network, a data set and a loss of the user's own through the command line, from `profile` to a resumed run."""

import json
import shutil
from pathlib import Path

import pytest
from coded import mentions
from command_line import sparsepipe

from sparsepipe import RunRecord
from sparsepipe.util.io.files import sha256

OWN = Path(__file__).resolve().parent / "own_networks.py"


@pytest.mark.slow
def test_a_users_module_goes_from_profile_to_a_resumed_run(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shutil.copy(OWN, tmp_path / "own.py")
    own = ["--model", "own.py:tied", "--model-args", '{"width": 12}', "--data", "own.py:words", "--batch-size", 3]
    code, out, errors = sparsepipe("profile", *own, "--repeats", 2, "--out", "p.json", "--json", folder=tmp_path)
    assert code == 0, errors
    assert json.loads(out)["origin"]["model"] == "own.py:tied"
    planning = ["plan", "--profile", "p.json", "--devices", 2, "--planner", "model-parallel", "--out", "plan.json"]
    assert sparsepipe(*planning, folder=tmp_path)[0] == 0
    run = ["run", "plan.json", *own, "--epochs", 1, "--run-dir", "run", "--json"]
    code, out, errors = sparsepipe(*run, folder=tmp_path)
    assert code == 0, errors
    assert mentions(errors, "own.py:tied", 2)
    summary, record = json.loads(out), RunRecord.load(tmp_path / "run")
    assert summary["minibatches"] == 6 and "accuracy" not in summary["train"]
    assert record.origin["facts"]["code_sha256"] == dict.fromkeys(("model", "data"), sha256(OWN))
    assert record.config["model"] == f"{tmp_path / 'own.py'}:tied"
    code, _, errors = sparsepipe("run", "--resume", "run", "--epochs", 2, "--json", folder=tmp_path)
    assert code == 0, errors
    assert not any("own.py:tied" in line for line in errors), "compared once"
    assert [row["epoch"] for row in record.metrics("epoch")] == [0, 1]


@pytest.mark.slow
def test_what_is_wrong_with_a_users_code_is_one_line(tmp_path: Path) -> None:
    shutil.copy(OWN, tmp_path / "own.py")
    for words, told in (
        (
            ["--model", "own.py:text", "--data", "own.py:words"],
            "returns a str, expected a torch.nn.Module",
        ),
        (["--model", "own.py:tied", "--data", "own.py:nothing"], "own.py has no function 'nothing'"),
        (["--model", "Tied", "--data", "own.py:words"], "%%writefile net.py writes one"),
    ):
        code, out, errors = sparsepipe("profile", *words, "--batch-size", 3, "--out", "p.json", folder=tmp_path)
        assert (code, out, len(errors)) == (2, "", 1), errors
        assert told in errors[0]
