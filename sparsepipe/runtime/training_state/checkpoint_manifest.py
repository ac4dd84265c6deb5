"""A checkpoint's manifest: which file holds which layer, what the run's minibatches were, and a seal on all of it.

The seal is the SHA-256 of the rest, so that settings edited into it (another seed, another batch size) are noticed.
Manifests written before there was one are read without.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import DamagedRecord, InputError
from ...io.fields import Fields, fields, flag, integer, maybe, measured, number, real, text
from ...io.files import write_json
from ...record.record_files import read_fields

NAME = "manifest.json"
_FORMAT = "sparsepipe-checkpoint-1"
_SEAL = "sha256"
_NEEDED = ("minibatches", "layers", "files")


def _digest(value: Any, what: str) -> str:
    if len(text(value, what)) != 64 or not set(value) <= set("0123456789abcdef"):
        raise InputError(f"{what} = {value[:70]!r}: expected a SHA-256 of 64 hexadecimal digits")
    return value


def _file_name(value: Any, what: str) -> str:
    if Path(text(value, what)).name != value or "\0" in value:
        raise InputError(f"{what} = {value[:70]!r}: expected the name of a file beside the manifest")
    return value


def _files(value: Any, what: str) -> Fields:
    for name in fields({})(value, what):
        _file_name(name, f"{what}: a file's name")
    facts = fields({"bytes": lambda size, where: integer(size, where, most=2**63), "sha256": _digest})
    return fields({}, others=facts)(value, what)


def _loss_scale(value: Any, what: str) -> Fields:
    found = fields({"factor": number, "good_steps": integer, "interval": integer})(value, what)
    if unknown := found.keys() - {"factor", "good_steps", "interval"}:
        raise InputError(f"{what}: unknown {sorted(unknown)[0]!r}")
    return found


# Of an epoch that the checkpoint is within: what its minibatches add up to.
_SO_FAR = fields(
    {
        "minibatches": lambda value, what: integer(value, what, most=10**15),
        "loss": measured,
        **dict.fromkeys(("counted", "correct", "samples", "sent_bytes"), real),
    }
)
_MANIFEST = fields(
    {
        "minibatches": lambda value, what: integer(value, what, most=10**15),
        "layers": fields({}, others=_file_name),
        "files": _files,
        "model": text,
        "optimizer": text,
        "num_classes": integer,
        "samples": integer,
        "batch_size": lambda value, what: integer(value, what, least=1, most=10**15),
        "seed": lambda value, what: integer(value, what, most=2**64),
        "shuffle": flag,
        "balance": maybe(text),
        "loss_scale": maybe(_loss_scale),
        "epoch_so_far": maybe(_SO_FAR),
        _SEAL: _digest,
    }
)


def write_manifest(folder: Path, facts: Mapping[str, Any]) -> Path:
    """Write the manifest of a checkpoint's folder, sealed."""
    facts = {"format": _FORMAT, **facts}
    return write_json(folder / NAME, {**facts, _SEAL: _seal(facts)}, make_folder=False)


def read_manifest(folder: Path) -> Fields:
    """Read the manifest of a checkpoint's folder.

    Raises InputError that names the file where it is missing, damaged, or not what was written.
    """
    path = folder / NAME
    aside = f"remove {folder} to resume from the checkpoint before it"
    try:
        found = read_fields(path, fields({}), what="checkpoint's manifest")
        if found.get("format") != _FORMAT:
            raise InputError(f"{folder}: not a checkpoint of this project ({path.name} is of another format)")
        found = _MANIFEST(dict(found), str(path))
        for name in _NEEDED:
            found[name]  # one that is missing is told
    except DamagedRecord as error:
        raise InputError(f"{error}; {aside}") from None
    if _SEAL in found and found[_SEAL] != _seal({key: value for key, value in found.items() if key != _SEAL}):
        raise InputError(f"{path}: not the manifest that was written (SHA-256 differs); {aside}")
    return found


def _seal(facts: Mapping[str, Any]) -> str:
    """The SHA-256 of facts, whatever the order and the spaces in which a file has them."""
    written = json.dumps(facts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(written.encode()).hexdigest()
