"""PointBatch: what it accepts, what it refuses, and that samples never part."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparsepipe.data import PointBatch, Sample, collate
from sparsepipe.errors import InputError


def _sample(cells: set[tuple[int, int, int]], label: int) -> Sample:
    coordinates = torch.tensor(sorted(cells), dtype=torch.int32)
    return Sample(coordinates, coordinates.sum(dim=1, keepdim=True).float(), label)


cells = st.sets(st.tuples(*[st.integers(-5, 5)] * 3), min_size=1, max_size=8)
samples = st.lists(st.builds(_sample, cells, st.integers(0, 9)), min_size=1, max_size=5)


def _as_rows(sample: Sample) -> tuple:
    return sample.coordinates.tolist(), sample.features.tolist(), sample.label


@given(samples)
def test_collate_and_samples_are_inverse(given_samples: list[Sample]) -> None:
    batch = collate(given_samples)
    assert len(batch) == len(given_samples)
    assert batch.num_voxels == sum(map(len, given_samples))
    assert batch.voxel_counts.tolist() == [len(sample) for sample in given_samples]
    assert [_as_rows(sample) for sample in batch.samples()] == [_as_rows(sample) for sample in given_samples]


@given(samples, st.data())
def test_take_keeps_whole_samples_in_the_order_given(given_samples: list[Sample], data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.integers(0, len(given_samples) - 1), min_size=1, max_size=6))
    taken = collate(given_samples).take(chosen)
    assert [_as_rows(sample) for sample in taken.samples()] == [_as_rows(given_samples[index]) for index in chosen]


def _parts() -> dict:
    return {
        "coordinates": torch.tensor([[0, 0, 0, 0], [0, 0, 0, 1], [1, 5, 5, 5]], dtype=torch.int32),
        "features": torch.ones(3, 1),
        "labels": torch.tensor([3, 0]),
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"coordinates": torch.zeros(3, 4)}, "float32 [3, 4], expected int32"),
        ({"features": torch.ones(2, 1)}, "features are float32 [2, 1], expected float32 [3, C]"),
        ({"features": torch.ones(3, 1).double()}, "expected float32"),
        ({"features": torch.tensor([[1.0], [float("nan")], [1.0]])}, "NaN"),
        ({"labels": torch.tensor([3, 0, 1])}, "sample 2 of the minibatch has no voxel"),
        ({"labels": torch.tensor([3])}, "sample indices run from 0 to 1, expected 0 to 0"),
        ({"labels": torch.tensor([3, -1])}, "label -1 is negative"),
        ({"labels": torch.tensor([], dtype=torch.int64)}, "B >= 1"),
        ({"coordinates": torch.tensor([[0, 1, 1, 1], [0, 1, 1, 1], [1, 5, 5, 5]]).int()}, "a voxel occurs twice"),
        ({"coordinates": torch.tensor([[1, 0, 0, 0], [0, 0, 0, 1], [0, 5, 5, 5]]).int()}, "do not stand together"),
    ],
)
def test_a_malformed_batch_is_refused_in_one_line(change: dict, message: str) -> None:
    PointBatch(**_parts())
    with pytest.raises(InputError) as caught:
        PointBatch(**_parts() | change)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_duplicates_are_found_where_coordinates_span_more_than_an_integer_key_holds() -> None:
    far = 2**31 - 1
    rows = [[0, -far, -far, -far], [0, 1, 2, 3], [0, far, far, far], [0, 1, 2, 3]]
    with pytest.raises(InputError, match="twice"):
        PointBatch(torch.tensor(rows, dtype=torch.int32), torch.ones(4, 1), torch.tensor([0]))
    PointBatch(torch.tensor(rows[:3], dtype=torch.int32), torch.ones(3, 1), torch.tensor([0]))


def test_labels_out_of_range_are_refused() -> None:
    batch = PointBatch(**_parts())
    assert batch.check_classes(4) is batch
    with pytest.raises(InputError, match=r"label 3 is out of range for 3 classes \(0 to 2\)"):
        batch.check_classes(3)


def test_a_minibatch_of_nothing_or_of_mixed_widths_is_refused() -> None:
    with pytest.raises(InputError, match="no samples"):
        collate([])
    flat = Sample(torch.zeros(1, 2, dtype=torch.int32), torch.ones(1, 1), 0)
    with pytest.raises(InputError, match=r"\[2, 3\] columns of coordinates"):
        collate([flat, _sample({(0, 0, 0)}, 0)])
    with pytest.raises(InputError, match="sample 2 asked of a minibatch of 2"):
        PointBatch(**_parts()).take([2])
