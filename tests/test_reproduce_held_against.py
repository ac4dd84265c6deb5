"""What others measured as numbers of a figure: within the errors that are claimed; skipped aloud without the files."""

import json

import pytest
from coded import raises

from sparsepipe.study.held_against import (
    known_optima,
    measured_plans,
    of_jobs,
    planners_answers,
    replayed_steps,
    slow_downs,
    slow_downs_beside_others,
)
from sparsepipe.views.plots import HeldAgainst, contradictions, held_against, held_against_table


@pytest.fixture(scope="module")
def outside(shared_data):
    folder = shared_data / "outside"
    if not folder.is_dir():
        pytest.skip(f"nothing that others measured at {folder}: sparsepipe data fetch sailor")
    return folder


def errors(numbers):
    return held_against_table(numbers).error.abs()


@pytest.mark.slow
def test_replayed_steps_and_slow_downs(outside, tmp_path):
    """Of the shorter job: tests/test_replaying.py holds both to what their authors published."""
    pytest.importorskip("pyarrow")
    folder = outside / "straggler-traces" / "data"
    for path in folder.glob("*-ST.*"):
        (tmp_path / path.name).symlink_to(path)
    numbers = replayed_steps(str(tmp_path))
    assert len(numbers) == 2 * 32
    assert errors(numbers).max() < 0.01
    theirs = held_against_table(numbers).others_error.abs()
    assert 0.005 < theirs.mean() < 0.02 and theirs.notna().sum() == 32
    result = json.loads((folder / "result-ST.json").read_text())
    assert [one.measured for one in numbers[:3]] == pytest.approx([*result["step_t_base"].values()][:3])
    numbers = slow_downs(str(tmp_path))
    (job,) = [one for one in numbers if one.kind == "what-if slow-down of a job"]
    assert job.name.startswith("ST: stage 3 (the last)") and job.measured == pytest.approx(1.1787, abs=1e-4)
    assert len(numbers) == 19 and errors(numbers).max() < 0.02


def test_jobs_are_those_whose_traces_are_there(outside, tmp_path, capsys):
    pytest.importorskip("pyarrow")
    (tmp_path / "trace-AR.parquet").symlink_to(outside / "straggler-traces" / "data" / "trace-ST.parquet")
    numbers = replayed_steps(str(tmp_path))
    assert {one.name.partition(",")[0] for one in numbers} == {"AR"} and not any(one.others for one in numbers)
    assert slow_downs(str(tmp_path)) == []
    assert capsys.readouterr().out.splitlines() == [
        "result-AR.json is not beside trace-AR.parquet: what their simulator says of each step is left out",
        "result-AR.json is not beside trace-AR.parquet: its slow-downs are left out",
    ]
    (tmp_path / "result-AR.json").write_text('{"blocking_slowdown": "much"}')
    with raises("number.malformed", "AR", "much"):
        slow_downs(str(tmp_path))
    with raises("bytedance.no_traces", "trace-"):
        replayed_steps(str(outside / "clouds"))


@pytest.mark.slow
def test_known_optima(outside):
    numbers = known_optima(str(outside / "exact-partitions" / "throughput-inputs"))
    assert len(numbers) == 5 and errors(numbers).max() < 1e-6


def test_measured_plans(outside):
    numbers = measured_plans(str(outside / "measured-plans"))
    assert len(numbers) >= 24 and all(one.others for one in numbers)
    assert {one.unit for one in numbers} == {"s", "GB"}
    assert {one.kind.partition(",")[0] for one in numbers if one.doubt} == {"step", "peak memory"}


def test_original_planners(shared_reference, monkeypatch):
    numbers = planners_answers(str(shared_reference), 4)
    assert 6 <= len(numbers) <= 8 and errors(numbers).max() < 1e-9
    monkeypatch.setenv("SPARSEPIPE_REFERENCE", str(shared_reference))
    assert planners_answers("", 1) and not planners_answers("", 0)


def test_what_is_not_here_is_left_out_with_a_word(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SPARSEPIPE_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("SPARSEPIPE_REFERENCE", raising=False)
    without = (replayed_steps, slow_downs, slow_downs_beside_others, known_optima, measured_plans)
    assert not [number for found in without for number in found()] and not planners_answers("", 4)
    told = capsys.readouterr().out.splitlines()
    assert len(told) == 6 and "data fetch sailor" in "".join(told)
    assert of_jobs() == [] and len(capsys.readouterr().out.splitlines()) == 1, "once for steps and slow-downs"


def test_a_number_is_off_by_hand():
    """Ours 10% above, theirs 20% below; a mark each, an outline where the record contradicts itself."""
    numbers = [HeldAgainst("step", "a", 2.0, 2.2, others=1.6), HeldAgainst("step", "b", 2.0, 2.0, doubt="no")]
    assert contradictions(numbers) == "step, b: no" and not contradictions(numbers[:1])
    assert "2 numbers" in held_against(numbers).layout.title.text
    told = held_against([*numbers, numbers[1]] * 500).layout.title.text
    assert "1,000 of 1,500 numbers" in told.replace("<br>", " ")
    table = held_against_table(numbers)
    assert list(table.error) == pytest.approx([0.1, 0.0])
    assert table.others_error[0] == pytest.approx(-0.2) and table.others_error.isna()[1]
    marks = [trace for trace in held_against(numbers).data if trace.mode == "markers" and trace.x[0] is not None]
    assert [len(trace.x) for trace in marks] == [1, 2]
    proved = held_against([HeldAgainst("optimum", "a", 2.0, 2.0, known_as="known optimum"), *numbers])
    assert proved.layout.xaxis.title.text == "known optimum (s)" and proved.layout.xaxis2.title.text == "measured (s)"
    assert marks[1].marker.symbol == ("circle", "circle-open") and list(marks[0].customdata) == ["a: -20.0%"]
