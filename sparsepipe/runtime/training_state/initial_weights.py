"""Weights that a run starts from, and those that it exports: files of tensors by the names of the user's module.

    FILE ── read_state ─► RUN/initial.safetensors ── Match.of ─► which tensors of the file each stage takes

Only the launch reads a file of torch.save; workers read safetensors.

A run's checkpoints name tensors by kind (`weight:NAME`); `exported_state` has them by name alone, as torch does.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save
from torch import Tensor, nn

from ...engines import Engine, from_pointcept
from ...errors import InputError
from ...networks import Network
from ...networks.base import AnyNetwork
from ...util.io.fields import complaint
from ...util.io.files import write_atomic, write_json
from ...util.text.numbers import number_of
from . import checkpoint
from .checkpoint_folders import INITIAL, MANIFEST
from .weights import validated_weights

REPORT = "initial.json"  # in a run's folder
_NESTED = ("state_dict", "model_state_dict", "model", "module", "network", "net", "weights")  # of a file's dictionary
_PREFIXES = ("module", "_orig_mod", "model", "network", "net", "backbone", "encoder")
_SHOWN = 4  # names in a line
_SCALAR: Any = np.float64().__reduce__()[0]
_SCALARS: list[Any] = [  # NumPy's numbers beside the weights, such as the best score in Pointcept's checkpoints
    *((_SCALAR, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")),
    np.dtype,
    *(type(np.dtype(kind)) for kind in (np.float64, np.float32, np.int64)),
]


@dataclass(frozen=True)
class StateNames:
    """The tensors of a network's state_dict.

    Args:
        shapes: Each name with its shape.
        tied: Second names of one tensor, with the first.
        unsaved: Buffers that are not in the state_dict.
    """

    shapes: Mapping[str, tuple[int, ...]]
    tied: Mapping[str, str]
    unsaved: tuple[str, ...]

    @classmethod
    def of(cls, module: nn.Module) -> "StateNames":
        """Return the names of a module."""
        state = module.state_dict(keep_vars=True)
        tensors = {name: tensor for name, tensor in state.items() if isinstance(tensor, Tensor)}
        first: dict[int, str] = {}
        tied = {
            name: first_name
            for name, each in tensors.items()
            if (first_name := first.setdefault(id(each), name)) != name
        }
        unsaved = tuple(name for name, _ in module.named_buffers(remove_duplicate=False) if name not in state)
        return cls({name: tuple(tensor.shape) for name, tensor in tensors.items()}, tied, unsaved)

    @classmethod
    def of_network(cls, network: AnyNetwork, engine: Engine) -> "StateNames":
        """Return the names of a network, whose layers the engine makes unless it is a torch module."""
        if isinstance(network, Network):
            layers = nn.ModuleDict({row.id: engine.layer(row) for row in network.rows})
            return cls.of(layers)
        from ...networks.traced.subnetwork import TracedNetwork  # here: tables need none of it

        assert isinstance(network, TracedNetwork)
        return cls.of(network.module)

    def to_json(self) -> dict[str, object]:
        """Return what a checkpoint's manifest says of them: nothing of most networks."""
        facts = {"tied_names": dict(self.tied), "unsaved_buffers": list(self.unsaved)}
        return {name: value for name, value in facts.items() if value}

    def names_of(self, name: str) -> list[str]:
        """Return all names of the tensor that has this one, which comes first."""
        first = self.tied.get(name, name)
        return list(dict.fromkeys([name, first, *(other for other, target in self.tied.items() if target == first)]))


