"""A real job's table of operations becomes a trace; what is no such table is refused in one line."""

import pytest
from coded import raises
from fuzzing import fuzzed, put
from hypothesis import given
from hypothesis import strategies as st

from sparsepipe import InputError, Trace
from sparsepipe.util.io import job_operations
from sparsepipe.util.io.job_operations import COLUMNS

pandas = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")


def operation(replica, stage, kind, start, seconds, *, microbatch=-1, number=0, step=7):
    """A row of two replicas of two stages."""
    chunk = stage if microbatch >= 0 else -1
    return dict(
        zip(
            COLUMNS,
            (replica, stage, 2 * replica + stage, step, kind, start, seconds, number, microbatch, chunk),
            strict=True,
        )
    )


def job(step=7, replicas=2):
    """One microbatch each: forward and backward through both stages, then their gradients summed and an update."""
    rows = []
    for r in range(replicas):
        rows += [
            operation(r, 0, "forward-compute", 0.0, 1.0, microbatch=0, step=step),
            operation(r, 0, "forward-send", 1.0, 0.25, step=step),
            operation(r, 1, "forward-recv", 0.0, 1.25, step=step),
            operation(r, 1, "forward-compute", 1.25, 1.0, microbatch=0, step=step),
            operation(r, 1, "backward-compute", 2.25, 2.0, microbatch=0, step=step),
            operation(r, 1, "backward-send", 4.25, 0.25, step=step),
            operation(r, 0, "backward-recv", 1.25, 3.25, step=step),
            operation(r, 0, "backward-compute", 4.5, 2.0, microbatch=0, step=step),
        ]
        for stage, begin in ((0, 6.5), (1, 4.5)):
            rows += [
                operation(r, stage, "grads-reduce-scatter", begin, 7.0 - begin, step=step),
                operation(r, stage, "optimizer", 7.0, 0.5, step=step),
            ]
    return rows


def written(rows, path):
    pandas.DataFrame(rows).to_parquet(path)
    return path


def test_operations_become_spans(tmp_path):
    trace = Trace.load(written(job(step=7) + job(step=9), tmp_path / "job.parquet"))
    assert trace.source == "measured" and trace.ranks == (0, 1, 2, 3)
    assert trace.facts["steps"] == [[7, 0, 2], [9, 2, 4]]
    assert trace.makespan == pytest.approx(15.0), "steps that begin at 0 each are laid one after the other"
    told = {(span.rank, span.name, span.kind): span for span in trace.spans}
    first, second = told[0, "0F0", "forward"], told[2, "0F1", "forward"]
    assert (first.minibatch, second.minibatch) == (0, 1), "replicas take minibatches in turn"
    assert told[0, "0F0", "send"].peer == 1 and told[1, "1F0", "wait"].peer == 0
    assert told[3, "1B3", "send"].peer == 2 and told[2, "0B3", "wait"].peer == 3
    assert told[0, "0U1", "update"].start == pytest.approx(7.0 + 7.5)
    meetings = [span for span in trace.spans if span.kind == "average" and span.stage == 1]
    assert len({span.name for span in meetings}) == 2, "ranks that meet have one name, in each step another"
    assert trace.waited()[0, 1] == pytest.approx(2 * 3.25)


def test_the_order_of_rows_and_more_columns_do_not_matter(tmp_path):
    rows = job()
    table = pandas.DataFrame(rows).sample(frac=1.0, random_state=0).assign(mc=0, host="a")
    table.to_parquet(tmp_path / "mixed.parquet")
    assert Trace.load(tmp_path / "mixed.parquet") == Trace.load(written(rows, tmp_path / "job.parquet"))


def test_steps_that_share_a_clock_keep_it(tmp_path):
    rows = job(step=0) + [row | {"start_ts": row["start_ts"] + 100.0} for row in job(step=1)]
    trace = Trace.load(written(rows, tmp_path / "job.parquet"))
    assert min(span.start for span in trace.spans if span.minibatch >= 2) == pytest.approx(100.0)


