"""One minibatch at a stage boundary as bytes: a fixed-size header that describes one payload.

header   int64 [512]   what it is, whose, and the shape, type and place of every section of the payload
payload  uint8 [n]     coordinate sets (packed into keys), the engine's tables, then the rows of each tensor, its
                       scales, its upper halves and its bits, if it has any; each 64-byte aligned. Before them the
                       facts of the sections, if the header has no room for these

A payload of 1 KB or less travels at the end of the header. One in memory that both sides share does not travel:
that end says where it is, and coordinates stay as they are, since packing them would save no bytes that are sent.
"""

import math
import os
import struct
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...engines.base import CoordinateSet
from ..failures import PacketMismatch

HEADER_INTEGERS = 512  # as sent: facts, then room for a small payload
HEADER_BYTES = 8 * HEADER_INTEGERS
_FACTS = 384  # of some 30 tensors: before a deep block of a dense network 25 are alive; of more, in the payload
_ALWAYS = 13  # of them: those of the packet itself, and how many there are
_PLACE = slice(_FACTS, _FACTS + 2)  # of a payload in shared memory: the sender's file descriptor and its capacity
_MAGIC = 0x5350_4B54
_ALIGNMENT = 64
_DTYPES = (
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float64,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.bool,
    torch.complex64,
    torch.complex128,
    torch.uint16,
    torch.uint32,
    torch.uint64,
)
FORWARD, BACKWARD = 0, 1
_MOST_BYTES = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")  # of a payload: all the memory there is


@dataclass(frozen=True, eq=False)
class Slot:
    """One tensor: its rows, the coordinate set they lie on (None: dense) and whether a gradient comes back for it."""

    rows: Tensor
    coordinate_set: int | None = None
    needs_gradient: bool = False
    scales: Tensor | None = None  # float32 [C]: rows are 8-bit integers to multiply by them
    restore: bool = False  # rows were float32 before they were made smaller
    upper: Tensor | None = None  # uint8: the upper halves of float32 values, coded; rows are the lower halves, int16
    present: Tensor | None = None  # uint8: a bit for each element, in order; rows [n] are those whose bit is set
    shape: tuple[int, ...] = ()  # of the whole tensor, where only the present elements are there

    @property
    def sections(self) -> tuple[Tensor, ...]:
        """Parts of the payload, in order."""
        every = (self.rows.detach(), self.scales, self.upper, self.present)
        return tuple(section for section in every if section is not None)

    @property
    def is_no_gradient(self) -> bool:
        """Return whether it stands for a gradient that there is none of, of any shape."""
        return self.rows.dtype is torch.bool


# No gradient is of booleans. It crosses a boundary for a tensor that the loss does not depend on: zeros would have the
# stage before step weights by decay and momentum.
NO_GRADIENT = Slot(torch.empty(0, dtype=torch.bool))


class PacketPart(NamedTuple):
    """Facts of one part of a split minibatch in its packet, besides as many slots as every other part."""

    size: int
    num_sets: int
    num_tables: int


@dataclass(frozen=True, eq=False)
class Packet:
    """Data that crosses one boundary for one minibatch in one direction. `boundary` tells lists of tensors apart."""

    direction: int
    minibatch: int
    boundary: int
    slots: tuple[Slot, ...]
    coordinate_sets: tuple[CoordinateSet, ...] = ()
    size: int = 0  # of the minibatch, in the workload's unit, such as active voxels at the network's input
    arrives: float = 0.0  # by the receiver's time.monotonic, over a link slower than those here; 0: when it arrives
    tables: tuple[Tensor, ...] = ()  # what else the engine needs to put tensors together
    # (stage, packet) for, or from, stages of the same rank that are no neighbours: this rank keeps them, none is sent.
    kept: tuple[tuple[int, "Packet"], ...] = ()
    parts: tuple[PacketPart, ...] = ()  # of a minibatch that is split to fit into memory: slots, sets, tables by part

    @property
    def num_bytes(self) -> int:
        """Bytes of its tensors and coordinates as they are; a socket packs coordinates, which is not counted."""
        coordinates = sum(own.coordinates.nbytes for own in self.coordinate_sets)
        tables = sum(table.nbytes for table in self.tables)
        return coordinates + tables + sum(section.nbytes for slot in self.slots for section in slot.sections)


