"""Where a process of a job listens, and its secret: a file in the run's folder, for its owner alone to read."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ...errors import InputError
from ...util.io.fields import Check, fields, integer, text
from ...util.io.files import read_json, write_atomic

COORDINATOR = Path("control") / "coordinator.json"  # in a run's folder
STORE = Path("control") / "store.json"  # in that of a host
_FIELDS: Mapping[str, Check] = {
    "host": text,
    "port": lambda value, what: integer(value, what, least=1, most=65535),
    "secret": text,
    "pipelines": lambda value, what: integer(value, what, least=1),
}


@dataclass(frozen=True)
class ListenerAddress:
    """What the file says."""

    host: str
    port: int
    secret: bytes
    num_pipelines: int = 1  # of the run

    @classmethod
    def read(cls, path: Path) -> "ListenerAddress":
        """Read it. Raises InputError if it does not exist yet, lacks a field, or is damaged."""
        told = fields(_FIELDS)(read_json(path, what="address"), str(path))
        try:
            return cls(told["host"], told["port"], bytes.fromhex(told["secret"]), told["pipelines"])
        except ValueError:
            raise InputError("address.secret_damaged", f"{path}: its secret is damaged") from None

    def write(self, path: Path, *, make_folder: bool = False) -> None:
        """Write it. Without `make_folder` its folder must be there."""
        told = {"host": self.host, "port": self.port, "secret": self.secret.hex(), "pipelines": self.num_pipelines}
        write_atomic(path, json.dumps(told) + "\n", make_folder=make_folder, private=True)
