"""Whether a machine has the memory that a plan asks for: before a running job goes on under it."""

from collections.abc import Collection
from pathlib import Path

from ..errors import InputError
from ..host.memory import available_bytes
from ..plan import Plan
from ..workload_facts import workload_facts
from .config import RunConfig


def check_memory(run_dir: Path, plan: Plan, config: RunConfig, *, ranks: Collection[int]) -> None:
    """Raise InputError where the plan says that `ranks` need more memory than this machine has for the job.

    They are those of the job at work in `run_dir`, on this machine; where none of them is here, nothing is known.
    """
    if plan.estimate is None or config.device != "cpu" or not workload_facts(config.engine).trains:
        return
    held = _held(run_dir)
    if held is None:
        return
    positions = ((one.memory_bytes, plan.stages[one.stages[0]].ranks) for one in plan.position_estimates)
    needed = sum(memory_bytes * len(set(ranks) & set(own)) for memory_bytes, own in positions)
    room = available_bytes() + held
    if needed > room:
        raise InputError(
            f"the plan needs {needed / 1e9:.1f} GB, and {room / 1e9:.1f} GB are there for this job; plan with less "
            "memory for each device"
        )


def _held(run_dir: Path) -> float | None:
    """Return the bytes that the job's workers here hold now, which the plan takes over; None where none is here."""
    found: list[int] = []
    for path in (run_dir / "logs").glob("rank*.pid"):
        try:
            rows = Path(f"/proc/{int(path.read_text())}/status").read_text().splitlines()
            found += [int(row.split()[1]) * 1024 for row in rows if row.startswith("RssAnon:")]
        except (OSError, ValueError):
            continue  # it is about to start, or this is another system
    return float(sum(found)) if found else None
