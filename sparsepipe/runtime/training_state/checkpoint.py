"""Checkpoints keyed by layer, so that a run resumes under another plan, another replication, or in one process.

    checkpoints/minibatch-00000120/stage0.safetensors …   weight:L.p, velocity:L.p, buffer:L.b of each layer L
                                   manifest.json          which file holds which layer, sizes and SHA-256, position

Shards are safetensors files: tensors alone, no pickle. HuggingFaceStorageReader of torch.distributed.checkpoint loads
the folder. The folder gets its name when it is whole; a kill before leaves a hidden one no one reads.

A checkpoint's manifest: which file holds which layer, what the run's minibatches were, and a seal on all of it.

The seal is the SHA-256 of the rest, so that settings edited into it (another seed, another batch size) are noticed.
Manifests written before there was one are read without.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError, safe_open

from ...data.minibatch_sizes import KEEP, sizes
from ...errors import DamagedRecord, InputError
from ...records.record_files import read_fields
from ...util.io.fields import Fields, fields, flag, integer, json_object, maybe, measured, number, real, text, texts
from ...util.io.files import read_json, sha256, write_json
from ...util.io.quantities import SIZE, TIME
from ...util.text.numbers import number_of
from .checkpoint_folders import (
    ASIDE,
    FOLDER,
    GONE,
    MANIFEST,
    PARTIAL,
    WHOLE,
    checkpoint_name,
    folder_of,
    partial_folder,
    put_in_place,
    remove,
)

if TYPE_CHECKING:  # controllers of hosts read positions alone, and do not wait for torch
    from torch import Tensor

_FORMAT = "sparsepipe-checkpoint-1"
_SEAL = "sha256"
_NEEDED = ("minibatches", "layers", "files")
# Of an epoch that the checkpoint is within: what its minibatches add up to.
_SO_FAR = fields(
    {
        "minibatches": lambda value, what: integer(value, what, most=10**15),
        "loss": measured,
        **dict.fromkeys(("counted", "correct", "samples", "sent_bytes"), real),
    }
)


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint on disk."""

    folder: Path
    manifest: Mapping[str, Any]

    @property
    def minibatches(self) -> int:
        """Minibatches trained before it."""
        return int(self.manifest["minibatches"])

    def check(self, *, model: str, layers: Sequence[str]) -> None:
        """Raise InputError if this is a checkpoint of another model."""
        held = self.manifest["layers"]
        if self.manifest["model"] != model:
            raise InputError(
                "checkpoint.other_model",
                f"{self.folder}: is a checkpoint of {self.manifest['model']!r}, but this run trains {model!r}; give "
                "a checkpoint of the same model",
                model=model,
            )
        if missing := [layer for layer in layers if layer not in held]:
            raise InputError(
                "checkpoint.layer_missing",
                f"{self.folder}: has no layer {missing[0]!r} of {model}; the checkpoint is of another model",
                model=model,
            )

    def check_minibatches(self, order: Mapping[str, Any], *, epoch_minibatches: int | None = None) -> None:
        """Raise InputError if this run's minibatches (what `order` says of them) are not those counted here.

        Its position is a number of minibatches, so they have as many samples out of as many in every run that
        continues. Between epochs they may be drawn otherwise; within one, samples would be left out and others met
        twice: that is looked at where `epoch_minibatches` says how many an epoch has.
        """
        self._check_budget(order)
        self._check_last_minibatch(order)
        within = self.minibatches % epoch_minibatches if epoch_minibatches else 0
        drawn = ("seed", "shuffle", "balance", "order", "sampler", "composition") if within else ()
        for name in ("num_classes", "samples", "batch_size", *drawn):
            if name in self.manifest and name in order and order[name] != self.manifest[name]:
                here, there = order[name], self.manifest[name]
                if name == "composition":
                    here, there = _differences(_composition(here), _composition(there))
                place = f", {number_of(within, 'minibatch')} into an epoch" if name in drawn else ""
                raise InputError(
                    "checkpoint.order_differs",
                    f"{{{name}}} is {here}, but {there} in the checkpoint {self.folder}{place}; "
                    "resume with that value, or retrain in another folder",
                    setting=name,
                    name=name,
                )

    def _check_budget(self, order: Mapping[str, object]) -> None:
        """Raise InputError if minibatches had another budget: an epoch had another number of them."""
        if "composition" not in order:
            return
        here, there = (_composition(text) for text in (order["composition"], self.manifest.get("composition")))
        if here.get("budget") != there.get("budget"):
            raise InputError(
                "checkpoint.budget_differs",
                f"{self.folder}: the checkpoint's minibatch budget is {_budget_text(there)}, but this run's is "
                f"{_budget_text(here)}; resume with that value, or retrain in another folder",
                setting=dict.fromkeys(("batch_seconds", "batch_bytes")),
            )

    def _check_last_minibatch(self, order: Mapping[str, Any]) -> None:
        """Raise InputError if an epoch had another number of minibatches: its position would be elsewhere."""
        last, before = order.get("last_minibatch"), self.manifest.get("last_minibatch", KEEP)
        samples, batch_size = self.manifest.get("samples"), self.manifest.get("batch_size")
        if last is None or last == before or samples is None or batch_size is None:
            return
        here, there = (len(sizes(samples, batch_size, last=how)) for how in (last, before))
        if here != there:
            raise InputError(
                "checkpoint.last_minibatch_differs",
                f"{{last_minibatch}} is {last!r}, but {before!r} in the checkpoint {self.folder}: an epoch would "
                f"have {number_of(here, 'minibatch')}, not {there}; resume with {before}, or retrain in another "
                "folder",
                setting="last_minibatch",
            )

    def check_shapes(self, found: "Mapping[str, Tensor]", own: "Mapping[str, Tensor]") -> None:
        """Raise InputError unless the tensors `found` here have the shapes of this run's `own`, name by name."""
        for key, tensor in own.items():
            here, there = tuple(tensor.shape), tuple(found[key].shape) if key in found else None
            if here != there:
                raise InputError(
                    "checkpoint.shapes_differ",
                    f"{self.folder}: {key.replace(':', ' ', 1)} has shape {there}, but this run expects {here}; "
                    "resume with the original voxel features, or retrain in another folder",
                )

    def read(self, layers: Sequence[str]) -> "dict[str, Tensor]":
        """Return the tensors of `layers` by name. Raises InputError if a file is missing or not what was written."""
        wanted, places = set(layers), self.manifest["layers"]
        if missing := [layer for layer in layers if layer not in places]:
            raise InputError(
                "checkpoint.layer_missing",
                f"{self.folder}: has no layer {missing[0]!r}; the checkpoint is of another model",
            )
        tensors: dict[str, Tensor] = {}
        for name in sorted({places[layer] for layer in layers} & self.manifest["files"].keys()):
            path = self.folder / name
            self._verify(path)
            try:
                with safe_open(path, framework="pt") as shard:
                    for key in shard.keys():  # noqa: SIM118 - not a dict
                        if belongs(key, wanted, layers=places):
                            tensors[key] = shard.get_tensor(key)
            except (OSError, SafetensorError) as error:
                raise InputError(
                    "checkpoint.shard_unreadable",
                    f"{path}: this shard of the checkpoint cannot be read ({error}); resume from another run",
                ) from None
        return tensors

    def _verify(self, path: Path) -> None:
        facts = self.manifest["files"][path.name]
        if not path.exists():
            raise InputError(
                "checkpoint.shard_missing",
                f"{path}: this shard of the checkpoint is missing; restore it, or remove {self.folder.name}",
            )
        if not path.is_file() or path.stat().st_size != facts["bytes"] or sha256(path) != facts["sha256"]:
            raise InputError(
                "checkpoint.shard_differs",
                f"{path}: the shard has changed (SHA-256 differs); remove {self.folder.name}",
            )


