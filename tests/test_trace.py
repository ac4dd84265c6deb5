import pytest
from coded import raises

from sparsepipe import Span, Trace
from sparsepipe.views.plots.timeline import anatomy_table

TRACE = Trace(
    (
        Span(0, "0F0", 0.0, 1.0, "forward", 0, 0),
        Span(1, "1F0", 1.0, 2.0, "forward", 1, 0),
        Span(0, "1B0", 1.0, 3.0, "wait", 0, 0, 1),
        Span(1, "1B0", 2.0, 3.0, "backward", 1, 0),
        Span(0, "0B0", 3.0, 4.0, "backward", 0, 0),
    ),
    "simulated",
)


def test_forwards_alone_are_work():
    """A run of forwards alone was idle all the time; in a run that trains its validation is no work of training."""
    spans = (Span(0, "0F0", 0.0, 3.0, "evaluate"), Span(0, "0F1", 3.0, 4.0, "wait", 0, 1, 1))
    assert Trace(spans, "measured").busy(0) == 3.0 and Trace(spans, "measured").bubble_fraction == 0.25
    assert anatomy_table({"alone": Trace(spans, "measured")}).work.tolist() == [0.75]
    trains = Trace((*spans, Span(0, "0F2", 4.0, 5.0)), "measured")
    assert trains.busy(0) == 1.0


def test_waiting_is_not_work():
    assert TRACE.makespan == 4.0
    assert TRACE.busy(0) == 2.0
    assert TRACE.bubble_fraction == pytest.approx(0.5)
    assert TRACE.seconds(0, ["wait"]) == 2.0


def test_rows_and_chrome_round_trips():
    assert Trace.from_rows(TRACE.to_rows(), "simulated") == TRACE
    assert Trace.from_chrome(TRACE.to_chrome()) == TRACE


def test_the_input_half_of_a_backward_is_i_in_older_files_too():
    """Files once called it B, as they did whole backwards: where W follows in the stage, B was I."""
    older = (
        Span(0, "0B0", 2.0, 3.0, "backward", 0, 0),
        Span(1, "1B0", 0.0, 1.0, "backward", 1, 0),
        Span(1, "1B0", 1.0, 1.5, "send", 1, 0, 0),
        Span(1, "1W0", 1.0, 2.0, "weights", 1, 0),
        Span(1, "1B1", 2.0, 4.0, "backward", 1, 1),
    )
    names = ["0B0", "1I0", "1I0", "1W0", "1B1"]
    rows, document = Trace(older, "measured").to_rows(), Trace(older, "measured").to_chrome()
    for read in (Trace.from_rows(rows, "measured"), Trace.from_chrome(document)):
        assert [span.name for span in read.spans] == names
        assert Trace.from_rows(read.to_rows(), "measured") == read


def test_an_empty_trace_has_no_time():
    assert Trace((), "measured").makespan == Trace((), "measured").bubble_fraction == 0.0


def test_what_is_no_trace_is_refused():
    with raises("trace.kind_unknown", kind="sleeping"):
        Trace((Span(0, "0F0", 0, 1, "sleeping"),), "measured")
    with raises("trace.foreign"):
        Trace.from_chrome({"traceEvents": [{"ph": "X"}]})
    with raises("trace.foreign", "it is", "no object with 'traceEvents'"):
        Trace.from_chrome([{"ph": "X"}])