@dataclass(frozen=True)
class Match:
    """The match of a network's tensors with those of a file, by their names.

    Args:
        source: Name in the network → name in the file.
        drawn: Names in the network that start as the seed draws them.
        unused: Names in the file that the network has no place for.
        shapes: Those of another shape, with (shape in the file, shape in the network); they are kept, too.
        stripped, added: The prefix that names in the file lost, and the one that they got.
    """

    source: Mapping[str, str]
    drawn: tuple[str, ...]
    unused: tuple[str, ...]
    shapes: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]
    stripped: str = ""
    added: str = ""

    @classmethod
    def of(
        cls, file: Mapping[str, tuple[int, ...]], network: StateNames, *, where: Path | str, allow_shape: bool = False
    ) -> "Match":
        """Match names, with a prefix stripped or added if more of them match then.

        Args:
            file: The names in the file, with their shapes.
            network: The names in the network.
            where: The file, for messages.
            allow_shape: Keep a tensor of another shape as it is drawn.

        Raises:
            InputError: No name matches, or a shape differs that may not.
        """
        pairs = [(stripped, added) for stripped in _prefixes(file) for added in _prefixes(network.shapes)]
        sources = {pair: _sources(file, network, *pair) for pair in pairs}
        stripped, added = max(pairs, key=lambda pair: (len(sources[pair]), -len("".join(pair))))
        source = sources[stripped, added]
        if not source:
            raise InputError(
                "initial.nothing_matches",
                f"{where}: none of its {number_of(len(file), 'tensor')} ({_some(file)}) matches one of the network's "
                f"({_some(network.shapes)}); give weights of this network",
                setting="initial",
            )
        shapes = {
            name: (file[there], network.shapes[name])
            for name, there in source.items()
            if file[there] != network.shapes[name]
        }
        if shapes and not allow_shape:
            name, (there, here) = next(iter(shapes.items()))
            others = f", and {len(shapes) - 1} more differ" if len(shapes) > 1 else ""
            raise InputError(
                "initial.shapes_differ",
                f"{where}: {source[name]} has shape {there}, but the network expects {here}{others}; {{allow_shape}} "
                "initializes these tensors from the seed",
                setting=dict.fromkeys(("allow_shape", "initial")),
            )
        taken = {name: there for name, there in source.items() if name not in shapes}
        used = set(source.values())
        drawn = tuple(name for name in network.shapes if name not in taken)
        return cls(taken, drawn, tuple(name for name in file if name not in used), shapes, stripped, added)

    def to_json(self) -> dict[str, object]:
        """Return the report that a run keeps."""
        return {
            "matched": dict(self.source),
            "drawn": list(self.drawn),
            "unused": list(self.unused),
            "shapes": {name: [list(shape) for shape in pair] for name, pair in self.shapes.items()},
            "stripped": self.stripped,
            "added": self.added,
        }

    def __str__(self) -> str:
        """The report in a line."""
        parts = [f"{len(self.source)} of {number_of(len(self.source) + len(self.drawn), 'tensor')} matched"]
        parts += [f"prefix {self.stripped!r} stripped"] * bool(self.stripped)
        parts += [f"prefix {self.added!r} added"] * bool(self.added)
        parts += [f"other shape: {_some(self.shapes)}"] * bool(self.shapes)
        rest = [name for name in self.drawn if name not in self.shapes]
        parts += [f"not in the file: {_some(rest)}"] * bool(rest)
        parts += [f"unused: {_some(self.unused)}"] * bool(self.unused)
        return "; ".join(parts)


def _prefixes(names: Collection[str]) -> list[str]:
    """Return the prefixes of known parts that names begin with, such as "module.backbone.", and none."""
    prefixes = {""}
    for name in names:
        prefix = ""
        for part in name.split(".")[:-1]:
            if part not in _PREFIXES:
                break
            prefix += f"{part}."
            prefixes.add(prefix)
    return sorted(prefixes, key=len)


def _sources(file: Collection[str], network: StateNames, stripped: str, added: str) -> dict[str, str]:
    """Return which name in the file each name in the network takes, directly or by another name of its tensor."""
    renamed = {f"{added}{old.removeprefix(stripped)}": old for old in file if old.startswith(stripped)}
    pairs = (
        (name, next((renamed[n] for n in network.names_of(name) if n in renamed), None)) for name in network.shapes
    )
    return {name: old for name, old in pairs if old is not None}


def read_state(path: Path) -> dict[str, Tensor]:
    """Read tensors by name: of a safetensors file, a file of torch.save, a checkpoint's folder or a run's.

    No code of a pickle is run. A dictionary within the file ("state_dict", "model", …) is entered.

    Raises:
        InputError: There is no such file, or it has no tensors by name.
    """
    if path.is_dir():
        held = checkpoint.load(path) if (path / MANIFEST).exists() else checkpoint.latest(path)
        if held is None:
            raise InputError(
                "initial.no_checkpoint",
                f"{path}: is neither a checkpoint nor a run with a checkpoint; give one of these",
                setting="initial",
            )
        return exported_state(held)
    if not path.exists():
        raise InputError("initial.no_file", f"{path}: no such file; give a weights file, or a run", setting="initial")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with torch.serialization.safe_globals(_SCALARS):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        why = complaint(error)
        raise InputError(
            "initial.needs_code",
            f"{path}: contains more than tensors and plain values ({why}); save only the state_dict",
            setting="initial",
        ) from None
    except MemoryError:
        raise
    except Exception as error:  # of a damaged file torch raises anything, such as IndexError and struct.error
        raise InputError(
            "initial.unreadable",
            f"{path}: cannot be read as a weights file ({complaint(error)}); give a checkpoint or a saved state_dict",
            setting="initial",
        ) from None
    return _tensors(content, path)


def renamed(state: Mapping[str, Tensor], network: AnyNetwork) -> Mapping[str, Tensor]:
    """Return the tensors of a file; of Pointcept's for a table of ours by our names: see `from_pointcept`."""
    if not isinstance(network, Network):
        return state
    by_ours = from_pointcept(state, network)
    return by_ours if len(by_ours) == len(state) else state  # else it has a tensor by both names


