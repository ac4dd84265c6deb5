"""Damaged files of run records: every use of them ends in a result or in one line, and costs no other record."""

import json
import os
import shutil
import sys
import warnings
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fuzzing import fuzzed, put
from hypothesis import given
from test_parsers_fuzzed import damaged, damaged_tree, edits, tree_edits

from sparsepipe import InputError, Plan, RunRecord, Stage, plots
from sparsepipe.cli.run_verbs import runs_compare, runs_export, runs_list, runs_show
from sparsepipe.records import Origin
from sparsepipe.records.record_files import CLOCK, read_fields
from sparsepipe.records.run_progress import begin_plan
from sparsepipe.runtime import RunConfig
from sparsepipe.runtime.reporting.metrics import median_summaries
from sparsepipe.runtime.reporting.recorder import forget_rows
from sparsepipe.runtime.training_state import checkpoint
from sparsepipe.util.io.files import write_json, write_rows
from sparsepipe.util.io.functions import UserFunction
from sparsepipe.views import html
from sparsepipe.views.plots.timeline import working_epoch
from sparsepipe.views.widgets import runs_table
from sparsepipe.views.widgets.live import doings, doings_table, learned, newest_spans, phase

EXAMPLES = 12  # of each file, in each of two ways; each is put to all of fifteen uses that open that file
PUT_TO_ALL = 2  # of them are put to every use, whatever it opens
LAYERS = ("conv0", "conv1")
ORDER = {"num_classes": 3, "samples": 8, "batch_size": 4, "seed": 0, "shuffle": True, "balance": None}
FILES = (
    *("plan.json", "config.json", "origin.json", "status.json", "beside.json", "metrics.jsonl", "trace-rank0.jsonl"),
    *("plans/000.json", "plans/001.json", "logs/clock.json", "checkpoints/minibatch-00000002/manifest.json"),
)


def record(folder: Path) -> RunRecord:
    """A whole record of two ranks under two plans, one epoch of two minibatches, with its checkpoint."""
    plan = Plan(tuple(Stage((layer,), (k,)) for k, layer in enumerate(LAYERS)))
    config = RunConfig("net", "d", batch_size=4).to_json()
    made = RunRecord.create(folder, plan, config, Origin.here(seed=0, data="d", synthetic=True))
    begin_plan(folder, plan.with_schedule("gpipe"), 1)
    made.write_status("finished")
    made.note_beside("other")
    scores = {"loss": 1.5, "accuracy": 0.5}
    stages = [{"stage": k, "ranks": [k], "busy_fraction": 0.5, "bubble_fraction": 0.5, "peak_bytes": 7} for k in (0, 1)]
    told = {"train": scores, "validation": {**scores, "samples": 3}, "samples_per_second": 8.0, "stages": stages}
    told["load"] = {
        "run_queue_wait_share": 0.2,
        "other_cpu_share": 0.3,
        "steal_share": 0.0,
        "threads_per_processor": 1.0,
    }
    steps = [
        {"event": "step", "seconds": 1.0 + m, "epoch": 0, "minibatch": m, "loss": 2.0, "samples": 4, "voxels": 10}
        for m in range(2)
    ]
    rows = [
        {"event": "start", "seconds": 0.5, "epoch_minibatches": 2, "minibatches": 2, "shares_memory_with": [0]},
        *steps,
        {"event": "epoch", "seconds": 3.0, "epoch": 0, "minibatches": 2, "sent_bytes": 100, **told},
        {"event": "summary", "seconds": 3.0, "run_dir": "r", "minibatches": 2, "epochs": 1, "engine": "native", **told},
    ]
    write_rows(folder / "metrics.jsonl", rows)
    for rank in (0, 1):
        spans = [
            {"rank": rank, "name": f"{rank}{letter}{m}", "start": m + at, "end": m + at + 0.4, "kind": kind}
            | {"stage": rank, "minibatch": m, "peer": -1}
            for m in range(2)
            for letter, kind, at in (("F", "forward", 0.1), ("B", "backward", 0.5))
        ]
        write_rows(folder / f"trace-rank{rank}.jsonl", spans)
    (folder / "logs/clock.json").write_text('{"started": 1700000000.5}')
    checkpoint.begin(folder, 2)
    for k, layer in enumerate(LAYERS):
        checkpoint.write_shard(folder, 2, f"stage{k}", {f"weight:{layer}.kernel": torch.ones(2)})
    places = {layer: f"stage{k}.safetensors" for k, layer in enumerate(LAYERS)}
    checkpoint.finish(folder, 2, keep=2, layers=places, model="net", optimizer="sgd", **ORDER, loss_scale=None)
    return made