def with_parts(packets: Sequence[Packet]) -> Packet:
    """Return one packet of the parts of a split minibatch, one packet each, in order."""
    offsets = accumulate((len(packet.coordinate_sets) for packet in packets), initial=0)
    slots = [
        slot if slot.coordinate_set is None else replace(slot, coordinate_set=slot.coordinate_set + offset)
        for packet, offset in zip(packets, offsets, strict=False)
        for slot in packet.slots
    ]
    kept = [tuple(part for _, part in of_stage) for of_stage in zip(*(packet.kept for packet in packets), strict=True)]
    return replace(
        packets[0],
        slots=tuple(slots),
        coordinate_sets=tuple(own for packet in packets for own in packet.coordinate_sets),
        tables=tuple(table for packet in packets for table in packet.tables),
        size=sum(packet.size for packet in packets),
        kept=tuple((stage, with_parts(parts)) for (stage, _), parts in zip(packets[0].kept, kept, strict=True)),
        parts=tuple(PacketPart(each.size, len(each.coordinate_sets), len(each.tables)) for each in packets),
    )


def parts_of(packet: Packet) -> tuple[Packet, ...]:
    """Return a packet for each part of a minibatch: the inverse of `with_parts`; itself if it is not split."""
    if not packet.parts:
        return (packet,)
    kept = [(stage, parts_of(staying)) for stage, staying in packet.kept]
    num_slots, first_set, first_table, packets = len(packet.slots) // len(packet.parts), 0, 0, []
    for k, (size, num_sets, num_tables) in enumerate(packet.parts):
        slots = [
            slot if slot.coordinate_set is None else replace(slot, coordinate_set=slot.coordinate_set - first_set)
            for slot in packet.slots[k * num_slots : (k + 1) * num_slots]
        ]
        packets.append(
            replace(
                packet,
                slots=tuple(slots),
                coordinate_sets=packet.coordinate_sets[first_set : first_set + num_sets],
                tables=packet.tables[first_table : first_table + num_tables],
                size=size,
                kept=tuple((stage, parts[k]) for stage, parts in kept),
                parts=(),
            )
        )
        first_set, first_table = first_set + num_sets, first_table + num_tables
    return tuple(packets)


def boundary_id(names: Iterable[str]) -> int:
    """Name a list of tensors by a number, so that two sides which disagree notice."""
    return zlib.crc32("\n".join(names).encode())


Memory = Callable[[int], Tensor]  # bytes → uint8 of so many


def encode(
    packet: Packet, *, device: torch.device | str = "cpu", memory: Memory | None = None, packed: bool = True
) -> tuple[Tensor, Tensor]:
    """Return header and payload (on `device`), which is empty if it went into the header.

    The payload is written to what `memory` gives for it. Without, one contiguous tensor is sent from its own memory.
    """
    facts = [_MAGIC, int(packet.arrives * 1e9), packet.direction, packet.minibatch, packet.boundary, packet.size]
    facts += [len(packet.coordinate_sets), len(packet.tables), len(packet.slots), len(packet.parts)]
    of_sections = [number for part in packet.parts for number in part]
    sections: list[Tensor] = []
    for stride, coordinates, family, _ in packet.coordinate_sets:
        keys, layout = _pack(coordinates, stride) if packed else _as_they_are(coordinates)
        sections.append(keys)
        of_sections += [len(stride), *stride, family, len(coordinates), *layout]
    for table in packet.tables:
        of_sections += [_DTYPES.index(table.dtype), table.dim(), *table.shape]
        sections.append(table)
    for slot in packet.slots:
        rows = slot.rows
        place = -1 if slot.coordinate_set is None else slot.coordinate_set
        scaled = 0 if slot.scales is None else len(slot.scales)
        coded = 0 if slot.upper is None else len(slot.upper)
        of_sections += [_DTYPES.index(rows.dtype), place, slot.needs_gradient, slot.restore, scaled, coded]
        of_sections += [rows.dim(), *rows.shape, len(slot.shape), *slot.shape]
        sections += slot.sections
    fit = len(of_sections) < _FACTS - _ALWAYS
    if not fit:
        sections.insert(0, torch.tensor(of_sections, dtype=torch.int64))
    facts += [0, *of_sections] if fit else [len(of_sections)]
    size = aligned_bytes(sections)
    inside = size <= HEADER_BYTES - 8 * _FACTS
    payload = _join(sections, size, torch.device(device), None if inside else memory)
    facts.append(0 if inside else len(payload))
    whole = bytearray(HEADER_BYTES)
    struct.pack_into(f"={1 + len(facts)}q", whole, 0, len(facts), *facts)
    header = torch.frombuffer(whole, dtype=torch.int64)
    if not inside:
        return header, payload
    header.view(torch.uint8)[8 * _FACTS : 8 * _FACTS + len(payload)] = payload
    return header, payload[:0]


