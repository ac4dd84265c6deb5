"""Provenance: the profiles, clusters, plans, settings and runs that a figure, a table, a plan or a run is made from.

Digests name values (see derived.py): two figures with the same digest of a cluster were planned for the same links.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import groupby
from typing import Any, TypeVar

from ..errors import InputError
from ..util.derived import canonical, digest
from ..util.io.fields import shown
from ..values.cluster import Cluster
from ..values.plan import Plan
from ..values.profile import Profile
from ..values.replication import rule_to_json
from . import RunRecord, load_warnings
from .campaigns import differences

FORMAT = "sparsepipe-provenance-1"
_MOST_DOUBTS = 2  # told in a subtitle; the others are counted
_LONGEST = 150  # characters of them together

Facts = Mapping[str, Any]
Value = TypeVar("Value")


@dataclass(frozen=True)
class Provenance:
    """The sources of numbers: made by `of`, read by `from_json`, joined with `|`.

    `profiles`, `clusters` and `plans` hold one mapping for each value: its "digest", and what a reader looks for first.
    `runs` holds one mapping for each run: its name, when it ran, its campaign, its plan's digest, what ran next to it.
    `campaign` names the runs that were made to be compared; `load` is what else was at work on the machine meanwhile.
    `warnings` are whole sentences; `doubts` are those, in a few words, that make the numbers themselves doubtful.
    """

    profiles: tuple[Facts, ...] = ()
    clusters: tuple[Facts, ...] = ()
    plans: tuple[Facts, ...] = ()
    settings: Facts = field(default_factory=dict)
    runs: tuple[Facts, ...] = ()
    campaign: str | None = None
    load: Any = None
    warnings: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    data: Any = None

    @classmethod
    def of(
        cls,
        profile: Profile | Sequence[Profile] | None = None,
        cluster: Cluster | Sequence[Cluster] | None = None,
        plans: Iterable[Plan] = (),
        settings: Any = None,
        runs: Iterable[RunRecord] = (),
        campaign: str | None = None,
        load: Any = None,
        warnings: Iterable[str] = (),
        data: Any = None,
        *,
        timed: bool = True,
    ) -> "Provenance":
        """Describe values. `profile` and `cluster` may be several; `settings` is a mapping or a dataclass.

        Warnings of the profiles, the plans, the runs and the load (its "warning") come along; `warnings` adds others
        that make the numbers doubtful. If no `campaign` is named, it is the one that all runs have in common.
        `timed=False`: the numbers are no times or speeds, so that nothing is doubtful about them for what disturbed
        the profiles and the runs, or for the hours between these.
        """
        profiles, runs, plans = _several(profile), list(runs), list(plans)
        used = {device.type.name for cluster_part in _several(cluster) for device in cluster_part.devices}
        doubtful = [*_of_times(profiles, used, runs, load)] if timed else []
        doubtful += warnings
        campaigns = {run.campaign for run in runs}
        return cls(
            profiles=_distinct(map(_of_profile, profiles)),
            clusters=_distinct(map(_of_cluster, _several(cluster))),
            plans=_distinct(map(_of_plan, plans)),
            settings={} if settings is None else canonical(settings),
            runs=_distinct(map(_of_run, runs)),
            campaign=campaign or (campaigns.pop() if len(campaigns) == 1 else None),
            load=canonical(load),
            warnings=_once([*doubtful, *(text for plan in plans for text in plan.warnings)]),
            doubts=_once(map(in_few_words, doubtful)),
            data=canonical(data),
        )

    @property
    def digest(self) -> str:
        """A digest of all facts: what a table or a picture says when it stands alone."""
        return digest(self._written())

    @property
    def doubt(self) -> str | None:
        """A line for a subtitle, "doubtful: layers' sum is 0.51 × a whole step"; None if nothing is doubtful."""
        if not self.doubts:
            return None
        shown = [k for k in range(1, _MOST_DOUBTS + 1) if k == 1 or len("; ".join(self.doubts[:k])) <= _LONGEST]
        more = len(self.doubts) - shown[-1]
        text = "; ".join(self.doubts[: shown[-1]])
        return f"doubtful: {text}" + (f"; and {more} more" if more > 0 else "")

    @property
    def held_up(self) -> tuple[str, ...]:
        """Injected delays of its runs, each once, as a note (requested, so not a doubt)."""
        return _once(str(run["stragglers"]) for run in self.runs if run.get("stragglers"))

    def __or__(self, other: "Provenance") -> "Provenance":
        """Provenance of results from both. Settings of one name: the other's; runs of two campaigns: none."""
        return Provenance(
            _distinct([*self.profiles, *other.profiles]),
            _distinct([*self.clusters, *other.clusters]),
            _distinct([*self.plans, *other.plans]),
            {**self.settings, **other.settings},
            _distinct([*self.runs, *other.runs]),
            self._campaign_with(other),
            _of_either(self.load, other.load, both=[self.load, other.load]),
            _once([*self.warnings, *other.warnings]),
            _once([*self.doubts, *other.doubts]),
            _of_either(self.data, other.data, both=[self.data, other.data]),
        )

    def _campaign_with(self, other: "Provenance") -> str | None:
        if not other.runs:
            return self.campaign
        return other.campaign if not self.runs or self.campaign == other.campaign else None

    def with_warnings(self, *warnings: str) -> "Provenance":
        """The same, doubtful for further reasons too. One that is among the doubts, in whatever words, is known."""
        warnings = tuple(text for text in warnings if in_few_words(text) not in self.doubts)
        return replace(
            self,
            warnings=_once([*self.warnings, *warnings]),
            doubts=_once([*self.doubts, *map(in_few_words, warnings)]),
        )

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, "digest": self.digest, **self._written()}

    @classmethod
    def from_json(cls, document: Any) -> "Provenance":
        """Read what `to_json` wrote. Raises InputError for anything else."""
        if not isinstance(document, Mapping) or document.get("format") != FORMAT:
            raise InputError(
                "provenance.malformed", f"provenance is {shown(document)}: expected an object with format {FORMAT!r}"
            )
        given: dict[str, Any] = {}
        for entry in fields(cls):
            value = document.get(entry.name)
            if value is not None and not _fits(entry.name, value):
                raise InputError(
                    "provenance.entry_malformed",
                    f"{entry.name} of a provenance is {shown(value)}: expected a value written by sparsepipe",
                )
            if value is not None:
                given[entry.name] = tuple(value) if entry.name in _LISTS else value
        return cls(**given)

    def _written(self) -> dict[str, Any]:
        return {entry.name: canonical(getattr(self, entry.name)) for entry in fields(self)}


