"""What a simulation of several pipelines came to, as text: a line for all, and a line for each."""

from ..display.counting import number_of
from ..display.numbers import as_measured, rate_text, scaled_bytes
from ..pipeline_simulator import PipelinePace, PipelinesForecast
from ..replication import rule_text


def forecast_text(told: PipelinesForecast) -> str:
    """Tell paces, merges and what was waited for."""
    count = sum(one.minibatches for one in told.pipelines)
    lines = [
        f"{number_of(count, 'minibatch')} in {told.trace.makespan:.3f} s simulated, "
        f"{rate_text(told.samples_per_second, told.counted)}; the pipelines' paces add up to "
        f"{rate_text(told.sum_of_paces, told.counted)}, "
        f"{_share(told.sum_of_paces, told.own_pace)} of what all would train if none waited",
        f"{rule_text(told.rule)}: {_merges(told)}, {scaled_bytes(told.bytes)} sent",
    ]
    return "\n".join([*lines, *(_line(k, one, told.counted) for k, one in enumerate(told.pipelines))])


def _merges(told: PipelinesForecast) -> str:
    count = sum(told.group_sizes.values())
    if not count:
        return "no merge"
    return (
        f"{number_of(count, 'merge')} of {told.mean_group_size:.2f} pipelines on average, {told.forced_merges} of them "
        f"forced, results taken {told.mean_staleness:.2f} updates later"
    )


def _line(k: int, one: PipelinePace, counted: str) -> str:
    lost = [f"{cause} {as_measured(seconds)} s" for cause, seconds in one.lost_seconds.items() if seconds]
    waited = [f"{name} {as_measured(seconds)} s" for name, seconds in one.waits]
    return (
        f"pipeline {k}: {number_of(one.minibatches, 'minibatch')}, {rate_text(one.samples_per_second, counted)}, "
        f"{_share(one.samples_per_second, one.own_pace)} of its own pace"
        + (f"; lost by {', '.join(lost)}" if lost else "")
        + (f"; waited for {', '.join(waited)}" if waited else "")
    )


def _share(rate: float, whole: float) -> str:
    return f"{rate / whole:.1%}" if whole else "–"
