"""The Ray launcher's own process: a driver of Ray that has an agent on each host, and brings all together.

`python -m sparsepipe.launchers.ray --run-dir DIR [--resume] [--address ADDRESS]`, under the supervisor:

    supervisor ── controller ─┬─ Ray ─ actor ── agent ── workers 0, 1        the rest is as over ssh (ssh/controller.py)
                              └─ Ray ─ actor ── agent ── workers 2, 3

Whichever of them ends, those to its right do: Ray ends a driver's actors with it, and an agent ends with its actor.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from ...cluster import Cluster
from ...plan import Plan
from ...record import RunRecord
from ...record.processes import num_processes
from ...runtime.config import DEVICES
from ...runtime.processes.lifeline import watch
from ..failure_cause import FailureCause
from ..ssh.controller import controlled
from ..ssh.restarting import Restarting
from .connected import connected
from .device_types import read_types

_CPU = DEVICES[0]


def main(options: Sequence[str]) -> int:
    """Launch the workers of the run that the options name; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m sparsepipe.launchers.ray", description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--address")
    arguments = parser.parse_args(options)
    watch()
    return controlled(
        arguments.run_dir,
        lambda record, plan: _launch(record, plan, address=arguments.address, resume=arguments.resume),
    )


def _launch(record: RunRecord, plan: Plan, *, address: str | None, resume: bool) -> FailureCause | None:
    types, gpus = read_types(record.folder, num_processes(record.folder, plan)), record.config["device"] != _CPU
    here, known = address is None, record.folder / "cluster.toml"
    with connected(address, num_ranks=len(types), gpus=gpus):
        from .nodes import NodesOfRay  # it brings Ray, which reads its settings then

        place = NodesOfRay(
            (None,) * len(types) if here else types,  # this one machine is all there is
            planned_for=Cluster.load(known) if known.exists() else None,
            gpus=gpus,
            folder=str(Path.cwd()) if here else None,
        )
        return Restarting(record, plan, place, resume=resume).run()
