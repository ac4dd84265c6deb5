"""What a predictor expects of a running job's ranks, by what the machine says of each rank's process meanwhile."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..errors import InputError
from ..planning.simulator.simulation import CODES, durations
from ..runtime.processes import rank_readings
from ..runtime.processes.rank_readings import RankWatches
from ..util.host.machine_watch import MachineWatch
from ..values.cluster import Cluster
from ..values.plan import Plan
from ..values.profile import Profile
from ..values.schedule import Op
from .interference.predictor import Predictor
from .variants import LayerFactors, variant

_ANY_GPU = 0  # NVML's first: before a run's ranks have told which are theirs, any says which gauges there are


def check_predictor(
    replan: str | None, predictor: Predictor | None, *, needed: bool, device: str = "cpu", here: bool = True
) -> None:
    """Raise InputError if a variant lacks a predictor, has no use for one, or has one from other metrics.

    `needed`: whether the run's layers really compute, so that variants that ask a predictor cannot do without.
    `device`: that the run computes on, "cpu", "cuda" or "cuda:1"; on GPUs the metrics are theirs, too. `here`: the
    run's ranks are on this machine; those of others are known once their hosts have told of them.
    """
    if replan is None:
        if predictor is not None:
            raise InputError(
                "replan.predictor_alone",
                "a predictor requires replan, such as predicted; omit it, or set replan",
            )
        return
    asked = variant(replan)
    if predictor is None:
        if asked.needs_predictor and needed:
            raise InputError(
                "replan.no_predictor",
                f"replan {replan} needs an interference predictor of this machine; create one by `sparsepipe "
                f"interference measure --predictor FILE`, and give {{predictor}}",
                setting={"predictor": ...},
            )
        return
    if not asked.asks_predictor:
        raise InputError(
            "replan.predictor_unused",
            f"replan {replan} uses no predictor; omit the predictor, or use replan predicted or epoch",
        )
    if here:
        with MachineWatch(gpu=None if device == "cpu" else _ANY_GPU) as watch:
            predictor.check_metrics(watch.read())


class Predictions:
    """Takes what the machine says of each rank every two seconds; `of` asks the predictor by the newest reading.

    Ranks on this machine are read here, by the process ids in the run's logs (RankWatches); those on other hosts are
    read there, for which this asks, and come to the run's logs (rank_readings.py).
    """

    def __init__(
        self, predictor: Predictor, run_dir: Path, profile: Profile, cluster: Cluster, *, device: str = "cpu"
    ) -> None:
        """`device`: that the run computes on. Raises OSError if nothing can be asked for in the run's folder."""
        self._predictor, self._logs = predictor, run_dir / "logs"
        self._profile, self._cluster = profile, cluster
        self._watches = RankWatches(self._logs, on_gpus=device != "cpu")
        self._told: dict[int, dict[str, float]] = {}  # by other hosts, of their ranks
        rank_readings.ask(run_dir)

    def look(self) -> None:
        """Take a reading of each rank, if the last is two seconds old.

        Raises InputError if what a host says of a rank is not what the predictor learned from, or is damaged.
        """
        ranks = [device.rank for device in self._cluster.devices]
        if self._watches.look(ranks):
            found = {rank: rank_readings.newest(self._logs, rank) for rank in ranks}
            self._told = {rank: metrics for rank, metrics in found.items() if metrics is not None}
            for rank, metrics in self._told.items():
                self._check(rank, metrics)

    def of(self, rank: int) -> LayerFactors | None:
        """Return the predicted slowdown of each layer on a rank; None before its first reading.

        Raises InputError if the machine's metrics are not those that the predictor learned from.
        """
        metrics = self._told.get(rank) or self._watches.metrics.get(rank)
        if metrics is None:
            return None
        kind = self._cluster.devices[rank].type.name
        return self._predictor.layer_factors(metrics, self._profile, kind)

    def close(self) -> None:
        self._watches.close()

    def _check(self, rank: int, metrics: dict[str, float]) -> None:
        try:
            self._predictor.check_metrics(metrics)
        except InputError as error:
            raise error.within(f"the host of rank {rank}: ") from None


