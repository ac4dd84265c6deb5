"""The ssh launcher's own process for several pipelines, on the launching host: their parent (hosted_parent.py).

`python -m sparsepipe.launchers.ssh.pipelines --run-dir RUN [--resume]`, under the supervisor.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ...cluster import Cluster
from ...plan import Plan
from ...record import RunRecord
from ...runtime.processes.lifeline import watch
from .connection import OverSsh
from .controller import back_over_ssh
from .hosted_parent import parser_of_parent, run_all
from .placement import HOSTS, HostedRanks, hosts_of_all


class HostsOfAll:
    """The hosts of a cluster, reached by `ssh`: a place of all pipelines (hosted_parent.py)."""

    controller: Sequence[str] = ("sparsepipe.launchers.ssh",)
    reach = OverSsh()

    def __init__(self, plan: Plan, cluster: Cluster) -> None:
        """Raises InputError where the cluster has no hosts for the plan."""
        self._hosts = hosts_of_all(plan, cluster)

    def hosts(self) -> tuple[HostedRanks, ...]:
        return self._hosts

    def back(self, lost: Sequence[HostedRanks]) -> str | None:
        return back_over_ssh(lost)


@contextmanager
def _place(record: RunRecord, plan: Plan) -> Iterator[HostsOfAll]:
    yield HostsOfAll(plan, Cluster.load(record.folder / HOSTS))


def main() -> int:
    arguments = parser_of_parent("sparsepipe.launchers.ssh.pipelines", __doc__).parse_args()
    watch()
    return run_all(arguments.run_dir, _place, resume=arguments.resume)


if __name__ == "__main__":
    sys.exit(main())
