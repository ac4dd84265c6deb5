"""What a plan's ranks and links should take for a minibatch of a size, by its profile and its cluster."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from ..planning.simulator.simulation import CODES, durations
from ..values.cluster import Cluster
from ..values.plan import Plan
from ..values.profile import Profile
from ..values.schedule import Op

_FORWARD, _BACKWARD = CODES[Op.FORWARD], CODES[Op.BACKWARD]
_NOTICED = 0.05  # of a minibatch's time on the slowest rank: shorter transfers are as good as none
_MOST = 65_536  # sizes whose times are kept
_STEPS = 4  # of a doubling beyond the measured sizes, of which the uncertainty is worked out


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