def uses(folder: Path, other: RunRecord) -> Iterator[tuple[str, Callable[[], Any]]]:
    """What is done with a record, each by its name. Where two records are shown, the other one must be there."""

    def found() -> RunRecord:
        return RunRecord.load(folder)

    def listed() -> None:
        rows = runs_list(Namespace(folder=folder.parent)).document
        assert [row["state"] for row in rows if row["run"] == other.name] == ["finished"]
        assert len(rows) == 2

    def compared() -> None:
        answer = runs_compare(Namespace(runs=[folder, other.folder]))
        assert answer.document[1]["samples_per_second"] == 8.0
        json.dumps(answer.document)

    def shown_in_widget() -> None:
        table = runs_table(folder.parent).set_index("run")
        assert table.loc[other.name].state == "finished" and len(table) == 2

    def together(table: Callable[..., Any]) -> Callable[[], None]:
        def draw() -> None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # says which one is left out
                assert other.name in set(table(found(), other).run)

        return draw

    def live() -> None:
        rows = found().metrics()
        doings_table(doings(newest_spans(folder)))
        phase(rows, other.plan, running=True)
        learned(rows)
        plots.progress_table({"run": rows})

    def traced() -> None:
        trace = found().trace()
        plots.trace_page(trace, title="x")
        html(trace)
        json.dumps(trace.to_chrome(), allow_nan=False)

    def resumed() -> None:
        RunConfig.from_json(found().config)
        read_fields(folder / "logs/clock.json", CLOCK, what="run's clock")["started"]
        median_summaries([row["stages"] for row in found().metrics("epoch")])
        forget_rows(folder, 1)

    def loaded() -> None:
        latest = checkpoint.latest(folder)
        latest.check(model="net", layers=LAYERS)
        latest.check_minibatches(ORDER, epoch_minibatches=2)
        latest.read(LAYERS)

    yield "list", listed
    yield "show", lambda: runs_show(Namespace(run=folder))
    yield "compare", compared
    yield "export", lambda: runs_export(Namespace(run=folder, out=folder / "chrome.json"))
    yield "widget", shown_in_widget
    yield "notebook", lambda: html(found())
    yield "throughput", together(plots.throughput_table)
    yield "accuracy", together(plots.accuracy_table)
    yield "compression", together(plots.compression_table)
    yield "live", live
    yield "trace", traced
    yield "plans", lambda: (found().plans, found().plan_of_epoch(0))
    yield "epoch", lambda: working_epoch(found(), 0)
    yield "checkpoint", loaded
    yield "resume", resumed  # last: it writes


_opened: list[set[str]] = []  # names of files, while somebody wants to know which are opened


def _note_opened(event: str, arguments: tuple) -> None:
    """Note the names of files as Python opens them (an audit hook, which nothing that opens files passes by)."""
    if _opened and event == "open" and isinstance(arguments[0], str):
        _opened[-1].add(Path(arguments[0]).name)


sys.addaudithook(_note_opened)


def openers(folder: Path, other: RunRecord, file: str) -> set[str]:
    """Return the names of the uses that open a file of that name in a whole record.

    What is in the file is nothing to the others: until it is opened, they do what they do with a whole record.
    """
    found = set()
    for name, use in uses(folder, other):
        _opened.append(set())
        try:
            use()
        finally:
            names = _opened.pop()
        found |= {name} if file in names else set()
    return found


def use_all(folder: Path, other: RunRecord, counts: Counter[str], *, only: set[str] | None = None) -> None:
    """Put a record to every use, or to those that are named in `only`."""
    for name, use in uses(folder, other):
        if only is not None and name not in only:
            continue
        try:
            use()
        except InputError as error:
            assert "\n" not in str(error) and len(str(error)) < 2000, name
            assert name not in ("list", "widget", "compare", "notebook"), f"{name} refused: {error}"
            counts["refused"] += 1
        else:
            counts["done"] += 1


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    record(folder / "damaged")
    record(folder / "whole")
    return folder


def test_a_whole_record_is_put_to_every_use(whole):
    counts: Counter[str] = Counter()
    kept = (whole / "damaged/metrics.jsonl").read_bytes()
    use_all(whole / "damaged", RunRecord(whole / "whole"), counts)
    (whole / "damaged/metrics.jsonl").write_bytes(kept)
    assert counts["refused"] == 0


@pytest.mark.parametrize("name", [*FILES, "labels.json", "logs/.lock", "logs/rank0.log", "drift.jsonl"])
def test_a_pipe_in_a_record_hangs_nothing(whole, tmp_path, name):
    """Whoever opened it waited for a writer: one such run hung the list of all, and the board."""
    shutil.copytree(whole, tmp_path / "runs")
    path = tmp_path / "runs" / "damaged" / name
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    counts: Counter[str] = Counter()
    use_all(tmp_path / "runs" / "damaged", RunRecord(tmp_path / "runs" / "whole"), counts)
    assert counts["done"] >= 4