def _composition(text: object) -> dict[str, Any]:
    """Return what minibatches were composed for, and the settings that decided it, by name; empty without a launch."""
    decided = json_object(text, "composition") if isinstance(text, str) else {}
    asked = decided.pop("asked", None)
    return decided | (asked if isinstance(asked, dict) else {})


def _budget_text(composition: Mapping[str, Any]) -> str:
    """Return a budget with its unit and the setting that it follows from: "5,120 voxels by {batch_seconds} 100 ms"."""
    if not composition.get("budget"):
        return "none"
    text = f"{composition['budget']:,.6g} {composition.get('unit', '')}".strip()
    derived = (("batch_seconds", TIME), ("batch_bytes", SIZE))
    told = [f"by {{{name}}} {unit.shown(composition[name])}" for name, unit in derived if composition.get(name)]
    return " ".join([text, *told])


def _differences(here: Mapping[str, Any], there: Mapping[str, Any]) -> tuple[str, str]:
    """Return the settings of two compositions that differ; of a list the largest number."""
    names = [name for name in {**here, **there} if here.get(name) != there.get(name)]

    def listed(composition: Mapping[str, Any]) -> str:
        values = ((name, composition.get(name)) for name in names)
        return ", ".join(
            f"{name} up to {np.max(value):g}" if isinstance(value, list) and value else f"{name} {value}"
            for name, value in values
        )

    return listed(here), listed(there)


