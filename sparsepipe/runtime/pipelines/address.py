"""Where the coordinator of a run listens, and the job's secret: a file in the run's folder, for its owner to read."""

from dataclasses import dataclass
from pathlib import Path

from ...errors import InputError
from ...fields import fields, integer, text
from ...files import read_json

ADDRESS = Path("control") / "coordinator.json"
_FIELDS = fields(
    {
        "host": text,
        "port": lambda value, what: integer(value, what, least=1, most=65535),
        "secret": text,
        "pipelines": lambda value, what: integer(value, what, least=1),
    }
)


@dataclass(frozen=True)
class CoordinatorAddress:
    """What `control/coordinator.json` says."""

    host: str
    port: int
    secret: bytes
    num_pipelines: int

    @classmethod
    def read(cls, run_dir: Path) -> "CoordinatorAddress":
        """Read it. Raises InputError where it is not there yet, or damaged."""
        path = run_dir / ADDRESS
        told = _FIELDS(read_json(path, what="coordinator's address"), str(path))
        try:
            return cls(told["host"], told["port"], bytes.fromhex(told["secret"]), told["pipelines"])
        except ValueError:
            raise InputError(f"{path}: its secret is damaged") from None
