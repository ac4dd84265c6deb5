"""Where one process of a job listens, and the job's secret: a file in the run's folder, for its owner alone to read."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...io.fields import Check, fields, integer, text
from ...io.files import read_json, write_atomic

_FIELDS: Mapping[str, Check] = {
    "host": text,
    "port": lambda value, what: integer(value, what, least=1, most=65535),
    "secret": text,
}


def read_address(path: Path, *, what: str, **more: Check) -> dict[str, Any]:
    """Return the host, port and secret (bytes) of a file, and the fields `more`, each as its check returns it.

    Raises InputError where the file is not there yet, lacks one of them, or is damaged.
    """
    checks = {**_FIELDS, **more}
    told = fields(checks)(read_json(path, what=what), str(path))
    found = {name: told[name] for name in checks}
    try:
        return {**found, "secret": bytes.fromhex(found["secret"])}
    except ValueError:
        raise InputError("address.secret_damaged", f"{path}: its secret is damaged") from None


def write_address(path: Path, host: str, port: int, secret: bytes, *, make_folder: bool = False, **more: Any) -> None:
    """Write what `read_address` reads. Without `make_folder` its folder must be there."""
    told = {"host": host, "port": port, "secret": secret.hex(), **more}
    write_atomic(path, json.dumps(told) + "\n", make_folder=make_folder, private=True)
