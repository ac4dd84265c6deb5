"""Measuring intruders: every combination once, rows that outlive a kill, and a predictor that learns from them."""

import json
import os
import signal
import subprocess
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from coded import mentions, raises
from processes import until

from sparsepipe import CostSample, Layer, LayerCost, LayerGraph, Profile
from sparsepipe.cli import main
from sparsepipe.monitoring.interference.forest import Growth
from sparsepipe.monitoring.interference.measurements import Measurement, MeasurementFile, read_measurements, rows_of
from sparsepipe.monitoring.interference.measuring import intruder_sets
from sparsepipe.monitoring.interference.predictor import Predictor, learn
from sparsepipe.monitoring.interference.victims import KindSeconds, kind_of
from sparsepipe.util.host.background_load import processors_of
from sparsepipe.util.host.imports import python_command, python_environment

pytestmark = pytest.mark.skipif(find_spec("sklearn") is None, reason="scikit-learn grows the forests")
ALONE = {"convolution": KindSeconds(0.01, 3, 4e6), "relu": KindSeconds(0.001, 3, 0.0)}


def measurement(busy: float, *intruders: str) -> Measurement:
    """Convolutions take as much longer as others are busy, relu twice as much of it."""
    kinds = {
        kind: replace(alone, seconds=alone.seconds * (1 + busy * (2 if kind == "relu" else 1)))
        for kind, alone in ALONE.items()
    }
    return Measurement("net × 8", intruders, 0, 0 if intruders else -1, 10, {"busy": busy, "waited": busy / 2}, kinds)


@pytest.fixture(scope="module")
def measurements():
    return [measurement(0.0), *(measurement(k / 20, f"kind {k}") for k in range(1, 30))]


@pytest.fixture(scope="module")
def predictor(measurements):
    return learn(measurements, machine="a machine", growth=Growth(trees=30))[0]


@pytest.fixture(scope="module")
def profile():
    layers = [Layer("a", "convolution(in_channels=1)", 4e6), Layer("b", "relu()"), Layer("c", "Softmax()")]
    costs = tuple(LayerCost((CostSample(100, s / 2, s / 2, 4000),)) for s in (0.01, 0.001, 0.001))
    return Profile(LayerGraph.chain(layers), {"cpu": costs}, (100.0,))


def test_sets_of_intruders_are_of_one_to_three_kinds():
    sets = intruder_sets(["a", "b", "c", "d"])
    assert len(sets) == 4 + 6 + 4 and sets[0] == ("a",) and ("a", "c", "d") in sets
    assert kind_of("convolution(in_channels=1, bias=False)") == "convolution" and kind_of("") == "layer"


def test_slowdowns_are_over_the_time_alone(measurements):
    rows = rows_of(measurements)
    assert [row.slowdown for row in rows[0]] == [1, 1]
    assert [row.slowdown for row in rows[20]] == pytest.approx([2, 3])
    with raises("interference.no_baseline", victim="net × 8"):
        rows_of(measurements[1:])


def test_a_predictor_says_what_each_layer_will_take(predictor, profile):
    factors = predictor.layer_factors({"busy": 1.0, "waited": 0.5}, profile, "cpu")
    assert factors[0] == pytest.approx(2, abs=0.15) and factors[1] == pytest.approx(3, abs=0.3)
    assert len(factors) == 3  # one whose kind it has never seen, too
    still = predictor.layer_factors({"busy": 0.0, "waited": 0.0}, profile, "cpu")
    assert still[0] == pytest.approx(1, abs=0.1)


def test_what_it_learned_is_judged_on_measurements_held_out(measurements):
    _, judged = learn(measurements, growth=Growth(trees=30))
    assert judged.num_held_out == 2 * 9 and judged.error < 0.1 < judged.mean_predictor_error
    assert mentions(judged, judged.num_held_out)
    with raises("predictor.too_few", "3 measurements"):
        learn(measurements[:3])


def test_a_predictor_comes_back_from_its_file(tmp_path, predictor, profile):
    again = Predictor.load(predictor.save(tmp_path / "p.json"))
    told = {"busy": 0.6, "waited": 0.3}
    assert again.layer_factors(told, profile, "cpu") == predictor.layer_factors(told, profile, "cpu")
    assert (again.metrics, again.kinds, again.machine) == (predictor.metrics, predictor.kinds, "a machine")


