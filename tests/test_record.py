from dataclasses import replace

from coded import raises

from sparsepipe import Plan, RunRecord, Span, Stage
from sparsepipe.records import NOTEBOOK, Origin
from sparsepipe.util.host.background_load import BackgroundLoad
from sparsepipe.util.io.files import write_rows

PLAN = Plan((Stage(("a", "b"), (0, 1)), Stage(("c",), (2,))))


def test_a_record_survives_the_disk(tmp_path):
    RunRecord.create(tmp_path / "run", PLAN, {"seed": 3}, Origin.here(seed=3))
    rows = [{"event": "step", "loss": 3.7}, {"event": "epoch", "epoch": 0}]
    write_rows(tmp_path / "run/metrics.jsonl", rows)
    for rank, start in ((0, 0.5), (1, 0.0)):
        span = Span(rank, f"0F{rank}", start, start + 1)
        write_rows(tmp_path / f"run/trace-rank{rank}.jsonl", [span._asdict()])
    record = RunRecord.load(tmp_path / "run")
    assert record.plan == PLAN
    assert record.config == {"seed": 3}
    assert record.origin["facts"] == {"seed": 3}
    assert record.metrics("step") == rows[:1]
    assert record.metrics() == rows
    assert [span.rank for span in record.trace().spans] == [1, 0]
    assert record.status == {"state": "started"}
    record.write_status("failed", error="why")
    assert record.status == {"state": "failed", "error": "why"}


def test_sizes_of_minibatches_are_what_the_run_counts(tmp_path):
    """The launch board asked every run for its voxels, and showed nothing of one that counts tokens."""
    record = RunRecord.create(tmp_path / "run", PLAN, {}, Origin())
    rows = [
        {"epoch": 0, "tokens": 40, "samples": 8},
        {"epoch": 1, "samples": 8},
        {"epoch": 1, "voxels": 3, "samples": 2},
    ]
    write_rows(tmp_path / "run/metrics.jsonl", [{"event": "step", **row} for row in [*rows, {"epoch": 2}]])
    assert [record.sizes_of_epoch(epoch) for epoch in (0, 1, 3)] == [(40.0,), (8.0, 3.0), ()]
    with raises("run.no_sizes", "voxels, points, tokens, pixels, samples"):
        record.sizes_of_epoch(2)


def test_a_run_under_other_load_says_so(tmp_path):
    """Runs that shared the machine with another job stood beside others in one chart, and nothing told them apart."""
    record = RunRecord.create(tmp_path / "run", replace(PLAN, warnings=("careful",)), {}, Origin())
    assert record.background_load == BackgroundLoad() and record.warnings == ("careful",)
    rows = [{"event": "summary"}, {"event": "summary", "load": {"other_cpu_share": 0.34, "steal_share": None}}]
    write_rows(tmp_path / "run/metrics.jsonl", rows[:1])  # of a version that did not look
    assert record.background_load == BackgroundLoad()
    write_rows(tmp_path / "run/metrics.jsonl", rows)
    assert record.background_load == BackgroundLoad(other_cpu_share=0.34)
    told = "during the run other processes used 34% of the processors; its throughput is unreliable"
    assert record.warnings == ("careful", told)


def test_a_row_cut_short_by_a_kill_is_left_out(tmp_path):
    record = RunRecord.create(tmp_path / "run", PLAN, {}, Origin())
    (tmp_path / "run/metrics.jsonl").write_text('{"event": "step"}\n{"event": "st')
    assert record.metrics() == [{"event": "step"}]


def test_a_run_is_never_written_over(tmp_path):
    RunRecord.create(tmp_path / "run", PLAN, {}, Origin())
    with raises("run_dir.taken"):
        RunRecord.create(tmp_path / "run", PLAN, {}, Origin())


def test_a_folder_without_a_run_is_refused(tmp_path):
    with raises("run.not_found"):
        RunRecord.load(tmp_path)


def test_a_kernel_is_named_by_its_notebook(monkeypatch):
    """Its own command names a connection file, another every time."""
    monkeypatch.setattr("sys.argv", ["/x/ipykernel_launcher.py", "-f", "/tmp/kernel-1.json"])
    monkeypatch.setenv(NOTEBOOK, "notebooks/06_launch.ipynb")
    assert Origin.here().command == ("jupyter", "notebooks/06_launch.ipynb")
    monkeypatch.delenv(NOTEBOOK)
    assert Origin.here().command == ("jupyter", "notebook")


def test_an_origin_names_no_folder_of_the_machine():
    origin = Origin.here()
    assert "/" not in origin.command[0]
    assert origin.versions["python"]


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with raises("run_dir.unusable"):
        RunRecord.create(tmp_path / "file", PLAN, {}, Origin())
