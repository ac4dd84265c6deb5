"""A job that nobody disturbs, watched: every alarm is a false one, but for what else the machine does."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.bench.document import say
from scripts.bench.replan.cut_in_two import cut_in_two
from sparsepipe.launching import launch
from sparsepipe.monitoring import Alarm, Follower, Standing
from sparsepipe.runtime import RunConfig

_LOOK = 1.0  # seconds between two looks at the run, as whoever follows one takes
_TOLD = 30.0  # seconds between two words of how far it is


@dataclass(frozen=True)
class Watched:
    """What was found in a run of so many minibatches."""

    minibatches: int
    seconds: float
    sizes: tuple[float, float]  # the least and the most of a minibatch, in the profile's unit
    size_unit: str
    alarms: Sequence[Alarm]
    standings: Sequence[Standing]

    def as_json(self) -> dict[str, Any]:
        ranks = Counter(alarm.rank for alarm in self.alarms if alarm.rank is not None)
        return {
            "minibatches": self.minibatches,
            "seconds": self.seconds,
            "size_unit": self.size_unit,
            "sizes": list(self.sizes),
            "num_alarms": len(self.alarms),
            "alarms_by_rank": {str(one.rank): ranks[one.rank] for one in self.standings if one.rank is not None},
            "alarms": [alarm.to_json() for alarm in self.alarms],
            "standings": [one.to_json() for one in self.standings],
        }


def alarms_of(config: RunConfig, folder: Path, *, seconds: float) -> Watched:
    """Profile, cut in two, train, and watch, to the run's end or for so many `seconds` of training.

    Raises InputError for what cannot run.
    """
    say("profile and link")
    profile, cluster, plan = cut_in_two(config)
    say(f"{config.minibatches} minibatches, or {seconds:.0f} s of them")
    with launch(plan, config, run_dir=folder / "watched", profile=profile, cluster=cluster) as job:
        follower, began, stopped = Follower(job.record), time.monotonic(), False
        due = began + _TOLD
        while job.running:
            for alarm in follower.look():
                say(f"  {alarm} (found at {alarm.minibatch})")
            if not stopped and time.monotonic() > began + seconds:
                job.stop()
                stopped = True
            if time.monotonic() > due:
                say(f"  {max((one.minibatches for one in follower.watch.standings), default=0)} minibatches")
                due += _TOLD
            time.sleep(_LOOK)
        follower.look()
        summary = job.wait()
    sizes = [float(row[profile.size_unit]) for row in job.record.metrics("step") if profile.size_unit in row]
    watch = follower.watch
    return Watched(
        summary["minibatches"],
        summary["seconds"],
        (min(sizes, default=0.0), max(sizes, default=0.0)),
        profile.size_unit,
        watch.alarms,
        watch.standings,
    )


def table(document: dict[str, Any]) -> str:
    """A line for each rank and link, one for each alarm, and how many there were."""
    heads = ("of", "minibatches", "times as long", "noise", "spikes", "alarms")
    lines = ["".join(f"{head:>15}" for head in heads)]
    for one in document["standings"]:
        name = f"rank {one['rank']}" if "rank" in one else f"link {one['link'][0]}-{one['link'][1]}"
        count = sum(all(alarm.get(key) == one.get(key) for key in ("rank", "link")) for alarm in document["alarms"])
        lines.append(
            f"{name:>15}{one['minibatches']:15d}{one['factor']:15.2f}{one['noise']:15.1%}{one['spikes']:15d}{count:15d}"
        )
    for alarm in document["alarms"]:
        whose = f"rank {alarm['rank']}" if "rank" in alarm else f"link {alarm['link'][0]}-{alarm['link'][1]}"
        lines.append(
            f"{whose}, minibatch {alarm['minibatch']}: {alarm['before']:.2f} to {alarm['factor']:.2f} times as long "
            f"since {alarm['began']}"
        )
    least, most = document["sizes"]
    lines.append(
        f"{document['num_alarms']} alarms in {document['minibatches']} minibatches of {least:.0f} to {most:.0f} "
        f"{document['size_unit']}, {document['seconds']:.0f} s"
    )
    return "\n".join(lines)
