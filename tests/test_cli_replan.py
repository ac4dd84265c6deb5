"""`--replan` of the command line: simulations whose plan changes."""

import json

import pytest
from coded import mentions
from command_line import sparsepipe
from dynamics_worlds import network

from sparsepipe import Trace
from sparsepipe.monitoring.variants import VARIANTS

HALF = "slow:rank=1,factor=2,from=40,to=120"


@pytest.fixture
def machine(tmp_path):
    """The words for a profile and two devices; plan.json is beside it."""
    words = ["--profile", network(12).save(tmp_path / "p.json"), "--devices", 2, "--bandwidth", "1GB/s"]
    assert sparsepipe("plan", *words, "--out", tmp_path / "plan.json")[0] == 0
    return words


@pytest.mark.slow
def test_variants_are_simulated_beside_an_oracle(machine, tmp_path):
    words = ("simulate", tmp_path / "plan.json", *machine, "--minibatches", 160, "--straggler", HALF)
    code, out, told = sparsepipe(*words, "--replan", "live", "--trace", tmp_path / "trace.json", "--json")
    assert code == 0 and not told
    document = json.loads(out)
    assert list(document["variants"]) == list(VARIANTS) and document["variant"] == "live"
    rows = document["variants"]
    assert rows["never"]["changes"] == 0 and rows["live"]["changes"] == len(document["replans"]) > 0
    assert rows["live"]["of_oracle"] >= 0.9 > rows["never"]["of_oracle"]
    assert document["makespan_seconds"] == rows["live"]["makespan_seconds"]
    first = document["replans"][0]
    assert 40 < first["minibatch"] < 80 and first["predicted_gain_seconds"] > first["predicted_cost"]["seconds"] > 0
    assert first["moved_bytes"] > 0 and len(first["plan"]["stages"]) == 2
    assert Trace.load(tmp_path / "trace.json").makespan == pytest.approx(document["makespan_seconds"])
    assert json.loads(sparsepipe(*words, "--replan", "--json")[1])["variant"] == "live", "where none is named"
    assert rows["predicted"]["note"].startswith("predicted: ")
    code, out, _ = sparsepipe(*words, "--replan", "never")
    assert rows["predicted"]["note"] in out.splitlines() and all("note" not in rows[name] for name in ("live", "epoch"))
    assert code == 0 and mentions(out, 0, "(never)") and "of the oracle" in out
    assert "minibatches/s" in out and rows["live"]["minibatches_per_second"] > 0, "its profile tells of no samples"
    assert "samples/s" not in out and "samples_per_second" not in rows["live"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--replan", "always"), "invalid choice: 'always'"),
        (("--replan", "live", "--straggler", "kill:rank=1,at=3"), "end no process"),
        (("--replan", "live", "--straggler", "slow:rank=5,factor=2"), "[straggler.rank_unknown]"),
        (("--replan", "epoch", "--epoch-minibatches", "0"), "--epoch-minibatches"),
        (("--epoch-minibatches", "5"), "--epoch-minibatches goes with --replan"),
    ],
)
def test_what_cannot_be_simulated_is_told_in_a_line(machine, tmp_path, words, told):
    code, out, lines = sparsepipe("simulate", tmp_path / "plan.json", *machine, *words)
    assert code == 2 and not out and len(lines) == 1 and told in lines[0]


def test_several_pipelines_keep_their_plans(machine, tmp_path):
    assert sparsepipe("plan", *machine, "--pipelines", 2, "--out", tmp_path / "two.json")[0] == 0
    code, _, lines = sparsepipe("simulate", tmp_path / "two.json", *machine, "--replan", "live")
    assert code == 2 and lines[-1].endswith("[option.of_one_pipeline]")
