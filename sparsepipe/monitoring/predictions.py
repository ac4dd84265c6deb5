"""What a predictor expects of a running job's ranks, by what the machine says of each rank's process meanwhile."""

from pathlib import Path

from ..errors import InputError
from ..runtime.processes import rank_readings
from ..runtime.processes.rank_watches import RankWatches
from ..util.host.machine_watch import MachineWatch
from ..values.cluster import Cluster
from ..values.profile import Profile
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
