"""A packet that was encoded is decoded to the same tensors, whatever they are; what is no packet is refused."""

from dataclasses import replace

import torch
from coded import raises
from hypothesis import given
from hypothesis import strategies as st

from sparsepipe.engines.base import CoordinateSet
from sparsepipe.runtime.failures import PacketMismatch
from sparsepipe.runtime.transport.packet import (
    BACKWARD,
    FORWARD,
    HEADER_INTEGERS,
    Packet,
    Slot,
    boundary_id,
    decode,
    encode,
    parts_of,
    payload_bytes,
    with_parts,
)


def _sent(packet: Packet) -> Packet:
    """Send a packet through memory that is not the sender's."""
    header, payload = encode(packet)
    assert len(header) == HEADER_INTEGERS and payload_bytes(header) == len(payload)
    return decode(header.clone(), payload.clone())


def _same(a: Packet, b: Packet) -> None:
    assert (a.direction, a.minibatch, a.boundary, a.size) == (b.direction, b.minibatch, b.boundary, b.size)
    assert len(a.slots) == len(b.slots) and len(a.coordinate_sets) == len(b.coordinate_sets)
    for one, other in zip(a.slots, b.slots, strict=True):
        assert (one.coordinate_set, one.needs_gradient) == (other.coordinate_set, other.needs_gradient)
        assert one.rows.dtype == other.rows.dtype and torch.equal(one.rows, other.rows)
    for one, other in zip(a.tables, b.tables, strict=True):
        assert one.dtype == other.dtype and torch.equal(one, other)
    for one, other in zip(a.coordinate_sets, b.coordinate_sets, strict=True):
        assert (one.tensor_stride, one.family) == (other.tensor_stride, other.family)
        assert other.coordinates.dtype == torch.int32 and torch.equal(one.coordinates, other.coordinates)


@st.composite
def _packets(draw) -> Packet:
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    sets = []
    for _ in range(draw(st.integers(0, 3))):
        dimension = draw(st.integers(1, 4))
        stride = tuple(draw(st.sampled_from([1, 2, 3, 4, 8])) for _ in range(dimension))
        length, reach = draw(st.integers(0, 40)), draw(st.sampled_from([1, 50, 30_000, 200_000_000]))
        cells = torch.randint(-reach, reach, (length, dimension), generator=generator)
        cells = cells // torch.tensor(stride) * torch.tensor(stride)
        batch = torch.randint(0, 70, (length, 1), generator=generator)
        sets.append(CoordinateSet(stride, torch.cat([batch, cells], dim=1).int(), draw(st.integers(0, 2))))
    slots = []
    for _ in range(draw(st.integers(0, 4))):
        place = draw(st.sampled_from([None, *range(len(sets))]))
        length = draw(st.integers(0, 9)) if place is None else len(sets[place].coordinates)
        dtype = draw(st.sampled_from([torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.complex64]))
        rows = torch.randn((length, draw(st.integers(0, 7))), generator=generator).to(dtype)
        slots.append(Slot(rows.t().contiguous().t() if draw(st.booleans()) else rows, place, draw(st.booleans())))
    direction, minibatch = draw(st.sampled_from([FORWARD, BACKWARD])), draw(st.integers(0, 2**40))
    kinds = draw(st.lists(st.sampled_from([torch.uint8, torch.int32]), max_size=2))
    tables = tuple(torch.randint(0, 200, (draw(st.integers(0, 90)),), generator=generator).to(kind) for kind in kinds)
    boundary = draw(st.integers(0, 2**32))
    return Packet(direction, minibatch, boundary, tuple(slots), tuple(sets), minibatch % 7, tables=tables)


@given(_packets(), _packets())
def test_the_parts_of_a_split_minibatch_arrive_as_one_packet(packet: Packet, kept: Packet) -> None:
    bare = replace(packet, slots=tuple(replace(slot, coordinate_set=None) for slot in packet.slots), size=9)
    bare = replace(bare, coordinate_sets=(), tables=())
    parts = [replace(packet, kept=((3, kept),)), replace(bare, kept=((3, kept),)), replace(packet, kept=((3, kept),))]
    whole = with_parts(parts)
    assert whole.size == 2 * packet.size + 9
    arrived = parts_of(replace(_sent(whole), kept=whole.kept))
    for one, other in zip(parts, arrived, strict=True):
        _same(one, other)
        _same(one.kept[0][1], other.kept[0][1])
    assert parts_of(packet) == (packet,)


@given(_packets())
def test_a_packet_arrives_as_it_was_sent(packet: Packet) -> None:
    _same(_sent(packet), packet)


