"""Steady pace and busy shares of made-up runs whose numbers are known."""

import pytest

from sparsepipe import Plan, Stage
from sparsepipe.runtime.metrics import busy_seconds, median_summaries, pace, stage_summary, steady_window


def _plan(**options) -> Plan:
    return Plan((Stage(("a",), (0,)), Stage(("b",), (1,))), **options)


def test_the_pace_leaves_out_filling_and_draining() -> None:
    """Slow first minibatches, then one of 8 samples every half second."""
    times = [5.0, 7.0, *(7.5 + 0.5 * k for k in range(10))]
    window = steady_window(times, _plan(schedule="1f1b"))
    assert window == (2, 11)
    assert pace(times, [8] * 12, window, started=0.0) == pytest.approx(16.0)


def test_the_pace_of_a_flush_is_that_of_whole_steps() -> None:
    """Steps of 2 minibatches, 3 s each with their bubble; the last one is cut short and does not count."""
    times = [1.0, 3.0, 4.0, 6.0, 7.0, 9.0, 10.0]
    window = steady_window(times, _plan(schedule="1f1b-flush", num_microbatches=2))
    assert window == (1, 5)
    assert pace(times, [3] * 7, window, started=0.0) == pytest.approx(2.0)


def test_a_short_epoch_counts_as_a_whole() -> None:
    times = [2.0, 4.0]
    assert steady_window(times, _plan(schedule="1f1b")) is None
    assert pace(times, [10, 10], None, started=0.0) == pytest.approx(5.0)


def test_busy_shares_count_what_lies_in_the_window() -> None:
    spans = [("forward", 0.0, 2.0), ("wait", 2.0, 3.0), ("backward", 3.0, 6.0), ("update", 6.0, 7.0)]
    seconds = busy_seconds(spans, 1.0, 5.0)
    assert (seconds["forward"], seconds["wait"], seconds["backward"], seconds["update"]) == (1.0, 1.0, 2.0, 0.0)
    summary = stage_summary(0, (0,), seconds, 4.0)
    assert summary["busy_fraction"] == pytest.approx(0.75)
    assert summary["bubble_fraction"] == pytest.approx(0.25)
    assert summary["wait_fraction"] == pytest.approx(0.25)


def test_summaries_are_medians_over_epochs() -> None:
    epochs = [[stage_summary(0, (0, 1), busy_seconds([("forward", 0, busy)], 0, 10), 10)] for busy in (2.0, 4.0, 12.0)]
    merged = median_summaries(epochs)
    assert merged[0]["ranks"] == [0, 1]
    assert merged[0]["busy_fraction"] == pytest.approx(0.2)
