"""Where a job's store listens, and its secret: a file in the run's folder of each host, for its owner to read."""

import json
from dataclasses import dataclass
from pathlib import Path

from ...errors import InputError
from ...fields import fields, integer, text
from ...files import read_json, write_atomic

ADDRESS = Path("control") / "store.json"
_FIELDS = fields({"host": text, "port": lambda value, what: integer(value, what, least=1, most=65535), "secret": text})


@dataclass(frozen=True)
class StoreAddress:
    """What `control/store.json` says."""

    host: str
    port: int
    secret: bytes

    @classmethod
    def read(cls, run_dir: Path) -> "StoreAddress":
        """Read it. Raises InputError where it is not there, or damaged."""
        path = run_dir / ADDRESS
        told = _FIELDS(read_json(path, what="store's address"), str(path))
        try:
            return cls(told["host"], told["port"], bytes.fromhex(told["secret"]))
        except ValueError:
            raise InputError(f"{path}: its secret is damaged") from None

    def write(self, run_dir: Path) -> None:
        """Write it for the workers of this host."""
        told = {"host": self.host, "port": self.port, "secret": self.secret.hex()}
        write_atomic(run_dir / ADDRESS, json.dumps(told) + "\n", private=True)
