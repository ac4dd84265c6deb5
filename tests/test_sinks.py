"""Metrics on their way to trackers: which numbers a row has, what each tracker's own reader finds, one's own sink."""

import json
import sqlite3
import subprocess
import sys
import threading
import time
from argparse import Namespace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain
from pathlib import Path

import pytest
from coded import mentions, raises

from sparsepipe.cli import main
from sparsepipe.cli.launches import open_sinks
from sparsepipe.records.sinks import open_sink, scalars
from sparsepipe.study import equal_stages

STEP = {
    "event": "step",
    "seconds": 1.5,
    "epoch": 0,
    "minibatch": 3,
    "loss": 2.5,
    "voxels": 128,
    "note": "a",
    "ok": True,
}
STAGE = {"stage": 1, "ranks": [1], "busy_fraction": 0.5}
EPOCH = {"event": "epoch", "epoch": 0, "minibatches": 4, "train": {"loss": 2.0}, "validation": {"accuracy": 0.5}}


def test_the_numbers_of_rows():
    assert scalars(STEP) == (4, {"step/loss": 2.5, "step/voxels": 128.0})
    found = {"epoch/train/loss": 2.0, "epoch/validation/accuracy": 0.5, "stage 1/busy_fraction": 0.5}
    assert scalars(EPOCH | {"stages": [STAGE, "damaged"]}) == (4, found)
    assert scalars(STEP | {"pipeline": 2})[1]["step/loss of pipeline 2"] == 2.5
    assert scalars(EPOCH | {"validation": None}) == (4, {"epoch/train/loss": 2.0})
    for row in (
        {"event": "start", "minibatches": 4},
        {"event": "step"},
        {"event": "summary", "minibatches": 4, "x": 1},
    ):
        assert scalars(row) is None


OWN = """
import json
class Lines:
    def __init__(self, folder): self.path, self.rows = folder, []
    def __call__(self, row): self.rows.append(row)
    def close(self):
        with open(self.path, "w") as file: file.write(json.dumps(self.rows))
def wrong(folder): return 7
def offline(folder): raise OSError("no\\nroute")
class Down(Lines):
    def __call__(self, row):
        super().__call__(row)
        if len(self.rows) == 2: raise RuntimeError("server\\nis down")
    def close(self):
        super().close()
        raise RuntimeError("still down")
"""


@pytest.mark.slow
def test_a_sink_of_ones_own_gets_every_row_of_a_run_and_is_closed(tmp_path, capsys):
    (tmp_path / "own.py").write_text(OWN)
    plan = equal_stages("minkvgg11bn-narrow", 2).save(tmp_path / "plan.json")
    words = f"run {plan} --model minkvgg11bn-narrow --data digits --voxel-size 0.2 --num-points 64 --batch-size 4"
    words += f" --engine native --minibatches 3 --no-validation --checkpoint-every 0 --run-dir {tmp_path / 'run'}"
    assert main([*words.split(), "--log", f"{tmp_path}/own.py:Lines", str(tmp_path / "rows.json")]) == 0
    rows = json.loads((tmp_path / "rows.json").read_text())
    events = [row["event"] for row in rows]
    assert events[0] == "start" and events.count("step") == 3 and events[-1] == "summary"
    assert rows[0]["run"] == "run" and rows[0]["settings"]["batch_size"] == 4 and rows[0]["settings"]["devices"] == 2
    assert 0 < rows[0]["began"] <= time.time() - rows[-1]["seconds"]


def test_a_sink_that_raises_ends_no_run_and_is_told_of_once(tmp_path, capsys):
    """A tracker whose server was down ended the run with a traceback."""
    (tmp_path / "own.py").write_text(OWN)
    options = Namespace(log=[[f"{tmp_path}/own.py:Down", str(tmp_path / "rows.json")]])
    (sink,) = open_sinks(options)
    for _ in range(4):
        sink(STEP)
    sink.close()
    assert json.loads((tmp_path / "rows.json").read_text()) == [STEP, STEP]
    (told,) = capsys.readouterr().err.splitlines()
    assert mentions(told, "own.py:Down", "RuntimeError")