def payload_bytes(header: Tensor) -> int:
    """Return the size of the payload that follows `header`, 0 if it is inside it.

    Raises PacketMismatch if this is no header.
    """
    facts = header.numpy()
    if facts[1] != _MAGIC:
        raise PacketMismatch(
            "packet.header_malformed", f"a packet's header starts with {int(facts[1]):#x}, expected {_MAGIC:#x}"
        )
    count = int(facts[0])
    if not 0 < count < _FACTS or not 0 <= int(facts[count]) <= _MOST_BYTES:
        told = f"{int(facts[count])} bytes" if 0 < count < _FACTS else f"{count} facts"
        raise PacketMismatch("packet.header_malformed", f"a packet's header declares {told}, which is out of range")
    return int(facts[count])


def set_place(header: Tensor, fd: int, capacity: int) -> None:
    """Say in a header without a payload inside that it is in the sender's shared buffer `fd` of `capacity` bytes."""
    header.numpy()[_PLACE] = fd, capacity


def place_of(header: Tensor) -> tuple[int, int] | None:
    """Return file descriptor and capacity of the sender's shared buffer; None: the payload is inside, or is sent."""
    fd, capacity = header.numpy()[_PLACE].tolist()
    return (fd, capacity) if capacity and payload_bytes(header) else None


def arrives_at(header: Tensor) -> float:
    """Return when the packet may be taken, by the monotonic clock of its receiver."""
    return int(header[2]) / 1e9


def decode(header: Tensor, payload: Tensor) -> Packet:
    """Rebuild the packet. Rows are views of the payload, which they keep alive.

    Raises PacketMismatch if the header speaks of more than the payload holds.
    """
    try:
        return _decoded(header, payload)
    except (LookupError, StopIteration, RuntimeError, ValueError, ArithmeticError, MemoryError) as error:
        # A section outside, facts that end too soon, or numbers that are none of a packet.
        raise PacketMismatch(
            "packet.header_malformed", f"a packet's header does not fit its payload of {len(payload)} bytes"
        ) from error


def _decoded(header: Tensor, payload: Tensor) -> Packet:
    integers = header.numpy()
    facts = iter(integers[3 : 1 + integers[0]].tolist())
    if len(payload) == 0:
        payload = header.view(torch.uint8)[8 * _FACTS :]
    direction, minibatch, boundary, size, num_sets, num_tables, num_slots = (next(facts) for _ in range(7))
    num_parts, outside = next(facts), next(facts)
    place, sets, tables, slots = 0, [], [], []
    if outside:
        of_sections, place = _section(payload, place, torch.int64, (outside,))
        facts = iter(of_sections.tolist())
    parts = tuple(PacketPart(next(facts), next(facts), next(facts)) for _ in range(num_parts))
    for _ in range(num_sets):
        stride = tuple(next(facts) for _ in range(next(facts)))
        family, length, kind = (next(facts) for _ in range(3))
        low = [next(facts) for _ in range(len(stride) + 1)]
        bits = [next(facts) for _ in range(len(stride) + 1)]
        dtype, columns = _KEYS[kind]
        shape = (length, len(stride) + 1) if columns else (length,)
        keys, place = _section(payload, place, dtype, shape)
        # A copy, as a view would keep the whole payload alive.
        sets.append(CoordinateSet(stride, keys.clone() if columns else _unpack(keys, stride, low, bits), family))
    for _ in range(num_tables):
        dtype, shape = next(facts), tuple(next(facts) for _ in range(next(facts)))
        table, place = _section(payload, place, _DTYPES[dtype], shape)
        tables.append(table.clone())  # as above
    for _ in range(num_slots):
        dtype, coordinate_set, needs_gradient, restore, scaled, coded = (next(facts) for _ in range(6))
        shape = tuple(next(facts) for _ in range(next(facts)))
        rows, place = _section(payload, place, _DTYPES[dtype], shape)
        scales = upper = present = None
        if scaled:
            scales, place = _section(payload, place, torch.float32, (scaled,))
        if coded:
            upper, place = _section(payload, place, torch.uint8, (coded,))
        if whole := tuple(next(facts) for _ in range(next(facts))):
            present, place = _section(payload, place, torch.uint8, (bits_length(math.prod(whole)),))
        own_set = None if coordinate_set < 0 else coordinate_set
        slots.append(Slot(rows, own_set, bool(needs_gradient), scales, bool(restore), upper, present, whole))
    return Packet(direction, minibatch, boundary, tuple(slots), tuple(sets), size, tables=tuple(tables), parts=parts)