def test_a_predictor_from_other_metrics_is_refused(predictor, profile):
    with raises("predictor.metrics_differ", "on a machine", "['gpu watts', 'waited']"):
        predictor.layer_factors({"busy": 1.0, "gpu watts": 300.0}, profile, "cpu")


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        ("format", "x", ("predictor.malformed",)),
        ("metrics", ["other"], ("predictor.features_differ",)),
        ("kinds", "relu", ("value.not_texts", "kinds", "relu")),
        ("forest", None, ("forest.malformed", "forest")),
        ("error", [1], ("predictor.error_malformed", "[1]")),
        ("machine", 1, ("value.not_text", "machine", "1")),
    ],
)
def test_a_predictor_file_that_is_none_is_refused_in_one_line(tmp_path, predictor, key, value, error):
    path = tmp_path / "p.json"
    path.write_text(json.dumps({**predictor.to_json(), key: value}))
    with raises(*error) as caught:
        Predictor.load(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_rows_are_taken_up_where_a_kill_left_them(tmp_path, measurements):
    path, header = tmp_path / "rows.jsonl", {"machine": "m", "seconds": 2.0}
    file = MeasurementFile(path, header)
    for one in measurements[:3]:
        file.add(one)
    with path.open("a") as handle:
        handle.write('{"victim": "net × 8", "intru')  # cut short
    assert read_measurements(path)[1] == measurements[:3]
    again = MeasurementFile(path, header)
    assert list(again.measured.values()) == measurements[:3]
    again.add(measurements[3])
    assert read_measurements(path)[1] == measurements[:4]
    with raises("interference.setting_differs", "seconds", "2.0", "3.0"):
        MeasurementFile(path, {**header, "seconds": 3.0})


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{}\n", ("interference.malformed",)),
        ("", ("interference.malformed",)),
        ('{"format": "sparsepipe-interference-2"}\n{"victim": "v"}\n', ("record.key_missing", "2")),
        (
            '{"format": "sparsepipe-interference-2"}\n{"metrics": {"a": "b"}}\n',
            ("number.malformed", "2: metrics: a", "b"),
        ),
        (
            '{"format": "sparsepipe-interference-2"}\n{"kinds": {"relu": 1}}\n',
            ("value.not_an_object", "2: kinds: relu", "1"),
        ),
    ],
)
def test_rows_of_something_else_are_refused_in_one_line(tmp_path, text, error):
    path = tmp_path / "rows.jsonl"
    path.write_text(text)
    with raises(*error) as caught:
        read_measurements(path)
    assert "\n" not in str(caught.value)


QUICK = ["--victim", "minkvgg11bn-narrow", "--batch-size", "2", "--seconds", "0.05", "--together", "1"]
KINDS = ["--intruder", "memory-streams", "--intruder", "matrix-products"]


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="processors are told apart on Linux")
def test_the_command_is_killed_and_goes_on(tmp_path: Path, capsys):
    """The rows that were there before the kill are there after it, unchanged; the rest is measured once."""
    out, learned = tmp_path / "rows.jsonl", tmp_path / "predictor.json"
    asked = ["interference", "measure", "--out", str(out), *QUICK, *KINDS]
    verb = subprocess.Popen(python_command("sparsepipe", *asked), env=python_environment(), stderr=subprocess.DEVNULL)
    until(lambda: out.exists() and out.read_bytes().count(b"\n") >= 2, "a measurement")
    verb.send_signal(signal.SIGKILL)
    verb.communicate()
    before = read_measurements(out)[1]
    assert main([*asked, "--predictor", str(learned), "--json"]) == 0
    told, found = json.loads(capsys.readouterr().out), read_measurements(out)[1]
    assert found[: len(before)] == before
    places = min(2, len(processors_of()))
    assert len(found) == len({one.key for one in found}) == told["measurements"] == 1 + 2 * places
    assert all(one.passes >= 3 and "convolution" in one.kinds for one in found)
    assert len({tuple(one.metrics) for one in found}) == 1
    assert Predictor.load(learned).metrics == tuple(found[0].metrics)
    assert {row["intruders"] for row in told["slowdowns"]} == {"memory-streams", "matrix-products"}


@pytest.mark.gpu
def test_networks_and_intruders_share_a_gpu_and_its_gauges_are_read(tmp_path: Path, capsys):
    out, learned = tmp_path / "rows.jsonl", tmp_path / "predictor.json"
    asked = ["interference", "measure", "--out", str(out), *QUICK, "--batch-size", "4", *KINDS, "--device", "cuda"]
    assert main([*asked, "--predictor", str(learned), "--json"]) == 0
    found = read_measurements(out)[1]
    assert {one.intruders for one in found} == {(), ("memory-streams",), ("matrix-products",)}
    assert all(any(name.startswith("gpu ") for name in one.metrics) for one in found)
    assert Predictor.load(learned).metrics == tuple(found[0].metrics)


def test_bad_input_of_measuring_is_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sparsepipe.profiling.devices.num_gpus", lambda: 0)
    for more, message in (
        (["--device", "cuda"], "device 'cuda': torch finds no CUDA device; use cpu"),
        (["--victim", "nonsense"], "nonsense"),
        (["--predictor", str(tmp_path)], "is a folder, expected a file for the predictor"),
    ):
        assert main(["interference", "measure", "--out", str(tmp_path / "rows.jsonl"), *more]) == 2
        told = capsys.readouterr().err.strip().splitlines()
        assert message in told[-1]