def latest(run_dir: Path) -> Checkpoint | None:
    """Return the newest whole checkpoint of a run, None if there is none yet."""
    return next(newest_first(run_dir), None)


def newest_first(run_dir: Path) -> Iterator[Checkpoint]:
    """Open the whole checkpoints of a run, one after the other. Raises InputError for one that is damaged."""
    place = run_dir / FOLDER
    # One set aside whose place is empty is whole: a kill kept its successor from coming.
    there = [*place.glob(PARTIAL + ASIDE), *place.glob(WHOLE)]
    found = {checkpoint_name(folder): folder for folder in there}
    for name in sorted(found, key=_position, reverse=True):
        yield load(found[name])


def load(folder: Path) -> Checkpoint:
    """Open a checkpoint. Raises InputError if the folder is none, or its manifest is damaged."""
    return Checkpoint(folder, read_manifest(folder))


def _position(name: str) -> tuple[int, str]:
    """Order folders by their number: one of nine digits sorts before one of eight as text."""
    return len(name), name


def begin(run_dir: Path, minibatches: int) -> None:
    """Make room for the shards; what an earlier attempt left is removed. One rank calls it."""
    folder = partial_folder(run_dir, minibatches)
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(exist_ok=True)  # not the run's own folder, which is there unless somebody took it away
    folder.mkdir()


def write_shard(run_dir: Path, minibatches: int, name: str, tensors: "Mapping[str, Tensor]") -> None:
    """Write the layers of one stage; a stage without tensors has no file. One replica of each stage calls it."""
    from safetensors.torch import save

    path = partial_folder(run_dir, minibatches) / f"{name}.safetensors"
    files = {}
    if tensors:
        held = {key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}
        with path.open("wb") as file:
            file.write(save(held, metadata={"format": "pt"}))
            file.flush()
            os.fsync(file.fileno())
        files[path.name] = {"bytes": path.stat().st_size, "sha256": sha256(path)}
    write_json(path.with_suffix(".json"), files, make_folder=False)


def finish(
    run_dir: Path, minibatches: int, *, keep: int, layers: Mapping[str, str], best: int | None = None, **facts: Any
) -> Path:
    """Make the checkpoint whole, once all shards exist, and remove others as `prune` does. One rank calls it.

    `layers` names the shard of every layer, those without tensors included.
    """
    partial = partial_folder(run_dir, minibatches)
    files: dict[str, dict[str, Any]] = {}
    for path in sorted(partial.glob("*.json")):
        files |= read_json(path)
        path.unlink()
    write_manifest(partial, {"minibatches": minibatches, **facts, "layers": dict(layers), "files": files})
    folder = folder_of(run_dir, minibatches)
    put_in_place(partial, folder)  # a run that resumed comes by here a second time
    prune(run_dir, keep, best=best)
    return folder


def prune(run_dir: Path, keep: int, *, best: int | None = None) -> None:
    """Remove all checkpoints but the newest `keep` and the one after `best` minibatches.

    One rank calls it, while none is being written.
    """
    place = run_dir / FOLDER
    for old in sorted(place.glob(WHOLE), key=lambda path: _position(path.name))[:-keep]:
        if best is None or old != folder_of(run_dir, best):
            remove(old)
    for old in place.glob(PARTIAL + ASIDE):
        remove(old)
    for left in place.glob(PARTIAL + GONE):
        shutil.rmtree(left, ignore_errors=True)


def discard(run_dir: Path, minibatches: int) -> None:
    """Remove one checkpoint, whose weights turned out to be of no use. One rank calls it."""
    remove(folder_of(run_dir, minibatches))


def without_prefix(tensors: "Mapping[str, Tensor]", prefix: str) -> "dict[str, Tensor]":
    """Return the tensors whose name starts with `prefix`, without it."""
    return {key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)}


