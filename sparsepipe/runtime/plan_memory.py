"""Whether a machine has the memory that a plan asks for: before a job begins, or continues, under it."""

from collections.abc import Collection, Sequence
from pathlib import Path

from ..errors import InputError
from ..util.host.memory import available_bytes
from ..values.plan import Plan
from .config import RunConfig


def bytes_by_place(plan: Plan) -> tuple[float, ...] | None:
    """Return the bytes that a rank at each of the plan's `positions` needs; None if it has no estimate."""
    return tuple(one.memory_bytes for one in plan.position_estimates) if plan.estimate else None


def needed_bytes(plan: Plan, by_place: Sequence[float], ranks: Collection[int]) -> float:
    """Return the bytes that `ranks` need together. Raises InputError if there is not a number for each place."""
    if len(by_place) != len(plan.positions):
        raise InputError("memory.place_count", f"bytes of {len(by_place)} places, the plan has {len(plan.positions)}")
    places = zip(by_place, plan.positions, strict=True)
    return sum(each * len(set(ranks) & set(plan.stages[own[0]].ranks)) for each, own in places)


def check_memory(needed: float, config: RunConfig, *, held: float = 0.0) -> None:
    """Raise InputError if ranks of a job need more memory than this machine, on which they are, has for them.

    `held`: the bytes that the job has here now, which are those of its ranks. Of GPUs nothing is known here.
    """
    if config.device != "cpu" or not config.workload.trains:
        return
    room = available_bytes() + held
    if needed > room:
        raise InputError(
            "memory.too_little",
            f"the plan needs {needed / 1e9:.1f} GB, and {room / 1e9:.1f} GB are there for this job; plan with less "
            "memory for each device",
        )


def held_bytes(run_dir: Path) -> float | None:
    """Return the bytes that the workers here of the job at work in `run_dir` hold now; None if there are none here."""
    found: list[int] = []
    for path in (run_dir / "logs").glob("rank*.pid"):
        try:
            rows = Path(f"/proc/{int(path.read_text())}/status").read_text().splitlines()
            found += [int(row.split()[1]) * 1024 for row in rows if row.startswith("RssAnon:")]
        except (OSError, ValueError):
            continue  # it is about to start, or this is another system
    return float(sum(found)) if found else None
