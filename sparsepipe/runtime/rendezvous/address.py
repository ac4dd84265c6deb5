"""Where a job's store listens: `control/store.json` in the run's folder of each host."""

from dataclasses import dataclass
from pathlib import Path

from ..processes.address_file import read_address, write_address

ADDRESS = Path("control") / "store.json"


@dataclass(frozen=True)
class StoreAddress:
    """What the file says."""

    host: str
    port: int
    secret: bytes

    @classmethod
    def read(cls, run_dir: Path) -> "StoreAddress":
        """Read it. Raises InputError where it is not there, or damaged."""
        return cls(**read_address(run_dir / ADDRESS, what="store's address"))

    def write(self, run_dir: Path) -> None:
        """Write it for the workers of this host."""
        write_address(run_dir / ADDRESS, self.host, self.port, self.secret, make_folder=True)
