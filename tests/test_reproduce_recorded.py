"""Records of machines and workers, and what pipelines train under them: simulated as the records themselves say."""

import re

import pytest
from coded import raises

from sparsepipe.records.formats.spot_machines import SpotMachines
from sparsepipe.study import recorded
from sparsepipe.study.recorded import (
    MINIBATCH_SECONDS,
    in_words,
    machines_over_time,
    slow_workers,
    spot_machines,
    trained_as_recorded,
    trained_by_slow_workers,
    trained_on_spot_machines,
    workers_over_minibatches,
)

UNIT = MINIBATCH_SECONDS


@pytest.fixture
def record():
    """All four pipelines' machines for 40 minibatches, then those of three for 30, of one for 10, then all for 20."""
    return SpotMachines("by hand", (0, 40 * UNIT, 70 * UNIT, 80 * UNIT, 100 * UNIT), (9, 7, 3, 8, 8))


def test_pipelines_train_while_they_have_their_machines(record):
    waiting, free = trained_on_spot_machines(record)
    assert (waiting.rule, waiting.pipelines, waiting.counted, waiting.undisturbed) == ("all-reduce", 3, 270, 400)
    assert (free.rule, free.pipelines, free.counted) == ("partial-reduce", 4, 100 + 90 + 90 + 60)
    for one in (waiting, free):
        assert one.simulated == pytest.approx(one.counted, abs=4)
        (number,) = trained_as_recorded([one])
        assert (number.measured, number.predicted, number.unit) == (one.counted, one.simulated, "minibatches")
    told = r"by hand, simulated: all-reduce \(3 pipelines\) trains 6.% of an undisturbed job's 400 minibatches, "
    assert re.fullmatch(told + r"partial-reduce \(4 pipelines\) 8.%", in_words([waiting, free]))
    with raises("recorded.too_few_machines", "4", name="few"):
        trained_on_spot_machines(SpotMachines("few", (0, 1), (3, 3)))


def test_machines_are_drawn_as_steps(record):
    (lines,) = machines_over_time([record]).values()
    hours = [0, 40, 40, 70, 70, 80, 80, 100]
    assert lines["available"] == [(h * UNIT / 3600, n) for h, n in zip(hours, (9, 9, 7, 7, 3, 3, 8, 8), strict=True)]
    assert [n for _, n in lines["in whole pipelines"]] == [8, 8, 6, 6, 2, 2, 8, 8]


def test_workers_that_are_slow(tmp_path, monkeypatch):
    """The second takes twice as long, and three times from the thirtieth minibatch on."""
    monkeypatch.setattr(recorded, "MINIBATCHES", 60)
    path = tmp_path / "job_9_norm.csv"
    rows = [f"{w},{t},{10 if w == 0 else 20 if t < 30 else 30}" for t in (1, 11, 21, 31, 41, 51) for w in (0, 1)]
    path.write_text("\n".join(["worker,time,batch_time_norm", *rows]))
    assert slow_workers(str(tmp_path)) == [path]
    waiting, free = trained_by_slow_workers(path)
    assert (waiting.counted, waiting.simulated) == (2 * 30, 2 * 30)
    assert (free.counted, free.undisturbed) == (60 + 30, 120) and free.simulated == pytest.approx(90, abs=2)
    (lines,) = workers_over_minibatches([path]).values()
    assert lines["slowest worker"] == [(0, 2), (10, 2), (20, 2), (30, 3), (40, 3), (50, 3)]
    assert {value for _, value in lines["fastest worker"]} == {1}


@pytest.mark.slow
def test_what_was_recorded(shared_data):
    folder = shared_data / "outside"
    if not folder.is_dir():
        pytest.skip(f"nothing that others recorded at {folder}: sparsepipe data fetch preemptions")
    found = recorded.trained(spot_machines(str(folder / "preemptions")), slow_workers(str(folder / "minibatch-times")))
    assert [one.record for one in found[::2]] == ["a100x1-east1b", "p3-trace", "job_1", "job_4"]
    for one in found:
        assert one.simulated == pytest.approx(one.counted, rel=0.05), one
    for waiting, free in zip(found[::2], found[1::2], strict=True):
        assert waiting.simulated < free.simulated < free.undisturbed


def test_what_is_not_here_is_left_out_with_a_word(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SPARSEPIPE_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert spot_machines() == [] and slow_workers() == []
    told = capsys.readouterr().out.splitlines()
    assert [line.partition(" ")[0] for line in told] == ["preemptions", "minibatch-times"]
    with raises("recorded.files_missing", "job_"):
        slow_workers(str(tmp_path))
