"""The drift of the launch board's jobs: how slow each rank and link is, beside its profile, and what became lasting."""

from collections.abc import Callable, Sequence
from pathlib import Path

from ..display.counting import number_of
from ..display.markup import Html, joined
from ..dynamics import Alarm, Follower, Standing
from ..errors import InputError
from ..launchers import Job
from .html_view import scrolled
from .promised import MadeFor

_ALARMS = 5  # the newest that are shown
# No red is read on light pages and on dark ones alike: what became lasting has a bar beside it, and bold numbers.
_ALARM, _USUAL = "border-left:4px solid #D55E00;padding-left:6px;font-weight:600", ""
_SHOWN = Html("<div style='opacity:.75'>Times as long as its profile says, for minibatches of their sizes</div>{}{}")
_TABLE = Html("<table style='font-size:13px;line-height:1.6'>{}</table>")
_ROW = Html("<tr><td style='padding-right:10px'>{}</td><td style='padding-right:10px;{}'>{:.2f} ×</td><td>{}</td></tr>")
_LINE = Html("<div style='{}'>{}</div>")


def drift_table(standings: Sequence[Standing], alarms: Sequence[Alarm]) -> Html:
    """A row for each rank and link with its ratio, and a sentence for each of the newest lasting changes, as HTML."""
    if not standings:
        return Html("")
    rows = []
    for one in standings:
        told = [] if one.since is None else [f"since minibatch {one.since}"]
        told += [f"{number_of(one.spikes, 'spike')}"] if one.spikes else []
        rows.append(_ROW.format(one.name, _ALARM if one.changed else _USUAL, one.factor, ", ".join(told)))
    lines = [_LINE.format(_USUAL if alarm.recovered else _ALARM, str(alarm)) for alarm in alarms[-_ALARMS:]]
    return _SHOWN.format(scrolled(_TABLE.format(joined(rows)), "drift"), joined(lines))


class DriftOfJobs:
    """Follows each job of a board from when it is first seen running to its end, where a profile is known."""

    def __init__(self, made_for: Callable[[str], MadeFor]) -> None:
        """`made_for` says what the plan of a job's name was made for; a run's own profile comes first."""
        self._made_for = made_for
        self._followers: dict[Path, Follower] = {}
        self._ended: set[Path] = set()  # and those of which nothing can be told

    def look(self, name: str, job: Job) -> None:
        """Take what a job has written; once more when it has ended. Never raises: a job goes on without."""
        folder, running = job.record.folder, job.running
        if folder in self._ended:
            return
        if not running:
            self._ended.add(folder)
        if folder not in self._followers and running:
            try:
                self._followers[folder] = self._follower(name, job)
            except InputError:  # no profile, or one of another network
                self._ended.add(folder)
        if folder in self._followers:
            self._followers[folder].look()

    def table(self, job: Job) -> Html:
        """What is known of a job; empty where nothing is."""
        follower = self._followers.get(job.record.folder)
        return drift_table(follower.watch.standings, follower.watch.alarms) if follower else Html("")

    def _follower(self, name: str, job: Job) -> Follower:
        if (job.record.folder / "profile.json").exists():
            return Follower(job.record)
        made_for = self._made_for(name)
        return Follower(job.record, made_for.profile, made_for.cluster)
