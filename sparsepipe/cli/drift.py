"""What `sparsepipe runs drift` says, and what a run that is followed says of drift while it goes on."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..cluster import Cluster
from ..display.html import left_out
from ..display.markup import one_line
from ..dynamics import Follower, Standing, drift_of
from ..errors import InputError
from ..profile import Profile
from ..record import RunRecord
from .output import Answer, cell, progress_line, table

_SECONDS = 1.0  # between two looks at a run that goes on
_COLUMNS = ("of", "times as long", "since minibatch", "minibatches", "noise", "spikes")


def drift_answer(record: RunRecord, profile: Profile | None, cluster: Cluster | None) -> Answer:
    """A row for each rank and link, and a line for each lasting change."""
    watch = drift_of(record, profile, cluster)
    trace = record.trace()
    document: dict[str, Any] = {
        "run": record.name,
        "factors": watch.factors.to_json(),
        "standings": [one.to_json() for one in watch.standings],
        "alarms": [alarm.to_json() for alarm in watch.alarms],
    }
    lines = [table([_COLUMNS, *map(_row, watch.standings)])]
    lines += [str(alarm) for alarm in watch.alarms] or ["no lasting change"]
    if trace.left_out:
        document["left_out"] = trace.left_out
        lines.append(f"of a long run: {left_out(trace)}; drift.jsonl has what was found while it ran")
    return Answer(document, "\n".join([one_line(record.folder), *lines]))


def _row(one: Standing) -> Sequence[str]:
    since = "" if one.since is None else cell(one.since)
    return one.name, f"{one.factor:.2f}", since, cell(one.minibatches), f"{one.noise:.0%}", cell(one.spikes)


class DriftLines:
    """Prints the lasting changes of a run as they are found; nothing of a run that names no profile."""

    def __init__(self, record: RunRecord, *, before: Callable[[], None]) -> None:
        """`before`: called before a line is printed, to take away one that moves."""
        self._due, self._before = 0.0, before
        self._follower: Follower | None = None
        if (record.folder / "profile.json").exists():
            try:
                self._follower = Follower(record)
            except InputError:  # a profile of another network, or a damaged file, which others tell
                self._follower = None

    def __call__(self, row: Mapping[str, Any]) -> None:
        """Look at the run as one of its rows comes, but not more often than once a second."""
        if time.monotonic() > self._due:
            self._due = time.monotonic() + _SECONDS
            self._look()

    def close(self) -> None:
        """Look at the run a last time."""
        self._look()

    def _look(self) -> None:
        if self._follower is None:
            return
        for alarm in self._follower.look():
            self._before()
            progress_line(str(alarm))
