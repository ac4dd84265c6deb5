"""What a simulation of several pipelines comes to: paces, groups, staleness, and what was waited for."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...values.replication import Rule, rule_to_json
from ...values.replication.base import pace
from ...values.trace import Trace

CAUSES = ("group", "exchange", "bound", "straggler")


@dataclass(frozen=True)
class PipelinePace:
    """Result of one pipeline."""

    minibatches: int
    seconds: float  # from its start until the last of them was done, and no bound kept it from the next
    samples_per_second: float  # over all of these seconds (values/replication/base.py)
    # Samples per second of the same minibatches with the same stragglers and no other pipeline, all known beforehand:
    # beside others a stage may stand at a forward that does not come, until the last minibatch is taken.
    own_pace: float
    # Seconds by cause. "group": at its last stage, until others were ready or time was up; "exchange": there, until the
    # result had come; "bound": too far ahead to take more, once its last stage had trained all that it took;
    # "straggler": of the rank held up longest.
    lost_seconds: Mapping[str, float]
    waited_for: tuple[float, ...]  # seconds that it waited for each pipeline
    waited_for_time: float = 0.0  # seconds that it waited until time was up
    waited_for_end: float = 0.0  # seconds that its bound held it up until all minibatches were handed out: to others

    @property
    def waits(self) -> tuple[tuple[str, float], ...]:
        """Whom or what it waited for, in words, and for how many seconds; of nothing that it did not wait for."""
        whom = [(f"pipeline {other}", seconds) for other, seconds in enumerate(self.waited_for)]
        whom += [("time to be up", self.waited_for_time), ("all minibatches to be taken", self.waited_for_end)]
        return tuple((name, seconds) for name, seconds in whom if seconds)

    def to_json(self) -> dict[str, Any]:
        return {
            "minibatches": self.minibatches,
            "seconds": self.seconds,
            "samples_per_second": self.samples_per_second,
            "own_pace": self.own_pace,
            "lost_seconds": dict(self.lost_seconds),
            "waited_for_seconds": list(self.waited_for),
            "waited_for_time_seconds": self.waited_for_time,
            "waited_for_end_seconds": self.waited_for_end,
        }


@dataclass(frozen=True)
class PipelinesForecast:
    """Pipelines simulated together, in numbers. The merge of all at a run's end is not in it."""

    trace: Trace  # of all ranks; minibatches by their numbers in the epoch
    rule: Rule
    pipelines: tuple[PipelinePace, ...]
    group_sizes: Mapping[int, int]  # members of a merge → how many merges
    staleness: Mapping[int, int]  # updates of a pipeline from its contribution to taking the result → how often
    forced_merges: int  # decided by the rule's bound
    bytes: float  # sent for merges, by all ranks
    taken: tuple[tuple[int, ...], ...]  # the minibatches of each pipeline, in its order
    samples: float | None = None  # of a minibatch; None: not known, and paces are in minibatches
    done: tuple[float, float] = (0.0, 0.0)  # when the first and the last minibatch of all was, in its last stage

    @property
    def samples_per_second(self) -> float:
        """All samples by the clock, from the first minibatch that is done to the last, as a run's summary has them.

        All minibatches (`counted`) if no one knows how many samples one has; likewise the pipelines' paces.
        """
        count, (first, last) = sum(pipeline.minibatches for pipeline in self.pipelines), self.done
        return pace((self.samples or 1.0) * (count - 1), last - first)

    @property
    def counted(self) -> str:
        """Return the unit of throughputs: "samples" or "minibatches"."""
        return "minibatches" if self.samples is None else "samples"

    @property
    def sum_of_paces(self) -> float:
        """The sum of the pipelines' samples per second, each over its own seconds: it may be through before others."""
        return sum(pipeline.samples_per_second for pipeline in self.pipelines)

    @property
    def minibatches_per_second(self) -> float:
        """All minibatches by the clock, as `samples_per_second`."""
        return self.samples_per_second / (self.samples or 1.0)

    @property
    def own_pace(self) -> float:
        """Return the sum of standalone throughputs, without any waiting."""
        return sum(pipeline.own_pace for pipeline in self.pipelines)

    @property
    def mean_group_size(self) -> float:
        """Mean over merges; 0 without any."""
        return _mean(self.group_sizes)

    @property
    def mean_staleness(self) -> float:
        """Mean over contributions whose result was taken, in updates; 0 without any."""
        return _mean(self.staleness)

    def to_json(self) -> dict[str, Any]:
        """Everything but the spans; "replication" is as in a run's summary."""
        return {
            "makespan_seconds": self.trace.makespan,
            "minibatches_per_second": self.minibatches_per_second,
            "samples_per_second": None if self.samples is None else self.samples_per_second,
            "counted": self.counted,
            "sum_of_paces": self.sum_of_paces,
            "own_pace": self.own_pace,
            "bubble_fraction": self.trace.bubble_fraction,
            "replication": {
                "rule": self.rule.name,
                "counted": self.counted,
                "options": rule_to_json(self.rule)["options"],
                "group_sizes": {str(size): count for size, count in sorted(self.group_sizes.items())},
                "mean_group_size": self.mean_group_size,
                "staleness": {str(updates): count for updates, count in sorted(self.staleness.items())},
                "mean_staleness": self.mean_staleness,
                "forced_merges": self.forced_merges,
                "bytes": self.bytes,
                "pipelines": [pipeline.to_json() for pipeline in self.pipelines],
            },
        }


def _mean(counts: Mapping[int, int]) -> float:
    total = sum(counts.values())
    return sum(value * count for value, count in counts.items()) / total if total else 0.0