def test_a_chrome_trace_keeps_what_the_job_told(tmp_path):
    from sparsepipe.util.io.files import write_json

    trace = Trace.load(written(job(), tmp_path / "job.parquet"))
    again = Trace.load(write_json(tmp_path / "job.json", trace.to_chrome()))
    assert again.facts == trace.facts
    assert [span.name for span in again.spans] == [span.name for span in trace.spans]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda t: t.drop(columns=["mb_id", "seq_id"]), ("operations.column_missing", "seq_id, mb_id")),
        (lambda t: t.assign(duration=float("nan")), ("operations.not_numbers", "duration")),
        (lambda t: t.assign(duration=-1.0), ("operations.out_of_range", "duration", "-1", "0")),
        (lambda t: t.assign(start_ts=float("inf")), ("operations.out_of_range", "start_ts", "inf")),
        (lambda t: t.assign(step=0.5), ("operations.not_whole", "step")),
        (lambda t: t.assign(step="one"), ("operations.not_numbers", "step")),
        (lambda t: t.assign(rank=-3), ("operations.out_of_range", "rank", "-3")),
        (lambda t: t.assign(rank=5), ("operations.rank_twice",)),
        (lambda t: t.assign(mb_id=-1), ("operations.no_microbatch",)),
        (lambda t: t.assign(mb_id=2**31 - 1), ("operations.number_too_large",)),
        (lambda t: t.assign(optype="gc"), ("operations.no_compute", "forward-compute or backward-compute")),
        (lambda t: pandas.concat([t, t.head(1).assign(optype="a\nb")]), ("operations.type_malformed",)),
        (lambda t: t.head(0), ("operations.row_count", "0")),
    ],
)
def test_what_is_no_table_of_operations_is_refused(tmp_path, change, error):
    change(pandas.DataFrame(job())).to_parquet(tmp_path / "job.parquet")
    with raises(*error) as refused:
        Trace.load(tmp_path / "job.parquet")
    assert "\n" not in str(refused.value) and "job.parquet" in str(refused.value)


def test_a_small_file_that_unpacks_to_a_large_table_is_refused(tmp_path, monkeypatch):
    """One long word, packed, in each of many rows: rows were counted, and not what is in them."""
    monkeypatch.setattr(job_operations, "_MOST_BYTES", 2**20)
    path = tmp_path / "job.parquet"
    table = pandas.concat([pandas.DataFrame(job())] + [pandas.DataFrame(job()).assign(optype="x" * 2**16)] * 40)
    table.to_parquet(path, compression="zstd", use_dictionary=False)
    assert path.stat().st_size < 2**17
    with raises("operations.too_large", "1"):
        Trace.load(path)
    pandas.DataFrame(job()).assign(rank="x" * 2**16).to_parquet(path, compression="zstd")
    with raises("operations.not_numbers", name="rank"):
        Trace.load(path)


def test_other_files_are_refused(tmp_path):
    (tmp_path / "torn.parquet").write_bytes(b"PAR1" + bytes(100))
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "empty").write_text("")
    for name, error in (
        ("torn.parquet", ("operations.unreadable",)),
        ("list.json", ("trace.foreign",)),
        ("empty", ("json.malformed",)),
        ("none", ("trace.unreadable", "No such file")),
        (".", ("trace.unreadable", "is a folder")),
    ):
        with raises(*error) as refused:
            Trace.load(tmp_path / name)
        assert "\n" not in str(refused.value)


@given(st.data())
@fuzzed(60)
def test_damaged_tables_are_read_or_refused(tmp_path, data):
    content = bytearray(written(job(), tmp_path / "job.parquet").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place] = data.draw(st.integers(0, 255))
    put(tmp_path / "bent.parquet", bytes(content[: data.draw(st.integers(1, len(content)))]))
    try:
        trace = Trace.load(tmp_path / "bent.parquet")
    except InputError as error:
        assert "\n" not in str(error)
    else:
        assert trace.makespan >= 0
