"""The ways of training that the main job compares: one process, data parallelism, a pipeline."""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ..cluster import Cluster
from ..fields import MOST_DEVICES, integer
from ..launchers import launch
from ..launchers.run_folders import new_folder
from ..plan import Plan
from ..planners import Problem, estimate, partition
from ..plots.epochs import epoch_trace, working_epoch
from ..profile import Profile
from ..provenance import Provenance
from ..record import RunRecord
from ..record.campaigns import new_campaign, when
from ..runtime.config import RunConfig
from ..simulator import simulate
from ..trace import Trace
from .cached_runs import kept_campaign
from .replays import replay
from .workplace import Workplace

MetricsRow = Mapping[str, Any]
__all__ = [
    "DATA_PARALLEL",
    "ONE_PROCESS",
    "PIPELINE",
    "Strategies",
    "epoch_trace",
    "replayed_epoch",
    "simulated_epoch",
    "working_epoch",
]
ONE_PROCESS, DATA_PARALLEL, PIPELINE = "one-process", "data-parallel", "pipeline"


@dataclass(frozen=True)
class Strategies:
    """Plans of one model for `num_devices` processes of this machine, and the runs that followed them."""

    place: Workplace
    model: str
    num_devices: int = 2
    schedule: str = "1f1b"
    also: tuple[str, ...] = ()  # further schedules of the pipeline
    num_microbatches: int = 2  # of a step, for those of them that have steps
    together: bool = True  # devices are this machine's cores, all at work at once

    def __post_init__(self) -> None:
        integer(self.num_devices, "num_devices", least=1, most=MOST_DEVICES)

    @cached_property
    def profile(self) -> Profile:
        """What layers cost while the other devices work too, as far as there are cores for them."""
        at_once = min(self.num_devices, len(os.sched_getaffinity(0)) // self.place.threads) if self.together else 1
        return self.place.profile(self.model, beside=max(at_once, 1) - 1)

    @cached_property
    def _alone(self) -> Profile:
        """What layers cost one process at work alone."""
        return self.place.profile(self.model)

    @cached_property
    def cluster(self) -> Cluster:
        return self.place.cluster(self.profile, num_devices=self.num_devices)

    @cached_property
    def plans(self) -> dict[str, Plan]:
        """A plan for each strategy. The pipeline is the optimal plan where that has stages, else one device a stage."""
        best = partition(self.profile, self.cluster, planner="optimal", schedule=self.schedule)
        if len(best.stages) == 1 and self.num_devices > 1:
            _say(f"the optimal plan has one stage ({best.summary()}): the pipeline is one device a stage instead")
            best = partition(self.profile, self.cluster, planner="model-parallel", schedule=self.schedule)
        alone = self._alone
        return {
            ONE_PROCESS: partition(
                alone, self.place.cluster(alone, num_devices=1), planner="optimal", schedule=self.schedule
            ),
            DATA_PARALLEL: partition(self.profile, self.cluster, planner="data-parallel", schedule=self.schedule),
            PIPELINE: best,
            **{f"{PIPELINE}-{schedule}": self._under(best, schedule) for schedule in self.also},
        }

    def _under(self, plan: Plan, schedule: str) -> Plan:
        """The same stages under another schedule."""
        changed = plan.with_schedule(schedule, num_microbatches=self.num_microbatches)
        problem = Problem(self.profile, self.cluster, schedule, self.num_microbatches)
        return replace(changed, estimate=estimate(changed, problem))

    def config(self, *, epochs: int, **settings: Any) -> RunConfig:
        """What every strategy trains with: the same data, seed and hyperparameters."""
        place = self.place
        return RunConfig(
            self.model,
            place.source,
            voxel_size=place.voxel_size,
            batch_size=place.batch_size,
            num_points=place.num_points,
            engine=place.engine,
            epochs=epochs,
            seed=place.seed,
            threads=place.threads,
            **{"learning_rate_schedule": "cosine", **settings},
        )

    @property
    def _runs(self) -> Path:
        return self.place.root / "runs"

    def _called(self, name: str) -> str:
        return f"{self.model}-{name}"

    def train(
        self,
        name: str,
        config: RunConfig,
        *,
        campaign: str | None = None,
        on_row: Callable[[MetricsRow], None] | None = None,
    ) -> RunRecord:
        """Launch the plan of one strategy as processes, wait for its end, and return its record."""
        plan = self.plans[name]
        _say(f"{name}: launching {len(plan.ranks)} worker process{'es' if len(plan.ranks) > 1 else ''}")
        job = launch(plan, config, run_dir=new_folder(self._runs, self._called(name)), campaign=campaign)
        try:
            job.wait(on_row=on_row or _say_epoch)
        except KeyboardInterrupt:
            job.cancel()
            raise
        return job.record

    def records(self, config: RunConfig, *, anew: bool = False) -> dict[str, RunRecord]:
        """The run of each strategy, all of one campaign: of the newest under these settings, profiles and links.

        Without one, or `anew`, a campaign begins now and trains all of them, one after another. Runs that another job
        shared the machine with are in none.
        """
        settings = [config.to_json(), self.profile.digest, self._alone.digest, self.cluster.digest]
        asked = {self._called(name): (plan, config) for name, plan in self.plans.items()}
        campaign, found = (None, {}) if anew else kept_campaign(self._runs, asked, settings)
        if campaign:
            _say(f"campaign {campaign}: {when(found.values())}")
        else:
            campaign = new_campaign(self.model, settings)
            _say(f"campaign {campaign} begins now")
        result = {}
        for name in self.plans:
            if kept := found.get(self._called(name)):
                _say(f"{name}: from runs/{kept.name}")
            result[name] = kept or self.train(name, config, campaign=campaign)
        return result

    def origin(self, runs: Iterable[RunRecord] = (), *, warnings: Iterable[str] = ()) -> Provenance:
        """What a figure of these strategies rests on: both profiles, the links, the plans, and `runs`."""
        profiles = [self.profile, self._alone]
        return self.place.origin(profiles, self.cluster, self.plans.values(), runs, warnings=warnings)


def simulated_epoch(strategies: Strategies, record: RunRecord, epoch: int) -> Trace:
    """The simulation of the minibatches of one epoch of a run, by their voxels."""
    return simulate(record.plan_of_epoch(epoch), strategies.profile, strategies.cluster, _voxels(record, epoch))


def replayed_epoch(strategies: Strategies, record: RunRecord, epoch: int) -> Trace:
    """A replay of the minibatches of one epoch of a run, by their voxels, from its first to its last work."""
    voxels = _voxels(record, epoch)
    profile = replace(strategies.profile, sizes=voxels)
    runs = strategies.place.root / "runs"
    return working_epoch(replay(runs, record.plan_of_epoch(epoch), profile, strategies.cluster, len(voxels)), 0)


def _voxels(record: RunRecord, epoch: int) -> tuple[float, ...]:
    """Active voxels of each minibatch of one epoch."""
    return tuple(float(row["voxels"]) for row in record.metrics("step") if row["epoch"] == epoch)


def _say_epoch(row: MetricsRow) -> None:
    if row.get("event") == "epoch":
        accuracy = (row.get("validation") or {}).get("accuracy")
        told = "" if accuracy is None else f", validation accuracy {accuracy:.1%}"
        _say(f"  epoch {row['epoch'] + 1}: {row['samples_per_second']:.0f} samples/s{told}")


def _say(line: str) -> None:
    print(line, flush=True)