_FORWARD, _BACKWARD = CODES[Op.FORWARD], CODES[Op.BACKWARD]
_NOTICED = 0.05  # of a minibatch's time on the slowest rank: shorter transfers are as good as none
_MOST = 65_536  # sizes whose times are kept
_STEPS = 4  # of a doubling beyond the measured sizes, of which the uncertainty is worked out


# What a plan's ranks and links should take for a minibatch of a size, by its profile and its cluster
@dataclass(frozen=True, slots=True)
class OfSize:
    """Seconds and bytes of one size of minibatch."""

    work: dict[int, float]  # rank → seconds of forward and backward, of all its stages
    # (forwards, cut, whether to another host) → bytes that cross it: cut c is between stages c − 1 and c
    bytes: dict[tuple[bool, int, bool], float]
    noticed: float  # seconds that a transfer must take to hold anybody up
    uncertainty: float = 0.0  # share by which the work may be off, beyond the sizes that the profile was measured at


class Expected:
    """The times of one plan's minibatches, by their sizes: each size is worked out once."""

    def __init__(self, profile: Profile, cluster: Cluster, plan: Plan) -> None:
        """Raises InputError if the plan is not one for the profile's network and the cluster's devices."""
        plan.check(profile.graph, cluster)
        self.profile, self.cluster, self.plan = profile, cluster, plan
        self._of_sizes: dict[float, OfSize] = {}
        self._kinds = sorted({cluster.devices[rank].type.name for rank in plan.ranks})
        ranges = [profile.range_of_laws(kind) for kind in self._kinds]
        self._measured = max(low for low, _ in ranges), min(high for _, high in ranges)

    def learn(self, sizes: Iterable[float]) -> None:
        """Work out the times of sizes that are not known yet, all together: that costs little more than one."""
        new = sorted(set(sizes) - self._of_sizes.keys())
        if not new:
            return
        if len(self._of_sizes) + len(new) > _MOST:
            self._of_sizes.clear()
        seconds, _, _, transfers = durations(self.plan, self.profile, self.cluster, new)
        for k, size in enumerate(new):
            work = {
                rank: sum(passes[_FORWARD][k] + passes[_BACKWARD][k] for passes in of_stages.values())
                for rank, of_stages in seconds.items()
            }
            crossing = {}
            for (operation, stage, elsewhere), num_bytes in transfers.bytes.items():
                forwards = operation == _FORWARD
                crossing[forwards, stage + 1 if forwards else stage, elsewhere] = float(num_bytes[k])
            self._of_sizes[size] = OfSize(work, crossing, _NOTICED * max(work.values()), self._uncertainty(size))

    def _uncertainty(self, size: float) -> float:
        """Share by which the profile may be off: 0 within its sizes, where what is off is noise that the test sees."""
        low, high = self._measured
        if low <= size <= high or not self.profile.sized:
            return 0.0
        step = round(_STEPS * math.log2(size / high if size > high else low / max(size, 1.0)))
        near = (high if size > high else low) * 2 ** ((step if size > high else -step) / _STEPS)
        return self.profile.certainty(near, self._kinds).share if step else 0.0

    def transfer_seconds(self, size: float, rank: int, peer: int, *, forwards: bool, cut: int) -> float:
        """Seconds of what a minibatch of a size sends across a cut between two ranks, on the link between them."""
        devices = self.cluster.devices
        elsewhere = devices[rank].node.name != devices[peer].node.name
        return self.cluster.link(rank, peer).transfer_time(self.of(size).bytes.get((forwards, cut, elsewhere), 0.0))

    def of(self, size: float) -> OfSize:
        """The times of one size."""
        if size not in self._of_sizes:
            self.learn([size])
        return self._of_sizes[size]
