"""What held jobs up as others recorded it, machines that went and slow workers, and what a job of pipelines does then.

Simulated by the rules that pipelines average by, and compared with what the records themselves say of it.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from math import ceil
from pathlib import Path
from statistics import median
from typing import NamedTuple

from ..errors import InputError
from ..planning.simulator import simulate_pipelines
from ..records.formats.spot_machines import SpotMachines, read_spot_machines
from ..util.text.numbers import number_of
from ..values.cluster import Cluster, Link
from ..values.graph import Layer, LayerGraph
from ..values.plan import Plan, Stage
from ..values.profile import CostSample, LayerCost, Profile
from ..values.replication import parse_rule
from ..values.stragglers import Stragglers, read_minibatch_times
from ..values.stragglers.kinds import Stop
from ..values.stragglers.minibatch_times import MinibatchTimes
from ..views.plots.system_bars import HeldAgainst
from .machines import folder_of

PIPELINES = 4  # that share the most machines there ever are
MINIBATCH_SECONDS = 300.0  # where machines come and go: a record is as long as some 100 to 300 minibatches
MINIBATCHES = 200  # that a worker who is never slow trains: a job's first
WAITS, WAITS_FOR_NOBODY = "all-reduce", "partial-reduce"
_CURVE = 300  # points of a line, at most
Curves = dict[str, dict[str, list[tuple[float, float]]]]  # panel → line → points


class Trained(NamedTuple):
    """Minibatches that a job of pipelines has trained by a record's end: simulated, and as the record itself says."""

    record: str
    rule: str
    pipelines: int
    simulated: int
    counted: int
    undisturbed: int  # by as many pipelines as could ever train, had nothing held any of them up

    @property
    def share(self) -> float:
        return self.simulated / self.undisturbed


def spot_machines(folder: str = "") -> list[SpotMachines]:
    """Bamboo's records of machines that come and go: *-trace.csv and gcloud/*.txt."""
    traces_folder = folder_of("preemptions", folder)
    if traces_folder is None:
        return []
    return [read_spot_machines(path) for path in _files(traces_folder, "*-trace.csv", "gcloud/*.txt")]


def slow_workers(folder: str = "") -> list[Path]:
    """The files of minibatch times of Alibaba's jobs: job_*_norm.csv."""
    path = folder_of("minibatch-times", folder)
    return [] if path is None else _files(path, "job_*_norm.csv")


def _files(place: Path, *patterns: str) -> list[Path]:
    files = sorted(path for pattern in patterns for path in place.rglob(pattern))
    if not files:
        raise InputError(
            "recorded.files_missing",
            f"{place}: {' or '.join(patterns)} is missing; give the folder that `sparsepipe data fetch` creates",
        )
    return files


def machines_over_time(records: Sequence[SpotMachines]) -> Curves:
    """Machines that are available, and those of them that whole pipelines have, over hours: a panel a record."""
    sizes = {"available": lambda _: 1, "in whole pipelines": _size}
    return {
        f"{record.name} (machines)": {name: list(_steps(record, size(record))) for name, size in sizes.items()}
        for record in records
    }


def _steps(record: SpotMachines, size: int) -> Iterator[tuple[float, float]]:
    """(hours, machines): the corners of a line of steps."""
    for begin, end, count in record.spans:
        yield begin / 3600, count - count % size
        yield end / 3600, count - count % size


def workers_over_minibatches(files: Sequence[Path]) -> Curves:
    """Slowdown of a job's slowest, middle and fastest worker relative to the fastest's usual time, by minibatch.

    A point is the median over neighbouring readings, if there are more of these than a line has points.
    """
    return {f"{_name(path)} (times the fastest's median)": _extremes(path) for path in files}


