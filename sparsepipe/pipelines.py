"""Several pipelines that train copies of one network: a plan for each, and the rule by which they average.

They need not be alike: averages are by layer, so each may be cut where it suits its own devices.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .cluster import Cluster
from .display import html
from .display.counting import number_of
from .display.markup import one_line
from .display.numbers import gap_text, rate_text
from .display.plan_text import stage_table, warmups_told
from .errors import InputError
from .graph import LayerGraph
from .io.fields import integer, maybe, number, shown, texts
from .io.files import read_json, write_json
from .plan import FORMAT, Plan, Stage
from .replication import rule_from_json, rule_to_json
from .replication.base import Rule
from .sizes import Certainty

_MOST_NAMED = 4  # layers in a message


@dataclass(frozen=True)
class Pipelines:
    """Plans of one network on ranks of their own, and what they do to stay alike.

    Ranks are places in one cluster, as in a plan of its own; `local` has a pipeline's plan with ranks from 0.
    """

    pipelines: tuple[Plan, ...]
    replication: Rule
    samples: float | None = None  # of a minibatch; None: the profile that was planned with does not say
    # Seconds per minibatch of all together that no split of the devices beats by the planner's cost model; None: no
    # such bound is proven.
    lower_bound_seconds: float | None = None
    plan_seconds: float = 0.0
    warnings: tuple[str, ...] = ()  # of the split; each plan has its own too
    provenance: Mapping[str, Any] | None = field(default=None, compare=False)
    data_parallel_seconds: float | None = None  # period of one stage over all devices; None: it was not planned for

    @classmethod
    def alike(cls, plan: Plan, count: int, replication: Rule, *, samples: float | None = None) -> "Pipelines":
        """Return `count` pipelines of the same plan, whose ranks are from 0: each on the next ranks of a cluster."""
        integer(count, "pipelines", least=2)
        num_ranks = len(plan.ranks)
        copies = []
        for k in range(count):
            stages = (replace(one, ranks=tuple(rank + k * num_ranks for rank in one.ranks)) for one in plan.stages)
            copies.append(replace(plan, stages=tuple(stages)))
        return cls(tuple(copies), replication, samples)

    @property
    def counted(self) -> str:
        """What its throughput counts: "samples", or "minibatches" if it does not know how many samples one has."""
        return "minibatches" if self.samples is None else "samples"

    @property
    def ranks(self) -> tuple[int, ...]:
        """Every rank of all pipelines, pipeline 0's first."""
        return tuple(rank for plan in self.pipelines for rank in plan.ranks)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages of all pipelines, pipeline 0's first."""
        return tuple(stage for plan in self.pipelines for stage in plan.stages)

    @property
    def schedule(self) -> str:
        return _joined(plan.schedule for plan in self.pipelines)

    @property
    def weights(self) -> str:
        return _joined(plan.weights for plan in self.pipelines)

    @property
    def planner(self) -> str:
        return _joined(plan.planner for plan in self.pipelines)

    @property
    def minibatches_per_second(self) -> float | None:
        """What the planner expects of all pipelines together where none waits; None where a plan has no estimate."""
        rates = [_rate(plan) for plan in self.pipelines]
        return None if None in rates else sum(rate for rate in rates if rate is not None)

    @property
    def period_seconds(self) -> float | None:
        """Seconds per minibatch of all pipelines together; None where a plan has no estimate."""
        rate = self.minibatches_per_second
        return 1 / rate if rate else None

    @property
    def extrapolation(self) -> str:
        """How far beyond the measured sizes the estimates' times are, the worst of all: `Certainty.beyond`."""
        return Certainty.beyond(*(plan.estimate.certainty for plan in self.pipelines if plan.estimate))

    @property
    def gap(self) -> float | None:
        """How far `period_seconds` can be above the optimum, as a share of it: 0 means proven optimal."""
        period = self.period_seconds
        if self.lower_bound_seconds is None or not period:
            return None
        return max(0.0, (period - self.lower_bound_seconds) / period)

    def ranks_of(self, k: int) -> tuple[int, ...]:
        """The ranks of pipeline `k` in ascending order: place i is rank i of `local(k)`."""
        return tuple(sorted(self.pipelines[k].ranks))

    def first_rank(self, k: int) -> int:
        """How many ranks the pipelines before `k` have."""
        return sum(len(plan.ranks) for plan in self.pipelines[:k])

    def first_stage(self, k: int) -> int:
        """How many stages the pipelines before `k` have: stage s of pipeline k is stage `first_stage(k)` + s of all."""
        return sum(len(plan.stages) for plan in self.pipelines[:k])

    @property
    def trace_facts(self) -> dict[str, Any]:
        """What a trace of them says: "pipelines", the ranks of each; "like_stages", of each of `stages` the first that
        has the same layers.
        """
        layers = [stage.layers for stage in self.stages]
        ranks = [list(self.ranks_of(k)) for k in range(len(self.pipelines))]
        return {"pipelines": ranks, "like_stages": [layers.index(own) for own in layers]}

    def local(self, k: int) -> Plan:
        """Return the plan of pipeline `k` with ranks from 0, in the order that they have here: what its job runs."""
        place = {rank: i for i, rank in enumerate(self.ranks_of(k))}
        plan = self.pipelines[k]
        stages = (replace(stage, ranks=tuple(place[rank] for rank in stage.ranks)) for stage in plan.stages)
        return replace(plan, stages=tuple(stages))

    def violations(self, graph: LayerGraph, cluster: Cluster | None = None) -> list[str]:
        """Every reason why these pipelines cannot train `graph` together (on `cluster`), each in one line."""
        found = []
        if len(self.pipelines) < 2:
            found.append(
                f"{len(self.pipelines)} pipeline: a replication rule averages between two or more; give the plan of "
                "one by itself"
            )
        else:
            try:
                self.replication.groups(len(self.pipelines))
            except InputError as error:
                found.append(str(error))
        found += self._overlaps()
        unlike = self._unlike_layers()
        for k, plan in enumerate(self.pipelines):
            if not (unlike and set(plan.layers) != {layer.id for layer in graph.layers}):
                found += [f"pipeline {k}: {text}" for text in plan.violations(graph, cluster)]
        return found + unlike

    def check(self, graph: LayerGraph, cluster: Cluster | None = None) -> "Pipelines":
        """Return self, or raise InputError that lists every violation."""
        if found := self.violations(graph, cluster):
            raise InputError("pipelines.violations", "the pipelines cannot run: " + "; ".join(found))
        return self

    def _overlaps(self) -> list[str]:
        found, owner = [], dict[int, int]()
        for k, plan in enumerate(self.pipelines):
            for rank in plan.ranks:
                if owner.setdefault(rank, k) != k:
                    found.append(f"rank {rank} is in pipelines {owner[rank]} and {k}: expected in one")
        return found

    def _unlike_layers(self) -> list[str]:
        """What one pipeline has and another has not, told of the first that differs from pipeline 0."""
        for k, plan in enumerate(self.pipelines[1:], start=1):
            first, own = self.pipelines[0].layers, plan.layers
            if lacking := [id for id in first if id not in own]:
                return [_lacks(k, 0, lacking)]
            if lacking := [id for id in own if id not in first]:
                return [_lacks(0, k, lacking)]
        return []

    def to_json(self) -> dict[str, Any]:
        """The plan file, which is also what `sparsepipe plan --pipelines P --json` prints.

        What a plan of one pipeline has at the top is there too: `stages` are those of all.
        """
        documents = [plan.to_json() for plan in self.pipelines]
        first = documents[0] if documents else {}
        rate = self.minibatches_per_second
        shared = ("voxels", "memory_voxels", "size_unit")
        alone = [plan.estimate.single_device_seconds for plan in self.pipelines if plan.estimate]
        return {
            "format": FORMAT,
            "planner": self.planner,
            "period_seconds": self.period_seconds,
            "lower_bound_seconds": self.lower_bound_seconds,
            "gap": self.gap,
            "plan_seconds": self.plan_seconds,
            "single_device_seconds": min((seconds for seconds in alone if seconds is not None), default=None),
            "data_parallel_seconds": self.data_parallel_seconds,
            **{key: first[key] for key in shared if key in first},
            "schedule": self.schedule,
            "weights": self.weights,
            "replication": rule_to_json(self.replication),
            "samples": self.samples,
            "samples_per_second": self._samples_per_second(rate),
            "minibatches_per_second": rate,
            "pipelines": [
                {**document, "samples_per_second": self._samples_per_second(_rate(plan))}
                for document, plan in zip(documents, self.pipelines, strict=True)
            ],
            "stages": [stage for document in documents for stage in document["stages"]],
            "warnings": list(self.warnings),
            **({} if self.provenance is None else {"provenance": dict(self.provenance)}),
        }

    def _samples_per_second(self, rate: float | None) -> float | None:
        return None if rate is None or self.samples is None else rate * self.samples

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "Pipelines":
        """Read what `to_json` wrote. Raises InputError where something is missing or of the wrong kind."""
        if not isinstance(document, Mapping) or document.get("format") != FORMAT or "pipelines" not in document:
            raise InputError(
                "pipelines.malformed",
                f"not a plan of pipelines: expected a JSON object with format {FORMAT!r} and 'pipelines'",
            )
        entries = document["pipelines"]
        if not isinstance(entries, list):
            raise InputError("pipelines.list_malformed", f"pipelines = {shown(entries)}: expected a list of plans")
        if "replication" not in document:
            raise InputError(
                "pipelines.no_replication", "pipelines without 'replication': expected the rule by which they average"
            )
        bound, parallel = document.get("lower_bound_seconds"), document.get("data_parallel_seconds")
        provenance = document.get("provenance")
        if provenance is not None and not isinstance(provenance, Mapping):
            raise InputError(
                "plan.provenance_malformed", f"provenance = {shown(provenance)}: expected an object, or none"
            )
        return cls(
            tuple(_pipeline(k, entry) for k, entry in enumerate(entries)),
            rule_from_json(document["replication"]),
            maybe(number)(document.get("samples"), "samples"),
            None if bound is None else number(bound, "lower_bound_seconds"),
            number(document.get("plan_seconds", 0.0), "plan_seconds"),
            texts(document.get("warnings", []), "warnings"),
            provenance,
            None if parallel is None else number(parallel, "data_parallel_seconds"),
        )

    def save(self, path: Path | str) -> Path:
        return write_json(path, self.to_json())

    @classmethod
    def load(cls, path: Path | str) -> "Pipelines":
        """Read a plan file of several pipelines. Raises InputError naming the file."""
        document = read_json(path, what="plan")
        try:
            return cls.from_json(document)
        except InputError as error:
            raise InputError(error.code, f"{path}: {error}", **error.fields) from None

    def _repr_html_(self) -> str:
        return html.pipelines(self)

    def __str__(self) -> str:
        """A table of stages for each pipeline, for people."""
        lines = [self.summary()]
        for k, plan in enumerate(self.pipelines):
            lines += ["", f"pipeline {k}: {plan.summary()}"]
            lines += stage_table(plan.stages, plan.estimate.stages if plan.estimate else None)
            lines += warmups_told(plan.stages)
        return "\n".join([*lines, *(f"warning: {one_line(text)}" for text in self.all_warnings)])

    @property
    def all_warnings(self) -> tuple[str, ...]:
        """The warnings of the split and of every plan, each once."""
        return tuple(dict.fromkeys([*self.warnings, *(text for plan in self.pipelines for text in plan.warnings)]))

    def summary(self) -> str:
        """How many pipelines and ranks, the rule, pace and gap in one line."""
        text = (
            f"{number_of(len(self.pipelines), 'pipeline')} on {number_of(len(self.ranks), 'device')}, "
            f"{self.replication.name}"
        )
        if rate := self.minibatches_per_second:
            samples = "" if self.samples is None else f" ({rate_text(rate * self.samples)})"
            text += f", {rate_text(rate, 'minibatches')}{samples} where none waits"
            text += ", gap not proven" if self.gap is None else f", gap {gap_text(self.gap)}"
        return one_line(text)