def test_what_is_no_sink_is_refused(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    with raises("sink.raises", "own.py:offline", "no route", kind="OSError"):
        open_sink(f"{tmp_path}/own.py:offline", tmp_path)
    with raises("sink.malformed"):
        open_sink(f"{tmp_path}/own.py:wrong", tmp_path)


def test_what_cannot_be_logged_to_is_told_in_one_line(tmp_path):
    with raises("sink.unknown", "tensorboard", kind="aim"):
        open_sink("aim", tmp_path)
    with raises("sink.no_address"):
        open_sink("otlp", tmp_path)
    with raises("sink.no_folder"):
        open_sink("trackio", "http://127.0.0.1:9")
    with raises("option.of_followed_run"):
        open_sinks(Namespace(log=[["tensorboard", str(tmp_path)]], detach=True))


START = {"event": "start", "seconds": 0.5, "run": "first", "settings": {"seed": 7, "loss": "classes"}, "began": 1.7e9}
SUMMARY = {"event": "summary", "seconds": 7.0, "minibatches": 5}
LOSSES = {"step/loss of pipeline 0": [(1, 5.0), (3, 3.0), (5, 1.0)], "step/loss of pipeline 1": [(2, 4.0), (4, 2.0)]}


def rows(*, whole=True):
    """Those of a run of two pipelines, whose minibatches end out of order, and of one epoch."""
    steps = (STEP | {"seconds": 1.0 + k, "minibatch": k, "loss": 5.0 - k, "pipeline": k % 2} for k in (0, 2, 1, 3, 4))
    return [START, *steps, EPOCH | {"seconds": 7.0, "minibatches": 5}, *([SUMMARY] if whole else [])]


def logged(kind, where, **options):
    """Give a tracker the rows of a run."""
    sink = open_sink(kind, where)
    for row in rows(**options):
        sink(row)
    sink.close()


def test_tensorboard_reads_what_was_written(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logged("tensorboard", tmp_path / "board")
    events = EventAccumulator(str(tmp_path / "board"))
    events.Reload()
    assert {name: sorted((each.step, each.value) for each in events.Scalars(name)) for name in LOSSES} == LOSSES
    assert [(each.step, each.value) for each in events.Scalars("epoch/validation/accuracy")] == [(5, 0.5)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # mlflow's own, of SQLAlchemy
def test_mlflow_reads_what_was_written(tmp_path):
    pytest.importorskip("mlflow")
    from mlflow.tracking import MlflowClient

    for whole in (True, False):  # two runs of one experiment
        logged("mlflow", tmp_path, whole=whole)
    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    (experiment,) = client.search_experiments(filter_string="name = 'sparsepipe'")
    failed, run = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status, failed.info.status) == ("first", "FINISHED", "FAILED")
    assert run.data.params == {"seed": "7", "loss": "classes"}
    for name, losses in LOSSES.items():
        history = client.get_metric_history(run.info.run_id, name)
        assert sorted((each.step, each.value) for each in history) == losses
    assert {each.timestamp for each in history} == {1_700_000_002_000, 1_700_000_004_000}


@pytest.mark.slow
def test_wandb_keeps_a_run_that_is_to_be_sent_later(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    logged("wandb", tmp_path)
    (path,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    inspect = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(path)]
    lines = subprocess.run(inspect, capture_output=True, text=True, check=True).stdout.splitlines()
    records = [(record["type"], record[record["type"]]) for record in map(json.loads, lines)]
    items = [record["item"] for kind, record in records if kind == "history"]
    assert {name: sorted((row["minibatch"], row[name]) for row in items if name in row) for name in LOSSES} == LOSSES
    assert [record["exit_code"] for kind, record in records if kind == "exit"] == [0]
    updates = [record["update"].items() for kind, record in records if kind == "config"]
    assert START["settings"].items() <= dict(chain(*updates)).items()
    assert "first" in {record.get("display_name") for kind, record in records if kind == "run"}


@pytest.mark.slow
def test_trackio_reads_what_was_written(tmp_path):
    """In a process of its own: trackio chooses its folder when it is imported."""
    pytest.importorskip("trackio")
    code = "import sys; from test_sinks import logged; logged('trackio', sys.argv[1])"
    printed = subprocess.check_output([sys.executable, "-c", code, tmp_path], cwd=Path(__file__).parent)
    assert printed == b"", "stdout is for the answer of --json"
    with sqlite3.connect(tmp_path / "sparsepipe.db") as database:
        steps = database.execute("SELECT step, metrics FROM metrics WHERE run_name = 'first'").fetchall()
        ((config,),) = database.execute("SELECT config FROM configs WHERE run_name = 'first'").fetchall()
    items = [(step, json.loads(numbers)) for step, numbers in steps]
    assert {name: sorted((step, row[name]) for step, row in items if name in row) for name in LOSSES} == LOSSES
    assert START["settings"].items() <= json.loads(config).items()


class Collector(BaseHTTPRequestHandler):
    """Keeps what is sent to it, as a collector of OpenTelemetry answers."""

    def do_POST(self):
        self.server.received.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *arguments):
        pass


def test_a_collector_gets_spans_of_run_epochs_and_minibatches(tmp_path):
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        server.received = []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        logged("otlp", f"http://127.0.0.1:{server.server_port}/")
        server.shutdown()
    assert {path for path, _ in server.received} == {"/v1/traces"}
    requests = [ExportTraceServiceRequest.FromString(content) for _, content in server.received]
    scopes = [scope for request in requests for each in request.resource_spans for scope in each.scope_spans]
    spans = {span.name: span for scope in scopes for span in scope.spans}
    times = {name: (span.start_time_unix_nano, span.end_time_unix_nano) for name, span in spans.items()}
    seconds = {name: [time / 1e9 - START["began"] for time in both] for name, both in times.items()}
    minibatches = {1: [0.5, 1], 2: [0.5, 2], 3: [1, 3], 4: [2, 4], 5: [3, 5]}  # each from its pipeline's last
    named = {f"minibatch {number}": span for number, span in minibatches.items()}
    assert seconds == {"first": [0.0, 7.0], "epoch 1": [0.5, 7.0]} | named
    assert spans["epoch 1"].parent_span_id == spans["first"].span_id
    assert {spans[f"minibatch {k}"].parent_span_id for k in range(1, 6)} == {spans["epoch 1"].span_id}
    attributes = {each.key: each.value.double_value for each in spans["minibatch 3"].attributes}
    assert attributes[next(iter(LOSSES))] == 3.0
    with raises("sink.unreachable"):
        open_sink("otlp", f"http://127.0.0.1:{server.server_port}")


@pytest.mark.parametrize("kind", ["wandb", "mlflow", "trackio", "otlp"])
def test_a_tracker_that_is_not_installed_is_named_with_its_extra(kind, tmp_path, monkeypatch):
    package = {"otlp": "opentelemetry"}.get(kind, kind)
    monkeypatch.setitem(sys.modules, package, None)
    for name in [name for name in sys.modules if name.startswith(f"{package}.")]:
        monkeypatch.delitem(sys.modules, name)
    with raises("extra.not_installed", extra=kind):
        open_sink(kind, {"otlp": "http://127.0.0.1:9"}.get(kind, tmp_path))
