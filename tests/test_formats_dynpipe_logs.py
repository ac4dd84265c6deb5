"""DynPipe's logs: every line they print, counted over epochs and restarts, and what is none."""

from pathlib import Path

import pytest
from coded import mentions, raises

from sparsepipe.records.formats.dynpipe import read_curve, read_log
from sparsepipe.study.published_dynpipe import (
    PublishedDynPipe,
    disturbed_bars,
    disturbed_epochs,
    light_text,
    typed_numbers,
)

LINE = "Epoch: [{}][{}/1562]\tTime: {} (0.154)\tEpoch time [hr]: 0.000 (0.067)\tLoss: 2.29 (2.29)\tRunning Time: {}"
TOP = " * Prec@1 {} Prec@5 90.0"


def written(path: Path, *lines: str) -> Path:
    path.write_text("\n".join([*lines, ""]))
    return path


def test_iterations_are_counted_over_epochs_and_restarts(tmp_path):
    """An epoch that a restart cut short counts for what it was; a restart may begin the same epoch again."""
    log = written(
        tmp_path / "log.txt",
        "partition tensor([10, 28])",
        LINE.format(0, 0, 0.3, 1.0),
        LINE.format(0, 10, 0.1, 2.0),
        LINE.format(0, 20, 0.2, 3.0),
        "restart",
        "partition tensor([ 5, 33])",
        LINE.format(1, 0, 0.4, 9.0),
        LINE.format(1, 10, 0.1, 10.0),
        TOP.format(44.5),
        "partition tensor([ 5, 33])",
        LINE.format(1, 0, 0.4, 3600.0),
        TOP.format(56.25),
    )
    found = read_log(log)
    assert [one.iteration for one in found.iterations[:5]] == [0, 10, 20, 30, 40]
    assert [one.seconds for one in found.iterations[:3]] == [0.3, 0.1, 0.2]
    assert found.marks == ((20, "restart"), (20, "5, 33"))
    assert found.validation == ((10 / 3600, 44.5), (1.0, 56.25))


def test_what_is_no_log_and_no_curve_is_refused_in_one_line(tmp_path):
    with raises("dynpipe_log.no_iterations"):
        read_log(written(tmp_path / "a", "nothing"))
    with raises("dynpipe_log.not_a_number", "a", "0..1"):
        read_log(written(tmp_path / "a", LINE.format(0, 0, "0..1", 1.0)))
    for text, error in (
        ("0.1 2 3", ("dynpipe_log.line_malformed", "a", "1", "0.1 2 3")),
        ("x 1", ("dynpipe_log.not_a_number", "a:1", "x")),
        ("", ("dynpipe_log.empty",)),
    ):
        with raises(*error):
            read_curve(written(tmp_path / "a", text))
    assert read_curve(written(tmp_path / "a", "0.5 10", "", "1.5 2e1")) == [(0.5, 10.0), (1.5, 20.0)]


def test_without_the_logs_one_line_says_where_they_are(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SPARSEPIPE_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = PublishedDynPipe.find()
    assert ["data fetch dynpipe-logs" in line for line in capsys.readouterr().out.splitlines()] == [True]
    assert found.runs() == found.learning() == found.tasks() == {} and disturbed_bars(found.runs()) == []


@pytest.fixture(scope="module")
def published(shared_data: Path) -> PublishedDynPipe:
    folder = shared_data / "dynpipe_logs"
    if not folder.is_dir():
        pytest.skip(f"no {folder}: sparsepipe data fetch dynpipe-logs")
    return PublishedDynPipe(folder)


def test_the_real_logs_say_what_was_read_off_them_by_hand(published):
    """Mean seconds an iteration of epochs under a heavy intruder: .343 and .344, .208 and .210, .212 and .217."""
    runs = published.runs()
    assert disturbed_epochs(runs["PipeDream"]) == {"light": (1, 6), "heavy": (10, 11)}
    bars = {(bar.case, bar.system): bar for bar in disturbed_bars(runs)}
    heavy = {name: bars["heavy workload", name] for name in runs}
    told = {name: (round(bar.least, 3), round(bar.most, 3)) for name, bar in heavy.items()}
    assert told == {"PipeDream": (0.343, 0.344), "DynPipe-Re": (0.208, 0.21), "DynPipe": (0.212, 0.217)}
    assert len(runs["DynPipe"].iterations) == 1704
    assert sum(text == "restart" for _, text in runs["DynPipe"].marks) == 7


def test_targets_are_reached_when_the_curves_say(published):
    """Hours until 80% of CIFAR-10 by VGG16, and until a loss of 3.1 by BERT: DynPipe, PipeDream, GPipe."""
    tasks = published.tasks()
    hours = [
        first(tasks["VGG16, CIFAR-10"][name], lambda value: value >= 80) for name in ("DynPipe", "PipeDream", "GPipe")
    ]
    assert hours == pytest.approx([0.858, 1.414, 2.519], abs=0.001)
    losses = tasks["BERT, BookCorpus (loss)"]
    hours = [first(losses[name], lambda value: value <= 3.1) for name in ("DynPipe", "PipeDream", "GPipe")]
    assert hours == pytest.approx([2.62, 3.82, 6.93], abs=0.01)
    assert published.learning()["PipeDream"][-1][1] == pytest.approx(80.062)


def first(curve, reached):
    return next(hours for hours, value in curve if reached(value))


def test_numbers_of_their_scripts_are_kept_as_such():
    bars = {(bar.case, bar.system): bar.value for bar in typed_numbers("throughput")}
    assert bars["VGG16, CIFAR-10", "DynPipe"] / bars["VGG16, CIFAR-10", "PipeDream"] == pytest.approx(1.22, abs=0.005)
    assert len(bars) == 15 and len(typed_numbers("utilization")) == 24 and len(typed_numbers("iteration_seconds")) == 6
    assert {bar.source for bar in typed_numbers("utilization")} == {"published"}
    with raises("dynpipe_log.cases_malformed", "nothing", "None"):
        typed_numbers("nothing")


def test_a_note_says_why_fewer_variants_ran_beside_the_light_intruder():
    """Its panel had three of five, and only the notebook said so."""
    every, light = ["never", "live", "epoch", "measured", "oracle"], ["never", "live", "epoch"]
    ran = "with the light one, never, live and epoch ran, once each"
    why = "which stand for the three systems in DynPipe's figure 13a"
    assert mentions(light_text(light, every), ran, why)
    assert light_text(light, light) == ran
    assert "never ran, once" in light_text(["never"], light)
