"""What is said of a run at its end, and when it is shown: its pace, its accuracy, of forwards alone its latency."""

from collections.abc import Mapping
from typing import Any

from ..data.order import SHUFFLE
from ..errors import one_line
from ..records.rates import MINIBATCHES, SAMPLES
from ..util.io.quantities import SIZE, TIME
from ..util.text.counting import number_of
from ..util.text.numbers import as_measured, duration, pace_text, validation_text
from .output import cell

# What a run's row is called in text, as figures and the board call it; --json has the keys themselves.
_NAMES = {
    "stages": "replicas of stages",
    SAMPLES: "samples/s",
    MINIBATCHES: "minibatches/s",
    "accuracy": "validation accuracy",
}


def column_name(key: str) -> str:
    """The name of a run's number in text."""
    return _NAMES.get(key, key)


def run_cell(key: str, value: Any) -> Any:
    """A run's number as text has it: a share in per cent, a pace in three digits, others as they are."""
    if value is None:
        return value
    return as_measured(value) if key in (SAMPLES, MINIBATCHES) else f"{value:.1%}" if key == "accuracy" else value


def run_lines(row: Mapping[str, Any]) -> list[str]:
    """A line for each of a run's numbers."""
    return [f"{column_name(key)}: {cell(run_cell(key, value))}" for key, value in row.items()]


def summary_text(summary: Mapping[str, Any], *, nothing_left: bool = False) -> str:
    """The line at a run's end. `nothing_left`: it resumed with all of its minibatches trained: the pace is recorded."""
    pace, learned = pace_text(summary), validation_text(summary)
    told = f"{number_of(summary['minibatches'], 'minibatch')} at {pace}"
    if nothing_left:
        recorded = f", at {pace} by the record" if summary.get("samples_per_second") else ""
        told = f"nothing was left to train after {number_of(summary['minibatches'], 'minibatch')}{recorded}"
    return f"{one_line(summary['run_dir'])}: {', '.join(filter(None, [told, learned]))}" + _of_inference(summary)


def _of_inference(summary: Mapping[str, Any]) -> str:
    """What the end of a run of forwards alone says besides its pace; nothing of one that trained."""
    if "predictions" not in summary:
        return ""
    return f", forwards alone: latency of a minibatch {latency_text(summary)}; {one_line(summary['predictions'])}"


def minibatches_text(config: Mapping[str, object]) -> str:
    """What limits a run's minibatches and how they are ordered: "at most 200,000 voxels, planned order"; else empty."""
    found = []
    for name, unit in (("batch_voxels", None), ("batch_seconds", TIME), ("batch_bytes", SIZE)):
        if isinstance(most := config.get(name), int | float):
            found.append(f"at most {unit.shown(most)} on a stage" if unit else f"at most {most:,.0f} voxels")
    found += [f"{order} order"] if (order := config.get("order", SHUFFLE)) != SHUFFLE or found else []
    return ", ".join(found)


def latency_text(summary: Mapping[str, Any]) -> str:
    """Minibatches' latencies, from the first stage to the last; empty where the run has none, as one that trained.

    Records of before have no mean.
    """
    told = {"mean": "mean", "median": "median", "p95": "95th percentile"}
    found = summary.get("latency_seconds")
    latency: Mapping[str, Any] = found if isinstance(found, Mapping) else {}
    known = {name: latency[key] for key, name in told.items() if isinstance(latency.get(key), int | float)}
    return ", ".join(f"{duration(seconds)} ({name})" for name, seconds in known.items())