def test_looking_at_a_record_imports_nothing_that_it_names(whole, tmp_path):
    """A run that somebody sent may name any file as its network, data and loss."""
    shutil.copytree(whole, tmp_path / "runs")
    evil, marker = tmp_path / "evil.py", tmp_path / "was-run"
    evil.write_text(f"from pathlib import Path\nPath({str(marker)!r}).touch()\ndef build(*given, **more): pass\n")
    name = f"{evil}:build"
    config = RunConfig(name, name, batch_size=4, loss=name)
    write_json(tmp_path / "runs" / "damaged" / "config.json", config.to_json())
    counts: Counter[str] = Counter()
    use_all(tmp_path / "runs" / "damaged", RunRecord(tmp_path / "runs" / "whole"), counts)
    assert counts["done"] > 10 and not marker.exists()
    UserFunction.parse(name).load()
    assert marker.exists()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["text", "tree"])
@pytest.mark.parametrize("name", FILES)
def test_damaged(whole, name, kind, capsys):
    path, metrics = whole / "damaged" / name, whole / "damaged/metrics.jsonl"
    other, content, told = RunRecord(whole / "whole"), path.read_text(), metrics.read_bytes()
    rows = [json.loads(line) for line in content.splitlines()] if path.suffix == ".jsonl" else None
    counts: Counter[str] = Counter()
    folder = path.parents[len(Path(name).parts) - 1]
    reading = openers(folder, other, path.name)
    assert reading, "somebody opens it"

    @fuzzed(EXAMPLES)
    @given(edits if kind == "text" else tree_edits)
    def one(found: list[Any]) -> None:
        put(metrics, told)
        if kind == "text":
            changed = damaged(content, found)
        else:
            tree = damaged_tree(json.loads(content) if rows is None else rows, found)
            changed = (
                "".join(json.dumps(row) + "\n" for row in tree) if isinstance(tree, list) and rows else json.dumps(tree)
            )
        put(path, changed.encode("utf-8", "surrogatepass"))
        counts["examples"] += 1
        use_all(folder, other, counts, only=reading if counts["examples"] > PUT_TO_ALL else None)

    try:
        one()
    finally:
        metrics.write_bytes(told)
        path.write_text(content)
    with capsys.disabled():
        print(f"\n{name} ({kind}, {len(reading)} uses): {counts['done']} done, {counts['refused']} refused", end="")


SAMPLES = [
    ("metrics.jsonl", b"\xff\xfe\n"),
    ("metrics.jsonl", b'{"event": ' + b"[" * 100_000 + b"\n"),
    ("metrics.jsonl", b"[]\n"),
    ("metrics.jsonl", b'{"seconds": 1}\n'),
    ("metrics.jsonl", b'{"event": "epoch", "validation": []}\n'),
    ("status.json", b"{}"),
    ("status.json", b"[]"),
    ("status.json", b'{"state": "\\ud800\\u001b[31m\\n"}'),
    ("config.json", None),
    ("config.json", b"null"),
    ("config.json", b'{"model": "net", "data": "d", "' + b"9" * 5_000 + b'": 1}'),
    ("origin.json", b'{"facts": []}'),
    ("plan.json", b"{}"),
    ("plans/000.json", b'{"first_minibatch": 0}'),
    ("plans/000.json", b'{"first_minibatch": true, "plan": {}}'),
    ("plans/001.json", b'{"first_minibatch": 1, "plan": []}'),
    ("logs/clock.json", b"{}"),
    ("logs/clock.json", b'{"started": NaN}'),
    ("trace-rank0.jsonl", b'{"rank": 0, "name": "x", "start": 0, "end": 1, "colour": 2}\n'),
    ("trace-rank0.jsonl", b'{"rank": "<img src=x>", "name": "x", "start": 0, "end": 1}\n'),
    ("trace-rank0.jsonl", b'{"rank": 0, "name": "x", "start": 0, "end": Infinity}\n'),
    ("checkpoints/minibatch-00000002/manifest.json", b'{"format": "sparsepipe-checkpoint-1"}'),
]


@pytest.mark.parametrize(("name", "content"), SAMPLES)
def test_damage_that_once_was_a_traceback(tmp_path, whole, name, content):
    """These ended in a KeyError, TypeError or UnicodeDecodeError, or in a line of thousands of letters."""
    runs = tmp_path / "runs"
    shutil.copytree(whole, runs)
    path = runs / "damaged" / name
    if content is None:
        path.unlink()
    else:
        path.write_bytes((path.read_bytes() if path.suffix == ".jsonl" else b"") + content)
    counts: Counter[str] = Counter()
    use_all(runs / "damaged", RunRecord(runs / "whole"), counts)
    assert counts["refused"] > 0
