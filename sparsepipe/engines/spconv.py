"""spconv behind the engine protocol, for networks of its modules. The only file that imports it.

A SparseConvTensor has features [N, C], indices int32 [N, 1 + D], a spatial shape, a batch size and `indice_dict`. That
holds, by the `indice_key` of a layer, pairs of an input row and an output row for each position of its kernel. Entries
that later layers read cross a stage boundary, each once:

    SparseConv, pooling   Sent. The inverse convolution goes back to the finer voxels, in their order. One to four pairs
                          of 8 bytes a voxel; computing them takes 170 to 330 ns a voxel.
    SubMConv              Half of the pairs is sent, as the other half mirrors it, if that is at most 30 bytes a voxel:
                          what gigabit Ethernet carries in the 240 ns that computing them takes. Else the first layer
                          that reads them computes them: of the same indices these are the same pairs.

Times are of spconv 2.3.8 with one thread of a Xeon, 37,000 voxels of a room's surfaces.
"""

import json
import warnings
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from ..data.batch import PointBatch
from ..data.examples import ExampleBatch
from ..errors import InputError
from ..util.io.spconv_repairs import repair_spconv
from .base import CoordinateSet, Feature, Parts, TableWriter
from .plain import PlainEngine

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it uses names that torch deprecates
    import spconv.pytorch as spconv
    from spconv.core import ConvAlgo
    from spconv.pytorch.core import ImplicitGemmIndiceData, IndiceData
repair_spconv()

AnyTensor: TypeAlias = spconv.SparseConvTensor | Tensor
Pairs: TypeAlias = IndiceData | ImplicitGemmIndiceData
AnyField: TypeAlias = Any  # of an entry, or as JSON has it

_MOST_BYTES = 30  # a voxel, of the pairs of a SubMConv that are sent
_STEP = 64  # voxels by multiples of which coordinates move: strides up to it divide space as they did
_MARGIN = 16  # voxels at least to the end of space: where that is, a minibatch's other samples do not change
_KINDS = {kind.__name__: kind for kind in (IndiceData, ImplicitGemmIndiceData)}


