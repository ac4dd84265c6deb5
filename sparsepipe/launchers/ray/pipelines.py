"""The Ray launcher's own process for several pipelines: their parent (ssh/hosted_parent.py), and a driver of Ray.

`python -m sparsepipe.launchers.ray.pipelines --run-dir RUN [--resume] [--address ADDRESS]`, under the supervisor.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ...plan import Plan
from ...record import RunRecord
from ...runtime.config import DEVICES
from ...runtime.processes.lifeline import watch
from ..ssh.hosted_parent import parser_of_parent, run_all
from .connected import connected
from .device_types import read_types

if TYPE_CHECKING:  # it brings Ray
    from .nodes_of_pipelines import BundlesOfAll

_CPU = DEVICES[0]


def main() -> int:
    parser = parser_of_parent("sparsepipe.launchers.ray.pipelines", __doc__)
    parser.add_argument("--address")
    arguments = parser.parse_args()
    watch()
    place = partial(_place, address=arguments.address)
    return run_all(arguments.run_dir, place, resume=arguments.resume)


@contextmanager
def _place(record: RunRecord, plan: Plan, *, address: str | None) -> "Iterator[BundlesOfAll]":
    """Have a bundle for each rank to the end of the block. Raises InputError where Ray has no room for them."""
    types, gpus = read_types(record.folder, len(plan.ranks)), record.config["device"] != _CPU
    here = address is None
    with connected(address, num_ranks=len(types), gpus=gpus):
        from .bundles import check_room, labels  # these bring Ray, which reads its settings then
        from .nodes_of_pipelines import BundlesOfAll
        from .placed_ranks import address_of_ray, all_nodes, reserved

        types = (None,) * len(types) if here else types  # this one machine is all there is
        check_room(types, all_nodes(), gpus=gpus)
        now = reserved(labels(types), gpus=gpus)
        try:
            yield BundlesOfAll(now.group, address=address_of_ray(), folder=str(Path.cwd()) if here else None)
        finally:
            now.free()


if __name__ == "__main__":
    sys.exit(main())