def _tensors(content: object, path: Path) -> dict[str, Tensor]:
    """Return the tensors of a dictionary, or of the one within it that has some."""
    depth = 0  # a dictionary may be within itself
    while isinstance(content, Mapping) and (depth := depth + 1) <= len(_NESTED):
        tensors = {str(name): tensor for name, tensor in content.items() if isinstance(tensor, Tensor)}
        inner = next((content[name] for name in _NESTED if isinstance(content.get(name), Mapping)), None)
        if tensors and inner is None:
            for name, tensor in tensors.items():
                if tensor.layout != torch.strided or tensor.is_meta or tensor.is_quantized:
                    text = f"{path}: {name} is sparse, quantized or without values; save dense tensors of numbers"
                    raise InputError("initial.unreadable", text, setting="initial")
                if tensor.dtype == torch.complex128:  # a run keeps its weights in safetensors, which have no such type
                    text = f"{path}: {name} has the type complex128, expected complex64; convert it"
                    raise InputError("initial.type_unsupported", text, setting="initial")
            return tensors
        content = inner
    raise InputError(
        "initial.no_tensors",
        f"{path}: contains no named tensors; save module.state_dict(), alone or as one of {', '.join(_NESTED)}",
        setting="initial",
    )


def exported_state(saved: checkpoint.Checkpoint) -> dict[str, Tensor]:
    """Return the tensors of all stages of a checkpoint by the names of the module's state_dict.

    Weights are the moving averages if the run has them (`ema`).

    Raises:
        InputError: A file of the checkpoint is missing or damaged.
    """
    return module_state(saved.read(list(saved.manifest["layers"])), saved.manifest)


def module_state(held: Mapping[str, Tensor], facts: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return a checkpoint's tensors of all stages as `exported_state` does; `facts`: of `StateNames.to_json`."""
    state = validated_weights(held) | checkpoint.without_prefix(held, "buffer:")
    for name in facts.get("unsaved_buffers", ()):
        state.pop(name, None)
    tied: Mapping[str, str] = facts.get("tied_names", {})
    for first in dict.fromkeys(tied.values()):
        names = [first, *(name for name, target in tied.items() if target == first)]
        held_as = next(name for name in names if name in state)
        state |= dict.fromkeys(names, state[held_as])
    return state


def export_weights(run: Path | str, out: Path | str) -> Path:
    """Write the weights of a run's newest checkpoint, or of one checkpoint, as one safetensors file.

    All stages are gathered. Names are those of the module's state_dict: `module.load_state_dict(load_file(path))`.

    Args:
        run: Folder of a run or of a checkpoint.
        out: File to write, which ends in .safetensors.

    Returns:
        The file.

    Raises:
        InputError: The folder has no checkpoint, or the file's name has another ending.

    Example:
        >>> sp.export_weights(run_dir, "model.safetensors")
        PosixPath('model.safetensors')
    """
    path = Path(out).expanduser()
    if path.suffix != ".safetensors":
        raise InputError("export.suffix", f"{path}: expected a name that ends in .safetensors")
    save_state(read_state(Path(run).expanduser()), path)
    return path


def save_state(state: Mapping[str, Tensor], path: Path) -> None:
    """Write tensors by name; those that share memory are written each. Raises OSError that names the path."""
    write_atomic(path, save({name: tensor.detach().clone().contiguous() for name, tensor in state.items()}))


@dataclass(frozen=True)
class InitialState:
    """The weights that a run starts from, as its launch read them, and how they match its network if that is known."""

    tensors: Mapping[str, Tensor]
    match: Match | None

    def save(self, run_dir: Path) -> None:
        """Write what workers read, and the report."""
        save_state(self.tensors, run_dir / INITIAL)
        if self.match:
            write_json(run_dir / REPORT, self.match.to_json())


class InitialWeights:
    """The weights in a run's folder that it starts from, matched with its network."""

    def __init__(self, path: Path, network: AnyNetwork, names: StateNames, *, allow_shape: bool) -> None:
        """Raises InputError for a file that does not match the network; see `Match.of`."""
        self._path, self._network = path, network
        with safe_open(path, framework="pt") as file:
            shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118 - no dict
        state = renamed({name: torch.empty(shape, device="meta") for name, shape in shapes.items()}, network)
        self._names = dict(zip(state, shapes, strict=True))  # as renamed → in the file
        shapes_of = {name: tuple(each.shape) for name, each in state.items()}
        self.match = Match.of(shapes_of, names, where=path, allow_shape=allow_shape)

    @torch.no_grad()
    def load_into(self, module: nn.Module) -> None:
        """Copy the weights and buffers of a stage, or of the whole network."""
        source = self.match.source
        tensors = {name: tensor for name, tensor in _named_tensors(module) if name in source}
        with safe_open(self._path, framework="pt") as file:
            names = dict.fromkeys(self._names[source[name]] for name in tensors)
            state = renamed({name: file.get_tensor(name) for name in names}, self._network)
        for name, tensor in tensors.items():
            tensor.copy_(state[source[name]])


def _named_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def _some(names: Collection[str]) -> str:
    shown = ", ".join(list(names)[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"
