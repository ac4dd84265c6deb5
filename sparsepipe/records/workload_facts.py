"""What a workload is, as a row of facts: what a run does, by the engine that its settings name.

Records, launchers and workers ask a fact, never a name. How a workload is opened: runtime/workloads/__init__.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ..values.trace import Source


@dataclass(frozen=True)
class WorkloadFacts:
    """Facts of a workload for other rooms than the runtime."""

    name: str
    trains: bool = True  # else there is nothing to validate, and nothing to keep in checkpoints
    source: Source = "measured"  # of its traces


LEARNING = WorkloadFacts("learning")
REPLAY = WorkloadFacts("replay", trains=False, source="emulated")

_BY_ENGINE: Mapping[str, WorkloadFacts] = {"replay": REPLAY}  # those that bring what runs their layers


def workload_facts(engine: str) -> WorkloadFacts:
    """The workload of runs with an engine: its own if it has one, else learning, which any engine can run."""
    return _BY_ENGINE.get(engine, LEARNING)
