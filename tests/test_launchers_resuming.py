"""What a run that resumes does otherwise than before is said in a line, or refused with nothing changed."""

import json
import time
import warnings
from dataclasses import replace

import pytest
from coded import mentions, raises
from runtime_jobs import plan_of

from sparsepipe.cli.command import parser
from sparsepipe.cli.launches import settings_of
from sparsepipe.launching.prepare import _changed
from sparsepipe.launching.resuming import nothing_left
from sparsepipe.records import Origin, RunRecord
from sparsepipe.runtime import RunConfig
from sparsepipe.runtime.reporting.metrics import began, last_recorded
from sparsepipe.runtime.training_state.checkpoint import write_manifest
from sparsepipe.util.io.files import sha256, write_json
from sparsepipe.util.io.functions import UserFunction

MODEL = "minkvgg11-narrow"
BEFORE = RunConfig(
    MODEL, "shapes", batch_size=4, epochs=2, learning_rate=0.005, learning_rate_schedule="cosine", last_minibatch="keep"
)


def trained(folder, *, minibatches=10, config=BEFORE, manifest=(), metrics=True):
    """A run of 18 samples, 5 minibatches an epoch, that has a checkpoint."""
    plan = plan_of(MODEL, [[0]])
    RunRecord.create(folder, plan, config.to_json(), Origin())
    place = folder / "checkpoints" / f"minibatch-{minibatches:08d}"
    place.mkdir()
    facts = {"minibatches": minibatches, "model": MODEL, "samples": 18, "batch_size": 4}
    layers = {id: "stage0.safetensors" for stage in plan.stages for id in stage.layers}
    facts |= {"layers": layers, "files": {}, **dict(manifest)}
    write_manifest(place, facts)
    if metrics:
        (folder / "metrics.jsonl").write_text('{"event": "resume", "seconds": 1.0, "minibatches": 0}\n')
    return plan


def test_a_schedule_for_more_epochs_says_from_which_rate_to_which(tmp_path):
    """The rate of a cosine leaps when a run is resumed for more epochs, and nobody was told."""
    plan = trained(tmp_path / "run")
    told = (
        r"schedule 'cosine' is stretched over 20 minibatches, 10 before: "
        r"the rate goes from 0.0001224 at minibatch 9 to 0.0025 at minibatch 10"
    )
    with pytest.warns(UserWarning, match=told):
        _changed(tmp_path / "run", plan, replace(BEFORE, epochs=4))
    assert RunRecord.load(tmp_path / "run").config["epochs"] == 4


@pytest.mark.parametrize("name", ["run", "pipelines/run"])
def test_a_run_without_a_checkpoint_starts_over_and_keeps_its_rows(tmp_path, name):
    folder = tmp_path / name
    plan = trained(folder, metrics=False)
    (folder / "checkpoints" / "minibatch-00000010").rename(tmp_path / "elsewhere")
    rows = "".join(json.dumps({"event": "step", "seconds": k, "minibatch": k, "loss": 1.0}) + "\n" for k in range(3))
    for count in (1, 2):
        (folder / "metrics.jsonl").write_text(rows)
        with pytest.warns(UserWarning) as caught:
            _changed(folder, plan, BEFORE)
        assert mentions(caught[0].message, "run", 3, f"metrics-before-{count}.jsonl")
        assert (folder / f"metrics-before-{count}.jsonl").read_text() == rows
    (folder / "metrics.jsonl").unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _changed(folder, plan, BEFORE)


def test_the_rate_of_a_plateau_is_told_by_the_losses_of_the_run(tmp_path):
    before = replace(BEFORE, learning_rate_schedule="plateau", schedule_args='{"patience": 0}')
    plan = trained(tmp_path / "run", config=before)
    rows = [(0, 5, 1.0), (1, 10, 2.0), (2, 15, 3.0)]  # the last one is after the checkpoint
    (tmp_path / "run" / "metrics.jsonl").write_text(
        "".join(
            f'{{"event": "epoch", "epoch": {epoch}, "minibatches": {done}, "validation": {{"loss": {loss}}}}}\n'
            for epoch, done, loss in rows
        )
    )
    with pytest.warns(UserWarning, match="0.005 .* 9 .* 0.001 .* 10"):
        _changed(tmp_path / "run", plan, replace(before, learning_rate=0.01))