@given(_packets())
def test_a_packet_in_memory_that_both_sides_share_is_read_there(packet: Packet) -> None:
    """Coordinates outlive the payload, which is its owner's to write to again."""
    shared = torch.empty(0, dtype=torch.uint8)

    def memory(num_bytes: int) -> torch.Tensor:
        nonlocal shared
        shared = torch.empty(num_bytes, dtype=torch.uint8)
        return shared

    header, _ = encode(packet, memory=memory)
    got = decode(header, shared)
    _same(got, packet)
    shared.fill_(255)
    for sent, kept in zip(packet.coordinate_sets, got.coordinate_sets, strict=True):
        assert torch.equal(sent.coordinates, kept.coordinates)


def test_coordinates_of_a_usual_minibatch_take_four_bytes_a_voxel() -> None:
    """64 clouds in a 50³ grid: 6 bits of batch and 18 of place; sent as they are they would take 16 bytes."""
    cells = torch.randint(0, 50, (5000, 3))
    coordinates = torch.cat([torch.randint(0, 64, (5000, 1)), cells], dim=1).int()
    packet = Packet(FORWARD, 0, 0, (), (CoordinateSet((1, 1, 1), coordinates),))
    assert len(encode(packet)[1]) <= 4 * 5000 + 64
    _same(_sent(packet), packet)


def test_voxels_of_whole_samples_travel_whose_stride_is_0() -> None:
    """As MinkowskiEngine's are after a global pooling."""
    samples = torch.tensor([[0, 0, 0, 0], [1, 0, 0, 0], [7, 0, 0, 0]], dtype=torch.int32)
    packet = Packet(FORWARD, 0, 0, (), (CoordinateSet((0, 0, 0), samples),))
    _same(_sent(packet), packet)


def test_coordinates_off_the_grid_of_their_stride_lose_nothing() -> None:
    coordinates = torch.tensor([[0, 0], [0, 3], [1, 4]], dtype=torch.int32)
    packet = Packet(FORWARD, 0, 0, (), (CoordinateSet((2,), coordinates),))
    _same(_sent(packet), packet)


def test_one_dense_tensor_is_sent_from_its_own_memory() -> None:
    rows = torch.randn(500, 3)
    assert encode(Packet(BACKWARD, 0, 0, (Slot(rows),)))[1].data_ptr() == rows.data_ptr()


def test_a_header_that_is_none_is_refused_with_both_numbers() -> None:
    with raises("packet.header_malformed", "0x0", "0x53504b54"):
        payload_bytes(torch.zeros(HEADER_INTEGERS, dtype=torch.int64))


def test_numbers_that_no_packet_has_are_refused() -> None:
    coordinates = torch.randint(0, 9, (5, 4), dtype=torch.int32)
    slots = tuple(Slot(torch.zeros(5, 3)) for _ in range(40))
    tables = (torch.arange(100, dtype=torch.uint8),)
    header, payload = encode(Packet(FORWARD, 1, 2, slots, (CoordinateSet((1, 1, 1), coordinates),), tables=tables))
    for number in (-(2**62), -1, 2**40, 2**61):
        for place in range(16):
            bad = payload.clone()
            bad.view(torch.int64)[place] = number
            try:
                decode(header, bad)
            except PacketMismatch as error:
                assert error.code == "packet.header_malformed"


def test_more_tensors_than_a_header_describes_are_described_in_the_payload() -> None:
    coordinates = torch.randint(-99, 99, (40, 4), dtype=torch.int32)
    for count in (1, 30, 36, 37, 38, 100):  # with and without room in the header
        slots = tuple(Slot(torch.randn(k % 7, 3), 0 if k % 2 else None, k % 3 == 0) for k in range(count))
        _same(_sent(packet := Packet(FORWARD, 3, 7, slots, (CoordinateSet((2, 2, 2), coordinates),), 40)), packet)


def test_boundaries_of_other_tensors_have_other_numbers() -> None:
    assert boundary_id(["a", "b"]) == boundary_id(("a", "b"))
    assert len({boundary_id(names) for names in (["a", "b"], ["b", "a"], ["ab"], ["a"], [])}) == 5


def test_a_small_payload_travels_in_the_header() -> None:
    rows = torch.randn(4, 64)
    header, payload = encode(Packet(BACKWARD, 3, 0, (Slot(rows),)))
    assert len(payload) == payload_bytes(header) == 0
    assert torch.equal(decode(header.clone(), payload).slots[0].rows, rows)
