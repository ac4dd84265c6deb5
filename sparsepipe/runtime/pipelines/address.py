"""Where the coordinator of a run listens: `control/coordinator.json`."""

from dataclasses import dataclass
from pathlib import Path

from ...io.fields import integer
from ..processes.address_file import read_address, write_address

ADDRESS = Path("control") / "coordinator.json"


@dataclass(frozen=True)
class CoordinatorAddress:
    """What the file says."""

    host: str
    port: int
    secret: bytes
    num_pipelines: int

    @classmethod
    def read(cls, run_dir: Path) -> "CoordinatorAddress":
        """Read it. Raises InputError where it is not there yet, or damaged."""
        told = read_address(run_dir / ADDRESS, what="coordinator's address", pipelines=_pipelines)
        return cls(told["host"], told["port"], told["secret"], told["pipelines"])

    def write(self, run_dir: Path) -> None:
        """Write it for the ranks of all pipelines."""
        write_address(run_dir / ADDRESS, self.host, self.port, self.secret, pipelines=self.num_pipelines)


def _pipelines(value: object, what: str) -> int:
    return integer(value, what, least=1)