def test_nothing_is_said_where_the_rate_goes_on_as_it_would_have(tmp_path):
    plan = trained(tmp_path / "run", minibatches=5)
    _changed(tmp_path / "run", plan, BEFORE)
    constant = replace(BEFORE, learning_rate_schedule="constant")
    plan = trained(tmp_path / "other", config=constant)
    _changed(tmp_path / "other", plan, replace(constant, epochs=9))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (
            {"epochs": 1},
            ("resume.ends_before", "epochs=1", "5", "minibatch-00000010", "10", "2 epochs"),
        ),
        ({"minibatches": 7}, ("resume.ends_before", "minibatches=7", "7", "10")),
        ({"last_minibatch": "drop"}, ("checkpoint.last_minibatch_differs", "drop", "keep", "4 minibatches", "5")),
        ({"batch_size": 3}, ("checkpoint.order_differs", "batch_size", "3", "4")),
        ({"seed": 4, "epochs": 3}, ("checkpoint.order_differs", "seed", "4", "0", "2 minibatches")),
    ],
)
def test_what_cannot_go_on_is_refused_with_nothing_changed(tmp_path, change, error):
    """--epochs 1 after 4 ended with exit code 0, and config.json said 1 from then on."""
    minibatches = 12 if "seed" in change else 10  # it may be another between epochs
    plan = trained(tmp_path / "run", minibatches=minibatches, manifest={"seed": 0})
    before = (tmp_path / "run" / "config.json").read_bytes()
    with raises(*error):
        _changed(tmp_path / "run", plan, replace(BEFORE, **change))
    assert (tmp_path / "run" / "config.json").read_bytes() == before


def test_as_many_minibatches_an_epoch_go_on_whatever_becomes_of_the_last(tmp_path):
    """18 samples in minibatches of 4 leave two, which are kept and merged alike."""
    plan = trained(tmp_path / "run", minibatches=5)
    _changed(tmp_path / "run", plan, replace(BEFORE, last_minibatch="merge"))


def test_a_run_that_has_trained_all_has_nothing_left_unless_more_is_asked_for(tmp_path):
    trained(tmp_path / "run")
    assert nothing_left(tmp_path / "run", BEFORE) and not nothing_left(tmp_path / "none", BEFORE)
    assert not nothing_left(tmp_path / "run", replace(BEFORE, epochs=5))


def test_metrics_that_are_gone_are_told(tmp_path):
    plan = trained(tmp_path / "run", minibatches=5, metrics=False)
    with pytest.warns(UserWarning, match="metrics.jsonl.*5 minibatches"):
        _changed(tmp_path / "run", plan, BEFORE)
    plan = trained(tmp_path / "done", metrics=False)
    with raises("resume.metrics_missing", "metrics.jsonl"):
        _changed(tmp_path / "done", plan, BEFORE)


def test_a_resumed_run_warns_of_changed_code_with_neighbours(tmp_path):
    (tmp_path / "net.py").write_text("import blocks_of_mine\n")
    (tmp_path / "blocks_of_mine.py").write_text("")
    function = UserFunction.parse(f"{tmp_path / 'net.py'}:build")
    config = replace(BEFORE, model=str(function))

    def warned(recorded: str, name: str) -> bool:
        plan = trained(tmp_path / name, minibatches=5, config=config, manifest={"model": "net.py:build"})
        write_json(tmp_path / name / "origin.json", {"facts": {"code_sha256": {"model": recorded}}})
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            _changed(tmp_path / name, plan, config)
        return [str(function) in str(each.message) for each in caught] == [True]

    now, of_file = function.sha256(), sha256(tmp_path / "net.py")
    assert not warned(now, "now") and not warned(of_file, "of the file alone, as once")
    (tmp_path / "blocks_of_mine.py").write_text("changed = 1\n")
    assert warned(now, "neighbour") and not warned(of_file, "neighbour, as once")
    (tmp_path / "net.py").write_text("import blocks_of_mine as other\n")
    assert warned(of_file, "file, as once")


def test_times_go_on_after_the_last_when_the_clock_was_set_back(tmp_path):
    """A resume after the clock was set back a day recorded times from -86,394 s on."""
    (tmp_path / "logs").mkdir()
    started = began(tmp_path)
    assert began(tmp_path) == started  # a run that resumes keeps its beginning
    (tmp_path / "metrics.jsonl").write_text('{"event": "step", "seconds": 7.5}\n{"event": "st')
    (tmp_path / "trace-rank1.jsonl").write_text('rubbish\n{"rank": 1, "start": 7.0, "end": 8.25}\n')
    assert last_recorded(tmp_path) == 8.25
    (tmp_path / "logs" / "clock.json").write_text(json.dumps({"started": time.time() + 86_400}))
    again = began(tmp_path)
    assert time.time() - again == pytest.approx(8.25, abs=60.0)  # of the day that it was set back
    assert began(tmp_path) == again


def test_what_the_command_asks_for_comes_over_what_was_before():
    """Minibatches of the first time ended a run that was resumed for more epochs, without a word."""
    new = settings_of(parser().parse_args(["run", "plan.json", "--model", MODEL, "--data", "x"]))
    assert new == RunConfig(MODEL, "x") and new.last_minibatch == "merge"
    before = {key: value for key, value in new.to_json().items() if key != "last_minibatch"} | {"minibatches": 7}
    again = settings_of(parser().parse_args(["run", "--resume", "r"]), before=before)
    assert (again.minibatches, again.last_minibatch) == (7, "keep")
    more = settings_of(parser().parse_args(["run", "--resume", "r", "--epochs", "1e9"]), before=before)
    assert (more.epochs, more.minibatches) == (10**9, None)