class SpconvEngine(PlainEngine):
    """Runs networks of spconv's modules; the member of `Engine` (base.py) that keeps a minibatch's order of voxels.

    Minibatches are voxels, or plain tensors of which the network itself makes sparse ones.
    """

    name = "spconv"
    looks_voxels_up = False
    takes_points = True
    takes_examples = True
    shares_scenes = False
    divides_packets = False

    def tensor(self, batch: PointBatch | ExampleBatch, device: torch.device | str = "cpu") -> AnyTensor:
        """Put a minibatch on a device; voxels as a sparse tensor whose coordinates start at or above 0."""
        if not isinstance(batch, PointBatch):
            return super().tensor(batch, device)
        coordinates = batch.coordinates.clone(memory_format=torch.contiguous_format)  # else spconv misreads them
        places = coordinates[:, 1:]
        places -= places.amin(dim=0).div(_STEP, rounding_mode="floor") * _STEP
        shape = (((places.amax(dim=0) + _MARGIN) // _STEP + 1) * _STEP).tolist()
        return spconv.SparseConvTensor(batch.features.to(device), coordinates.to(device), shape, len(batch))

    def split(self, tensors: Mapping[str, AnyTensor]) -> Parts:
        sparse = {name: each for name, each in tensors.items() if isinstance(each, spconv.SparseConvTensor)}
        dense = super().split({name: each for name, each in tensors.items() if name not in sparse})
        if not sparse:
            return dense
        writer = PartsWriter()
        sets_of = {name: writer.add(name, each) for name, each in sparse.items()}
        features = {
            name: Feature(sparse[name].features, sets_of[name]) if name in sparse else dense.features[name]
            for name in tensors
        }
        sets = tuple(CoordinateSet((1,) * (each.shape[1] - 1), each, i) for i, each in enumerate(writer.indices))
        return Parts(sets, features, writer.tables())

    def join(self, parts: Parts) -> dict[str, AnyTensor]:
        reader = PartsReader(parts) if parts.tables else None
        return {
            name: feature.rows if reader is None or feature.coordinate_set is None else reader.tensor(name, feature)
            for name, feature in parts.features.items()
        }

    def features(self, tensor: AnyTensor) -> Tensor:
        return tensor.features if isinstance(tensor, spconv.SparseConvTensor) else tensor

    def replace(self, tensor: AnyTensor, features: Tensor) -> AnyTensor:
        return tensor.replace_feature(features) if isinstance(tensor, spconv.SparseConvTensor) else features

    def dimension(self, tensor: AnyTensor) -> int:
        return len(tensor.spatial_shape) if isinstance(tensor, spconv.SparseConvTensor) else super().dimension(tensor)

    def map_bytes(self, tensor: AnyTensor) -> int:
        known = tensor.indice_dict.values() if isinstance(tensor, spconv.SparseConvTensor) else ()
        return sum(each.nbytes for data in known for each in vars(data).values() if isinstance(each, Tensor))

    def rows(self, output: AnyTensor) -> Tensor:
        if isinstance(output, spconv.SparseConvTensor):
            raise InputError(
                "output.still_sparse",
                f"an output of {len(output.indices)} voxels is still sparse: pool it globally first",
            )
        return output

    def correct(self, module: nn.Module) -> list[str]:
        """Return no names: none of its layers mixes samples up."""
        return []


class PartsWriter:
    """Takes sparse tensors apart into sets of indices, a table of facts (JSON) and one of integers."""

    def __init__(self) -> None:
        self.indices: list[Tensor] = []
        self._integers = TableWriter()
        self._tensors: dict[str, dict[str, object]] = {}
        self._entries: list[Pairs] = []  # of `indice_dict`, each once
        self._facts: list[dict[str, object]] = []

    def add(self, name: str, tensor: spconv.SparseConvTensor) -> int:
        """Note a tensor; return the number of its indices."""
        entries = [[key, self._entry(data)] for key, data in tensor.indice_dict.items() if _is_sent(data)]
        size = int(tensor.batch_size)
        self._tensors[name] = {"shape": tensor.spatial_shape, "batch_size": size, "entries": entries}
        return self._set_of(tensor.indices)

    def tables(self) -> tuple[Tensor, Tensor]:
        return self._integers.tables({"tensors": self._tensors, "entries": self._facts})

    def _set_of(self, indices: Tensor) -> int:
        for number, known in enumerate(self.indices):
            if (known.data_ptr(), known.shape) == (indices.data_ptr(), indices.shape):  # SubM gives its input's
                return number
        self.indices.append(indices)
        return len(self.indices) - 1

    def _entry(self, data: Pairs) -> int:
        for number, known in enumerate(self._entries):
            if known is data:
                return number
        self._entries.append(data)
        self._facts.append(
            {"kind": type(data).__name__} | {key: self._packed(key, each, data) for key, each in vars(data).items()}
        )
        return len(self._entries) - 1

    def _packed(self, key: str, value: AnyField, data: Pairs) -> object:
        """Return what JSON can hold instead of an attribute; tensors go to the table of integers."""
        if key in ("indices", "out_indices"):
            return {"indices": self._set_of(value)}
        if key == "indice_pairs":
            return {"pairs": self._integers.add(_flat(value, data)), "shape": list(value.shape)}
        if isinstance(value, Tensor):
            kind = str(value.dtype).removeprefix("torch.")
            return {"tensor": self._integers.add(value), "shape": list(value.shape), "type": kind}
        if isinstance(value, np.ndarray):
            return {"array": value.tolist(), "type": str(value.dtype)}
        if isinstance(value, ConvAlgo):
            return {"algorithm": value.name}
        return [self._packed("", each, data) for each in value] if isinstance(value, list | tuple) else value


class PartsReader:
    """Puts sparse tensors together again. Tensors share indices and entries as they did."""

    def __init__(self, parts: Parts) -> None:
        facts, self._integers = parts.tables
        self._indices = [each.coordinates for each in parts.coordinate_sets]
        document = json.loads(facts.cpu().numpy().tobytes())
        self._tensors = document["tensors"]
        self._entries = [self._entry(each) for each in document["entries"]]

    def tensor(self, name: str, feature: Feature) -> spconv.SparseConvTensor:
        indices, facts = self._indices[feature.coordinate_set or 0], self._tensors[name]
        entries = {tuple(key) if isinstance(key, list) else key: self._entries[i] for key, i in facts["entries"]}
        size = facts["batch_size"]
        return spconv.SparseConvTensor(feature.rows, indices, facts["shape"], size, indice_dict=entries)

    def _entry(self, facts: dict[str, AnyField]) -> Pairs:
        kind = _KINDS[facts.pop("kind")]
        pairs = facts.pop("indice_pairs", None)
        values = {key: self._unpacked(each) for key, each in facts.items()}
        if pairs is not None:
            flat = self._integers[slice(*pairs["pairs"])]
            values["indice_pairs"] = _unflat(flat, pairs["shape"], values["indice_pair_num"], values["is_subm"])
        return kind(**values)

    def _unpacked(self, value: AnyField) -> AnyField:
        if isinstance(value, list):
            return [self._unpacked(each) for each in value]
        if not isinstance(value, dict):
            return value
        if "indices" in value:
            return self._indices[value["indices"]]
        if "tensor" in value:
            return self._integers[slice(*value["tensor"])].view(value["shape"]).to(getattr(torch, value["type"]))
        if "array" in value:
            return np.array(value["array"], dtype=value["type"])
        return ConvAlgo[value["algorithm"]]


def _is_sent(data: Pairs) -> bool:
    """Return whether pairs are sent; else the next layer that reads them makes them again."""
    if not data.is_subm:
        return True
    if not isinstance(data, IndiceData) or data.indice_pairs.shape[1] % 2 == 0:
        return False
    return 8 * int(data.indice_pair_num.sum()) <= _MOST_BYTES * len(data.indices)


def _flat(pairs: Tensor, data: Pairs) -> Tensor:
    """Return pairs [2, K, N] without the places behind the last pair of each position, and without mirrored ones."""
    counts = data.indice_pair_num.tolist()
    positions = len(counts) // 2 if data.is_subm else len(counts)
    return torch.cat([pairs[:, k, : counts[k]].reshape(-1) for k in range(positions)])


def _unflat(flat: Tensor, shape: list[int], num_pairs: Tensor, is_subm: bool) -> Tensor:
    """Return pairs [2, K, N]: -1 behind the last pair of each position; of a SubMConv in the other half, too.

    position   0 … K/2 - 1   K/2          K/2 + 1 … K - 1
               in, out       the row      out, in of position K - 1 - k
                             itself
    """
    pairs = torch.full(shape, -1, dtype=flat.dtype, device=flat.device)
    counts, start = num_pairs.tolist(), 0
    positions = len(counts) // 2 if is_subm else len(counts)
    for k in range(positions):
        count = counts[k]
        pairs[:, k, :count] = flat[start : start + 2 * count].view(2, count)
        start += 2 * count
        if is_subm:
            pairs[:, len(counts) - 1 - k, :count] = pairs[:, k, :count].flip(0)
    if is_subm:
        pairs[:, positions] = torch.arange(shape[2], dtype=flat.dtype, device=flat.device)
    return pairs
