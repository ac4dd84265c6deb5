"""The Ray launcher's own process: a driver of Ray that has an agent on each host, and brings all together.

`python -m sparsepipe.launching.ray --run-dir DIR [--resume] [--address ADDRESS]`, under the supervisor, or under the
parent of several pipelines (ssh/hosted_parent.py), which is such a driver too:

    supervisor ── controller ─┬─ Ray ─ actor ── agent ── workers 0, 1        the rest is as over ssh (ssh/controller.py)
                              └─ Ray ─ actor ── agent ── workers 2, 3

Whichever of them ends, those to its right do: Ray ends a driver's actors with it, and an agent ends with its actor.
"""

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ...records import RunRecord
from ...records.run_progress import num_processes
from ...runtime.config import DEVICES
from ...runtime.processes.lifeline import watch
from ...values.cluster import Cluster
from ...values.plan import Plan
from ..failure_cause import FailureCause
from ..ssh.controller import controlled, of_several, parser_of
from ..ssh.restarting import Restarting
from .connected import connected
from .launch_ray import read_types

if TYPE_CHECKING:  # it brings Ray
    from .nodes import BundlesOfAll

_CPU = DEVICES[0]
_LEAST_TO_PLACE = 60.0  # seconds for Ray to find another node for the ranks of one that was lost


def main(options: Sequence[str]) -> int:
    """Launch the workers of the run that the options name; return the exit code."""
    parser = parser_of("sparsepipe.launching.ray", __doc__)
    parser.add_argument("--address")
    parser.add_argument("--group", help="of one of several pipelines: the id of the placement group of all")
    parser.add_argument("--folder", help="of one of several pipelines: the agents' current one, unless their nodes'")
    arguments = parser.parse_args(options)
    watch()
    launch = _launch if arguments.pipeline is None else _launch_one_of_several
    return controlled(arguments, launch, _place_of_all)


def _launch(record: RunRecord, plan: Plan, arguments: argparse.Namespace) -> FailureCause | None:
    address = arguments.address
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
        return Restarting(record, plan, place, resume=arguments.resume).run()


def _launch_one_of_several(record: RunRecord, plan: Plan, arguments: argparse.Namespace) -> FailureCause | None:
    all_of_them, gpus = Plan.load(record.folder.parents[1] / "plan.json"), record.config["device"] != _CPU
    with connected(arguments.address, num_ranks=len(plan.ranks), gpus=gpus):
        from .nodes import NodesOfPipeline  # these bring Ray, which reads its settings then
        from .placed_ranks import group_of

        to_place = max(_LEAST_TO_PLACE, float(record.config["timeout_seconds"]))
        group = group_of(arguments.group)
        place = NodesOfPipeline(
            all_of_them, arguments.pipeline, group, gpus=gpus, folder=arguments.folder, to_place=to_place
        )
        return of_several(record, plan, place, arguments)


@contextmanager
def _place_of_all(record: RunRecord, arguments: argparse.Namespace) -> "Iterator[BundlesOfAll]":
    """Have a bundle for each rank to the end of the block. Raises InputError if Ray has no room for them."""
    address, gpus = arguments.address, record.config["device"] != _CPU
    types, here = read_types(record.folder, len(record.plan.ranks)), address is None
    with connected(address, num_ranks=len(types), gpus=gpus):
        from .bundles import check_room, labels  # these bring Ray, which reads its settings then
        from .nodes import BundlesOfAll
        from .placed_ranks import address_of_ray, all_nodes, reserved

        types = (None,) * len(types) if here else types  # this one machine is all there is
        check_room(types, all_nodes(), gpus=gpus)
        now = reserved(labels(types), gpus=gpus)
        try:
            yield BundlesOfAll(now.group, address=address_of_ray(), folder=str(Path.cwd()) if here else None)
        finally:
            now.free()