def _join(sections: Sequence[Tensor], size: int, device: torch.device, memory: Memory | None) -> Tensor:
    """Return the sections one after the other, aligned, `size` bytes together."""
    if memory is None and len(sections) == 1 and sections[0].is_contiguous() and sections[0].device.type == device.type:
        return sections[0].reshape(-1).view(torch.uint8)
    if memory is not None:
        payload = memory(size)
    else:
        staged = device.type == "cpu" and any(section.is_cuda for section in sections)  # a GPU copies to pinned memory
        payload = torch.empty(size, dtype=torch.uint8, device=device, pin_memory=staged)
    place = 0
    for section in sections:
        view, place = _section(payload, place, section.dtype, section.shape)
        view.copy_(section)
    return payload


def _section(payload: Tensor, place: int, dtype: torch.dtype, shape: Sequence[int]) -> tuple[Tensor, int]:
    """Return the view of one section that starts at byte `place`, and where the next one starts."""
    length = dtype.itemsize
    for size in shape:
        length *= size
    if not 0 <= length <= len(payload) - place:
        raise IndexError(length)
    return payload[place : place + length].view(dtype).view(shape), place + _aligned(length)


def bits_length(count: int) -> int:
    """Return the bytes that so many bits take."""
    return -(-count // 8)


def aligned_bytes(sections: Iterable[Tensor]) -> int:
    """Return the bytes that sections take in a payload."""
    return sum(_aligned(section.nbytes) for section in sections)


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT


# Coordinates travel as one key a voxel where its columns fit side by side into 31 or 63 bits: 4 or 8 bytes, not 16.
#   | batch | axis 1 | ... | axis D |   each column: (coordinate - lowest) / tensor stride
_KEYS: tuple[tuple[torch.dtype, bool], ...] = ((torch.int32, False), (torch.int64, False), (torch.int32, True))
_RAW = 2


def _steps(stride: tuple[int, ...]) -> tuple[int, ...]:
    """Return the least distance of two coordinates in each column; a stride is 0 if all of a sample was pooled."""
    return 1, *(max(1, own) for own in stride)


def _as_they_are(coordinates: Tensor) -> tuple[Tensor, list[int]]:
    return coordinates, [_RAW, *[0] * (2 * coordinates.shape[1])]


def _pack(coordinates: Tensor, stride: tuple[int, ...]) -> tuple[Tensor, list[int]]:
    """Return keys [N] and how to read them: kind, lowest of each column, bits of each column."""
    if len(coordinates) == 0:
        return _as_they_are(coordinates)
    low, high = (bound.tolist() for bound in torch.aminmax(coordinates, dim=0))
    steps = _steps(stride)
    bits = [((top - bottom) // step).bit_length() for top, bottom, step in zip(high, low, steps, strict=True)]
    if sum(bits) > 63:
        return _as_they_are(coordinates)
    dtype = torch.int32 if sum(bits) <= 31 else torch.int64
    keys = torch.zeros(len(coordinates), dtype=dtype, device=coordinates.device)
    for column, step in enumerate(steps):
        distance = coordinates[:, column] - low[column]
        if step > 1:
            if bool((distance % step).any()):
                return _as_they_are(coordinates)  # coordinates off the grid of their stride: nothing may be lost
            distance = distance // step
        keys = (keys << bits[column]).add_(distance)
    return keys, [0 if dtype is torch.int32 else 1, *low, *bits]


def _unpack(keys: Tensor, stride: tuple[int, ...], low: list[int], bits: list[int]) -> Tensor:
    steps = _steps(stride)
    coordinates = torch.empty((len(keys), len(steps)), dtype=torch.int32, device=keys.device)
    for column in reversed(range(len(steps))):
        distance: Any = keys & ((1 << bits[column]) - 1)
        coordinates[:, column] = distance * steps[column] + low[column]
        keys = keys >> bits[column]
    return coordinates