def load_any(path: Path | str) -> Plan | Pipelines:
    """Read a plan file of one pipeline or of several. Raises InputError naming the file."""
    return Pipelines.load(path) if holds_pipelines(path) else Plan.load(path)


def any_from_json(document: Any) -> Plan | Pipelines:
    """Read a plan of one pipeline or of several, as their `to_json` wrote it. Raises InputError for anything else."""
    several = isinstance(document, Mapping) and "pipelines" in document
    return Pipelines.from_json(document) if several else Plan.from_json(document)


def holds_pipelines(path: Path | str) -> bool:
    """Whether a plan file is of several pipelines. Raises InputError naming the file where it cannot be read."""
    document = read_json(path, what="plan")
    return isinstance(document, Mapping) and "pipelines" in document


def _pipeline(k: int, entry: Any) -> Plan:
    try:
        return Plan.from_json(entry)
    except InputError as error:
        raise InputError(error.code, f"pipeline {k}: {error}", **error.fields) from None


def _rate(plan: Plan) -> float | None:
    return 1 / plan.estimate.period_seconds if plan.estimate and plan.estimate.period_seconds else None


def _lacks(k: int, other: int, layers: Sequence[str]) -> str:
    more = f" and {len(layers) - _MOST_NAMED} more" if len(layers) > _MOST_NAMED else ""
    named = ", ".join(layers[:_MOST_NAMED])
    return f"pipeline {k} lacks layers that pipeline {other} has ({named}{more}): plan all for the same network"


def _joined(words: Iterable[str]) -> str:
    """What pipelines have, each once: "1f1b", or "1f1b+gpipe" where they differ."""
    return "+".join(dict.fromkeys(words))
