"""PointBatch: what it accepts, what it refuses, and that samples never part."""

import pytest
import torch
from coded import raises
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsepipe.data import IGNORED, PointBatch, Sample, collate


def _sample(cells: set[tuple[int, int, int]], label: int) -> Sample:
    coordinates = torch.tensor(sorted(cells), dtype=torch.int32)
    return Sample(coordinates, coordinates.sum(dim=1, keepdim=True).float(), label)


cells = st.sets(st.tuples(*[st.integers(-5, 5)] * 3), min_size=1, max_size=8)
samples = st.lists(st.builds(_sample, cells, st.integers(0, 9)), min_size=1, max_size=5)


def _as_rows(sample: Sample) -> tuple:
    return sample.coordinates.tolist(), sample.features.tolist(), sample.label


@settings(max_examples=25)
@given(samples)
def test_collate_and_samples_are_inverse(given_samples: list[Sample]) -> None:
    batch = collate(given_samples)
    assert len(batch) == len(given_samples)
    assert batch.num_voxels == sum(map(len, given_samples))
    assert batch.voxel_counts.tolist() == [len(sample) for sample in given_samples]
    assert [_as_rows(sample) for sample in batch.samples()] == [_as_rows(sample) for sample in given_samples]


@settings(max_examples=25)
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
    ("change", "error"),
    [
        ({"coordinates": torch.zeros(3, 4)}, ("batch.coordinates_malformed", "float32 [3, 4]")),
        ({"features": torch.ones(2, 1)}, ("batch.features_malformed", "float32 [2, 1]", "3")),
        ({"features": torch.ones(3, 1).double()}, ("batch.features_malformed",)),
        ({"features": torch.tensor([[1.0], [float("nan")], [1.0]])}, ("batch.features_not_finite",)),
        ({"features": torch.ones(3, 1, device="meta")}, ("batch.devices_differ", "cpu", "meta", "cpu")),
        ({"labels": torch.ones(2, dtype=torch.int64, device="meta")}, ("batch.devices_differ", "cpu", "cpu", "meta")),
        ({"labels": torch.tensor([3, 0, 1])}, ("batch.sample_empty", "2")),
        ({"labels": torch.tensor([3])}, ("batch.sample_index_out_of_range", "0", "1", "0")),
        ({"labels": torch.tensor([3, -1])}, ("batch.label_negative", "-1")),
        ({"labels": torch.tensor([], dtype=torch.int64)}, ("batch.labels_malformed", "B >= 1")),
        ({"coordinates": torch.tensor([[0, 1, 1, 1], [0, 1, 1, 1], [1, 5, 5, 5]]).int()}, ("batch.voxel_twice",)),
        ({"coordinates": torch.tensor([[1, 0, 0, 0], [0, 0, 0, 1], [0, 5, 5, 5]]).int()}, ("batch.samples_scattered",)),
    ],
)
def test_a_malformed_batch_is_refused_in_one_line(change: dict, error: tuple[str, ...]) -> None:
    PointBatch(**_parts())
    with raises(*error) as caught:
        PointBatch(**_parts() | change)
    assert "\n" not in str(caught.value)


def test_duplicates_are_found_where_coordinates_span_more_than_an_integer_key_holds() -> None:
    far = 2**31 - 1
    rows = [[0, -far, -far, -far], [0, 1, 2, 3], [0, far, far, far], [0, 1, 2, 3]]
    with raises("batch.voxel_twice"):
        PointBatch(torch.tensor(rows, dtype=torch.int32), torch.ones(4, 1), torch.tensor([0]))
    PointBatch(torch.tensor(rows[:3], dtype=torch.int32), torch.ones(3, 1), torch.tensor([0]))


def test_labels_out_of_range_are_refused() -> None:
    batch = PointBatch(**_parts())
    assert batch.check_classes(4) is batch
    with raises("batch.label_out_of_range", "3", "3 classes", "2"):
        batch.check_classes(3)


def test_a_minibatch_of_nothing_or_of_mixed_widths_is_refused() -> None:
    with raises("batch.no_samples"):
        collate([])
    flat = Sample(torch.zeros(1, 2, dtype=torch.int32), torch.ones(1, 1), 0)
    with raises("batch.widths_differ", "[2, 3]", name="coordinates"):
        collate([flat, _sample({(0, 0, 0)}, 0)])
    with raises("batch.sample_unknown", "2", index=2):
        PointBatch(**_parts()).take([2])


# --- a label for each voxel -----------------------------------------------------------------------------------------


def _segmented(cells: set[tuple[int, int, int]], label: int) -> Sample:
    sample = _sample(cells, 0)
    labels = (sample.coordinates.sum(dim=1).abs() + label).long()
    labels[0] = IGNORED
    return Sample(sample.coordinates, sample.features, labels)


segmented = st.lists(st.builds(_segmented, cells, st.integers(0, 9)), min_size=1, max_size=5)


@settings(max_examples=25)
@given(segmented, st.data())
def test_labels_stay_with_their_voxels(given_samples: list[Sample], data: st.DataObject) -> None:
    batch = collate(given_samples)
    assert batch.per_voxel
    assert len(batch) == len(given_samples)
    assert len(batch.labels) == batch.num_voxels
    chosen = data.draw(st.lists(st.integers(0, len(given_samples) - 1), min_size=1, max_size=6))
    for taken, index in zip(batch.take(chosen).samples(), chosen, strict=True):
        assert torch.equal(taken.label, given_samples[index].label)
        assert torch.equal(taken.coordinates, given_samples[index].coordinates)


def test_one_voxel_a_sample_is_no_reason_to_mistake_one_kind_of_label_for_the_other() -> None:
    """With N == B the shapes of both kinds are the same: `per_voxel` tells them apart."""
    coordinates = torch.tensor([[0, 1, 1, 1], [1, 2, 2, 2]], dtype=torch.int32)
    parts = {"coordinates": coordinates, "features": torch.ones(2, 1), "labels": torch.tensor([1, IGNORED])}
    assert PointBatch(**parts, per_voxel=True).check_classes(2).per_voxel
    with raises("batch.label_negative", "-100"):
        PointBatch(**parts)


@pytest.mark.parametrize(
    ("labels", "error"),
    [
        (torch.tensor([1, 2]), ("batch.label_count", "2", "3")),
        (torch.tensor([1, 2, -1]), ("batch.label_negative", "-1")),
        (torch.tensor([1.0, 2.0, 0.0]), ("batch.labels_malformed", "float32 [3]", "[N]")),
    ],
)
def test_malformed_labels_of_voxels_are_refused(labels: torch.Tensor, error: tuple[str, ...]) -> None:
    with raises(*error):
        PointBatch(**_parts() | {"labels": labels}, per_voxel=True)


def test_the_loss_of_torch_leaves_ignored_voxels_out() -> None:
    scores = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, IGNORED, 2, IGNORED])
    loss = torch.nn.functional.cross_entropy(scores, labels)
    assert torch.allclose(loss, torch.nn.functional.cross_entropy(scores[[0, 2]], labels[[0, 2]]))


def test_samples_of_both_kinds_do_not_mix() -> None:
    with raises("batch.label_kinds_differ"):
        collate([_sample({(0, 0, 0)}, 0), _segmented({(0, 0, 0)}, 0)])