def _extremes(path: Path) -> dict[str, list[tuple[float, float]]]:
    steps, workers = _slowness(path)
    ranked = [sorted(of_all) for of_all in zip(*workers, strict=False)]
    lines = {"slowest worker": -1, "middle worker": len(workers) // 2, "fastest worker": 0}
    width = ceil(len(ranked) / _CURVE)
    return {
        name: [
            (steps[k], median(each[worker_line] for each in ranked[k : k + width]))
            for k in range(0, len(ranked), width)
        ]
        for name, worker_line in lines.items()
    }


def _name(path: Path) -> str:
    return path.stem.removesuffix("_norm")


def _slowness(path: Path) -> tuple[tuple[int, ...], list[list[float]]]:
    """Minibatches of the readings, and each worker's times over the lowest median of all."""
    readings = read_minibatch_times(path)
    fastest = min(median(reading.times) for reading in readings.values())
    first = next(iter(readings.values())).steps
    return tuple(step - first[0] for step in first), [
        [time / fastest for time in reading.times] for reading in readings.values()
    ]


def trained(records: Sequence[SpotMachines], files: Sequence[Path]) -> list[Trained]:
    """Training progress of pipelines on spot machines and with slow workers, at the end of each record."""
    runs = [run for record in records for run in trained_on_spot_machines(record)]
    return runs + [run for path in files for run in trained_by_slow_workers(path)]


def trained_on_spot_machines(record: SpotMachines) -> list[Trained]:
    """Training progress of pipelines on spot machines, with full and without any synchronization.

    Of those that wait for each other there are as many as together train most. While too few machines are there the
    last pipelines stand still: they keep their weights, and begin again where they were as soon as there are enough, so
    that no restart is counted. A pipeline's machines are simulated as one. Raises InputError if there are never
    machines for all pipelines.
    """
    size = _size(record)
    away = [record.absences((k + 1) * size) for k in range(PIPELINES)]
    there = [record.duration - sum(seconds for _, seconds in absence) for absence in away]
    waiting = max(range(2, PIPELINES + 1), key=lambda count: count * there[count - 1])
    undisturbed = int(PIPELINES * record.duration / MINIBATCH_SECONDS)
    runs = []
    for rule, count, stopped, seconds in (  # of those that wait the last one is away whenever another one is
        (WAITS, waiting, [waiting - 1], waiting * there[waiting - 1]),
        (WAITS_FOR_NOBODY, PIPELINES, range(PIPELINES), sum(there)),
    ):
        parts = [stop for k in stopped for stop in _pauses(k, away[k])]
        simulated = _trained(rule, count, MINIBATCH_SECONDS, Stragglers(tuple(parts)), record.duration)
        runs.append(Trained(record.name, rule, count, simulated, int(seconds / MINIBATCH_SECONDS), undisturbed))
    return runs


def _size(record: SpotMachines) -> int:
    """The machines of a pipeline."""
    if max(record.counts) < PIPELINES:
        raise InputError(
            "recorded.too_few_machines",
            f"{record.name}: never has enough machines for {PIPELINES} pipelines; choose another record",
            name=record.name,
        )
    return max(record.counts) // PIPELINES


def _pauses(rank: int, absences: Sequence[tuple[float, float]]) -> Iterator[Stop]:
    """A stop for each absence, at the minibatch that the rank has come to by then."""
    before = 0.0
    for begin, seconds in absences:
        yield Stop(rank, int((begin - before) / MINIBATCH_SECONDS), seconds)
        before += seconds


def trained_by_slow_workers(path: Path) -> list[Trained]:
    """Training progress of pipelines as slow as a job's workers, with full and without any synchronization.

    In the time of `MINIBATCHES` of a worker that is never slow, played back by the straggler `trace`.
    """
    steps, workers = _slowness(path)
    apart = steps[1] - steps[0] if len(steps) > 1 else MINIBATCHES
    taken = [
        [max(slow_worker, 1.0) for slow_worker in worker for _ in range(apart)][:MINIBATCHES] for worker in workers
    ]
    counted = {
        WAITS: len(workers) * _done([max(of_all) for of_all in zip(*taken, strict=False)]),
        WAITS_FOR_NOBODY: sum(map(_done, taken)),
    }
    slow = Stragglers((MinibatchTimes(str(path)),))
    return [
        Trained(
            _name(path),
            rule,
            len(workers),
            _trained(rule, len(workers), 1.0, slow, MINIBATCHES),
            count,
            len(workers) * MINIBATCHES,
        )
        for rule, count in counted.items()
    ]


def _done(seconds: Sequence[float]) -> int:
    """Number of these that are finished by the end."""
    return sum(end <= MINIBATCHES for end in accumulate(seconds))


def _trained(rule: str, num_pipelines: int, seconds: float, stragglers: Stragglers, duration: float) -> int:
    """Simulate pipelines of one stage over free links, and count what all of them have trained by then."""
    cost = LayerCost((CostSample(1.0, seconds / 3, 2 * seconds / 3, 0.0),))
    profile = Profile(LayerGraph.chain([Layer("network", "", 1.0)]), {"machines": (cost,)})
    cluster = Cluster.uniform(num_pipelines, device_type="machines", link=Link())
    pipelines = Plan.alike(Plan((Stage(("network",), (0,)),)), num_pipelines, parse_rule(rule))
    sizes = [1.0] * (num_pipelines * ceil(duration / seconds + 1))
    forecast = simulate_pipelines(pipelines, profile, cluster, sizes, stragglers=stragglers)
    ends = [span.end for span in forecast.trace.spans if span.kind == "backward"]
    return sum(end <= duration * (1 + 1e-9) for end in ends)


def trained_as_recorded(found: Sequence[Trained]) -> list[HeldAgainst]:
    """Simulated progress by record and scheme, compared with the record's own."""
    return [
        HeldAgainst(
            "with recorded delays",
            f"{one.record}, {one.rule}, {number_of(one.pipelines, 'pipeline')}",
            one.counted,
            one.simulated,
            "minibatches",
            known_as="by the record",
            found_as="simulated",
        )
        for one in found
    ]


def in_words(found: Sequence[Trained]) -> str:
    """Say for each record, in a line of its own, what of the undisturbed job is trained under each rule."""
    lines: dict[str, list[str]] = {}
    for one in found:
        sentences = lines.setdefault(f"{one.record}, simulated", [])
        of = "" if sentences else f" of an undisturbed job's {number_of(one.undisturbed, 'minibatch', ',')}"
        told = "trains " if not sentences else ""
        sentences.append(f"{one.rule} ({number_of(one.pipelines, 'pipeline')}) {told}{one.share:.0%}{of}")
    return "\n".join(f"{record}: {', '.join(told)}" for record, told in lines.items())