def belongs(key: str, wanted: Collection[str], *, layers: Collection[str]) -> bool:
    """Return whether a tensor, named as in a checkpoint, is one of the layers `wanted`, of all `layers` of the network.

    Of a traced network some names say other layers: those of layers made one ("norm" has "other.weight", too), which
    name none, and what is not trained of a module that is called again: "norm-2" holds "norm.running_mean".
    """
    layer = _layer(key, layers)
    return layer in wanted or layer not in layers or any(each.rpartition("-")[0] == layer for each in wanted)


def _layer(key: str, layers: Collection[str]) -> str:
    """Return the layer that a tensor belongs to: the longest id that its name is, or begins with before a dot."""
    name = key.split(":", 1)[1]
    while name not in layers and "." in name:
        name = name.rpartition(".")[0]
    return name


def as_tensor_map(
    weights: "Mapping[str, Tensor]", state: "Mapping[str, Tensor]", buffers: "Mapping[str, Tensor]"
) -> "dict[str, Tensor]":
    """Name a stage's tensors as checkpoints do."""
    named = {f"weight:{name}": tensor for name, tensor in weights.items()} | dict(state)
    return named | {f"buffer:{name}": buffer for name, buffer in buffers.items()}


def _digest(value: object, what: str) -> str:
    digest = text(value, what)
    if len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
        raise InputError(
            "manifest.digest_malformed", f"{what} is {digest[:70]!r}, expected a SHA-256 of 64 hexadecimal digits"
        )
    return digest


def _file_name(value: object, what: str) -> str:
    name = text(value, what)
    if Path(name).name != name or "\0" in name:
        raise InputError(
            "manifest.name_malformed", f"{what} is {name[:70]!r}, expected the name of a file in the manifest's folder"
        )
    return name


def _files(value: object, what: str) -> Fields:
    for name in fields({})(value, what):
        _file_name(name, f"{what}: a file's name")
    facts = fields({"bytes": lambda size, where: integer(size, where, most=2**63), "sha256": _digest})
    return fields({}, others=facts)(value, what)


def _loss_scale(value: object, what: str) -> Fields:
    found = fields({"factor": number, "good_steps": integer, "interval": integer})(value, what)
    if unknown := found.keys() - {"factor", "good_steps", "interval"}:
        raise InputError("manifest.key_unknown", f"{what}: has the unknown {sorted(unknown)[0]!r}; remove it")
    return found


_FACTS = fields(
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
        "order": text,
        "composition": maybe(text),
        "epoch_minibatches": lambda value, what: integer(value, what, least=1, most=10**15),
        "loss_scale": maybe(_loss_scale),
        "epoch_so_far": maybe(_SO_FAR),
        "tied_names": fields({}, others=text),
        "unsaved_buffers": texts,
        _SEAL: _digest,
    }
)


def write_manifest(folder: Path, facts: Mapping[str, Any]) -> Path:
    """Write the manifest of a checkpoint's folder, sealed."""
    facts = {"format": _FORMAT, **facts}
    return write_json(folder / MANIFEST, {**facts, _SEAL: _seal(facts)}, make_folder=False)


def read_manifest(folder: Path) -> Fields:
    """Read the manifest of a checkpoint's folder.

    Raises InputError that names the file if it is missing, damaged, or not what was written.
    """
    path = folder / MANIFEST
    aside = f"remove {folder} to resume from the checkpoint before it"
    try:
        found = read_fields(path, fields({}), what="checkpoint's manifest")
        if found.get("format") != _FORMAT:
            raise InputError(
                "checkpoint.foreign", f"{folder}: not a checkpoint of sparsepipe ({path.name} has an unknown format)"
            )
        found = _FACTS(dict(found), str(path))
        for name in _NEEDED:
            found[name]  # one that is missing is told
    except DamagedRecord as error:
        raise error.within(after=f"; {aside}") from None
    if _SEAL in found and found[_SEAL] != _seal({key: value for key, value in found.items() if key != _SEAL}):
        raise InputError("checkpoint.manifest_differs", f"{path}: the manifest has changed (SHA-256 differs); {aside}")
    return found


def _seal(facts: Mapping[str, Any]) -> str:
    """The SHA-256 of facts, whatever the order and the spaces in which a file has them."""
    written = json.dumps(facts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(written.encode()).hexdigest()