_OBJECTS = ("profiles", "clusters", "plans", "runs")
_LISTS = (*_OBJECTS, "warnings", "doubts")


def _fits(name: str, value: Any) -> bool:
    if name in _LISTS:
        kind = Mapping if name in _OBJECTS else str
        return isinstance(value, list) and all(isinstance(item, kind) for item in value)
    if name == "settings":
        return isinstance(value, Mapping)
    return name != "campaign" or isinstance(value, str)


def in_few_words(warning: str) -> str:
    """A warning without what to do about it: "layers' sum is 0.506 × a whole step"."""
    text = warning.split("; ")[0].split(", expected")[0].strip().rstrip(".")
    return text.replace("the layers' sum", "layers' sum").replace(" x a whole", " × a whole")


def plan_digest(plan: Plan) -> str:
    """Names a plan: stages, schedule and what it expects, not how long the planner looked for it."""
    document = plan.to_json()
    document |= {"pipelines": [plan_digest(member) for member in plan.members]} if plan.members else {}
    return digest({key: value for key, value in document.items() if key not in ("plan_seconds", "provenance")})


def work_digest(plan: Plan) -> str:
    """Names what a run of a plan does: stages, devices, schedule, weights; not what was expected of it, or by whom."""
    if plan.replication is not None:
        return digest([rule_to_json(plan.replication), *map(work_digest, plan.members)])
    return plan_digest(replace(plan, estimate=None, warnings=(), planner=""))


