"""The drift of a run, by its record: of one that is over, and of one that goes on."""

from ..cluster import Cluster
from ..errors import InputError
from ..pipelines import Pipelines
from ..plan import Plan
from ..profile import Profile
from ..record import RunRecord
from ..sizes import SIZE_UNITS
from .alarms import Alarm
from .drift import Watch
from .drift_file import DriftFile
from .observations import left_out_of
from .of_pipelines import Watches
from .run_rows import RunRows, step_sizes


def drift_of(record: RunRecord, profile: Profile | None = None, cluster: Cluster | None = None) -> Watch | Watches:
    """Return what became of a run's ranks and links, from its trace: `alarms`, `standings`, `factors`.

    Profile and cluster are those that the run was launched with, where they are not given. Of several pipelines each is
    held against its own plan, and ranks have their numbers among those of all. Raises InputError in one line where
    there are none, and for a run that nothing can be told of; DamagedRecord names the file and the row of what is
    damaged.
    """
    profile, cluster = devices_of(record, profile, cluster)
    own = record.pipelines or (record,)
    spans, rows = [one.trace().spans for one in own], [one.metrics("step") for one in own]
    sizes = [step_sizes(each, _units(profile)) for each in rows]
    if not any(spans) or not any(rows):
        raise InputError(
            "run.no_trace",
            f"{record.folder}: has no trace and no steps yet; drift is told of minibatches that are done",
        )
    if not any(sizes):
        raise InputError(
            "run.size_unit_differs",
            f"{record.folder}: its steps do not count {profile.size_unit}, as the profile does; give the profile of "
            "its model",
        )
    watch = _watch_of_any(record, profile, cluster)
    if isinstance(watch, Watches):
        watch.see([*zip(spans, sizes, strict=True)])
    else:
        watch.see(spans[0], sizes[0], left_out_of(record.metrics("left_out")))
    if not any(one.rank is not None for one in watch.standings):
        raise InputError(
            "run.no_whole_minibatch",
            f"{record.folder}: no minibatch has both its forward and its backward in the trace",
        )
    return watch


def devices_of(record: RunRecord, profile: Profile | None, cluster: Cluster | None) -> tuple[Profile, Cluster]:
    """Return the profile and the cluster given, or those in the run's folder. Raises InputError where none are."""
    kept = record.folder / "profile.json", record.folder / "cluster.toml"
    if profile is None and not kept[0].exists() or cluster is None and not kept[1].exists():
        raise InputError(
            "run.no_profile",
            f"{record.folder}: does not say which profile and cluster it is held against, as a run launched without "
            "them; give profile=… and cluster=…",
        )
    return profile or Profile.load(kept[0]), cluster or Cluster.load(kept[1])


class Follower:
    """Follows the drift of a run that goes on: call `look` every second or so, and once more when it has ended.

    What it finds goes to the run's drift.jsonl, by one process at a time: whoever follows it first. Lines of the run's
    files that are damaged are passed over.
    """

    def __init__(self, record: RunRecord, profile: Profile | None = None, cluster: Cluster | None = None) -> None:
        """Raises InputError as `drift_of` does where nothing can be told of such a run."""
        profile, cluster = devices_of(record, profile, cluster)
        self.record = record
        self._followed = len(_plans(record))
        self.watch = _watch_of_any(record, profile, cluster)
        self._rows = [RunRows(one.folder, units=_units(profile)) for one in record.pipelines or (record,)]
        self._file = DriftFile(record.folder)

    def look(self) -> list[Alarm]:
        """Take what the run has written since the last look; return new alarms."""
        found = [rows.read() for rows in self._rows]
        if isinstance(self.watch, Watches):
            alarms = self.watch.see(found)
        else:
            self._follow_plans(self.watch)  # after the spans: a plan is written down before anybody trains under it
            alarms = self.watch.see(*found[0], self._rows[0].left_out())
        self._file.add(alarms)
        return alarms

    def _follow_plans(self, watch: Watch) -> None:
        try:
            plans = _plans(self.record)
            for first, plan in plans[self._followed :]:
                watch.follow(plan, first_minibatch=first)
            self._followed = len(plans)
        except InputError:
            return  # damaged now, or not for these devices: told by those who read it or would run it


def _plans(record: RunRecord) -> list[tuple[int, Plan]]:
    """The plans of one pipeline that a run follows, each with its first minibatch, 0 where nobody wrote it down.

    None where it trains several now; of one that did so before it was resumed, those since then.
    """
    plans: list[tuple[int, Plan]] = []
    for first, plan in record.plans:
        if isinstance(plan, Pipelines):
            plans.clear()
        else:
            plans.append((first or 0, plan))
    return plans


def _watch_of_any(record: RunRecord, profile: Profile, cluster: Cluster) -> Watch | Watches:
    first, newest = record.plans[-1]
    if isinstance(newest, Pipelines):
        return Watches(profile, cluster, newest, first_minibatch=first or 0)
    return watch_of(record, profile, cluster)


def watch_of(record: RunRecord, profile: Profile, cluster: Cluster) -> Watch:
    """Return what watches a run of one pipeline, and knows each of the plans that it has followed so far."""
    plans = _plans(record)
    watch = Watch(profile, cluster, plans[0][1])
    for first, plan in plans[1:]:
        watch.follow(plan, first_minibatch=first)
    return watch


def _units(profile: Profile) -> tuple[str, ...]:
    """The unit that sizes must be in; any where the profile's times do not depend on them."""
    return (profile.size_unit,) if profile.sized else SIZE_UNITS