def _of_profile(profile: Profile) -> Facts:
    facts = {"digest": profile.digest, "device_types": list(profile.device_types), profile.size_unit: profile.size()}
    if profile.sized:
        facts["measured_sizes"] = {kind: list(profile.measured_sizes(kind)) for kind in profile.device_types}
    return facts | {"origin": canonical(profile.origin), "warnings": list(profile.warnings)}


def _of_cluster(cluster: Cluster) -> Facts:
    nodes = [
        {
            "name": node.name,
            "devices": [
                {"type": kind.name, "memory_bytes": canonical(kind.memory_bytes), "count": len(list(same))}
                for kind, same in groupby(node.device_types)
            ],
            "link": canonical(node.link),
        }
        for node in cluster.nodes
    ]
    return {"digest": cluster.digest, "nodes": nodes, "network": canonical(cluster.network)}


def _of_plan(plan: Plan) -> Facts:
    estimate = plan.estimate
    return {
        "digest": plan_digest(plan),
        "planner": plan.planner,
        "schedule": plan.schedule,
        "weights": plan.weights,
        "stages": [len(stage.ranks) for stage in plan.stages],
        "period_seconds": estimate.period_seconds if estimate else None,
    }


def _of_run(record: RunRecord) -> Facts:
    times = record.ran
    return {
        "run": record.name,
        "began": times[0].isoformat(timespec="seconds") if times else None,
        "ended": times[1].isoformat(timespec="seconds") if times else None,
        "campaign": record.campaign,
        "beside": list(record.beside),
        "plan": plan_digest(record.plan),
        **({"plans": [[first, plan_digest(plan)] for first, plan in record.plans]} if len(record.plans) > 1 else {}),
        "settings": digest(record.config),
        **({"stragglers": note} if (note := record.straggler_note) else {}),
        "origin": canonical({key: value for key, value in record.origin.items() if key != "provenance"}),
        "load": canonical(record.other_load),
    }


def _warnings_of_load(load: Any) -> list[str]:
    """Warnings of a load: its "warning"; of several loads, each one's."""
    if isinstance(load, Mapping):
        return [load["warning"]] if isinstance(load.get("warning"), str) else []
    return [text for part in load for text in _warnings_of_load(part)] if isinstance(load, list | tuple) else []


def _of_times(profiles: Iterable[Profile], used: set[str], runs: Sequence[RunRecord], load: Any) -> Iterator[str]:
    """Reasons to doubt times: other load, and runs that should not be compared."""
    for profile in profiles:
        yield from _doubts_of(profile, used)
    for run in runs:
        yield from (f"{run.name}: {text}" for text in load_warnings(run.background_load))
    yield from _warnings_of_load(load)
    yield from differences(runs)


def _doubts_of(profile: Profile, used: set[str]) -> tuple[str, ...]:
    """The warnings of those types of a profile that the clusters have; all where they have none of them."""
    known = [name for name in profile.device_types if name in used]
    return profile.warnings_of(known or profile.device_types)


def _several(value: Value | Sequence[Value] | None) -> list[Value]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]  # type: ignore[list-item]


def _of_either(one: Any, other: Any, *, both: Any) -> Any:
    """The one of two that exists, or what they agree on; `both` where they differ."""
    if one is None or one == other:
        return other
    return one if other is None else both


def _distinct(facts: Iterable[Facts]) -> tuple[Facts, ...]:
    """Each once: by its digest or, of runs, by everything that is said of them."""
    return tuple({fact.get("digest") or digest(fact): fact for fact in facts}.values())


def _once(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(texts))
