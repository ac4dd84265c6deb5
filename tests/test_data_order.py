"""The order of an epoch: each sample once, or classes alike, or minibatches of equal work; by seed and epoch alone."""

from collections import Counter

import numpy as np
import pytest
from coded import raises
from hypothesis import given
from hypothesis import strategies as st

from sparsepipe import data
from sparsepipe.errors import InputError

seeds, epochs, batch_sizes = st.integers(0, 5), st.integers(0, 5), st.integers(1, 20)
counts = st.lists(st.integers(1, 5000), min_size=1, max_size=150)
labels = st.lists(st.integers(0, 6), min_size=1, max_size=120)


@given(st.integers(1, 60), st.integers(1, 70), seeds, epochs, st.booleans())
def test_an_epoch_visits_each_sample_once(num: int, batch_size: int, seed: int, epoch: int, shuffle: bool) -> None:
    options = {"batch_size": batch_size, "seed": seed, "epoch": epoch, "shuffle": shuffle}
    batches = data.minibatches(num, **options)
    assert sorted(index for batch in batches for index in batch) == list(range(num))
    assert all(len(batch) == batch_size for batch in batches[:-1])
    assert 1 <= len(batches[-1]) <= batch_size
    assert batches == data.minibatches(num, **options)
    if not shuffle:
        assert [index for batch in batches for index in batch] == list(range(num))


def test_epochs_and_seeds_give_other_orders() -> None:
    orders = {data.minibatches(50, batch_size=50, seed=seed, epoch=epoch) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9


@given(counts, batch_sizes, seeds, epochs, st.integers(1, 20))
def test_voxel_balanced_minibatches_visit_each_sample_once_and_differ_by_less_than_samples_do(
    voxels: list[int], batch_size: int, seed: int, epoch: int, window: int
) -> None:
    options = {"batch_size": batch_size, "seed": seed, "epoch": epoch, "window": window}
    batches = data.voxel_balanced_minibatches(voxels, **options)
    assert sorted(index for batch in batches for index in batch) == list(range(len(voxels)))
    assert all(len(batch) == batch_size for batch in batches[:-1])
    assert 1 <= len(batches[-1]) <= batch_size
    assert batches == data.voxel_balanced_minibatches(voxels, **options)
    whole = len(voxels) // batch_size
    for start in range(0, whole, window):
        chosen = batches[start : min(start + window, whole)]
        totals = [sum(voxels[index] for index in batch) for batch in chosen]
        sizes = [voxels[index] for batch in chosen for index in batch]
        assert max(totals) - min(totals) <= max(sizes) - min(sizes)


def test_replicas_get_equal_work() -> None:
    """Four replicas take a minibatch each: how much longer the slowest works than the mean of its round."""
    voxels = np.random.default_rng(0).lognormal(7, 0.4, size=960).astype(int).tolist()

    def waste(batches: tuple) -> float:
        totals = np.array([sum(voxels[index] for index in batch) for batch in batches]).reshape(-1, 4)
        return float((totals.max(axis=1) / totals.mean(axis=1) - 1).mean())

    by_chance = waste(data.minibatches(960, batch_size=8))
    assert by_chance > 0.1
    assert waste(data.voxel_balanced_minibatches(voxels, batch_size=8)) < by_chance / 10


def test_voxel_balanced_epochs_mix_anew() -> None:
    voxels = list(range(100, 164))
    made = [data.voxel_balanced_minibatches(voxels, batch_size=4, window=4, epoch=epoch) for epoch in range(3)]
    assert len({frozenset(map(frozenset, batches)) for batches in made}) == 3
    first = [batch[0] for batches in made for batch in batches]
    assert np.mean(first) == pytest.approx(31.5, abs=8)  # a minibatch does not begin with its largest sample


@given(counts, batch_sizes, seeds, epochs, st.integers(1, 20))
def test_bucketed_minibatches_visit_each_sample_once_and_hold_neighbours_by_size(
    lengths: list[int], batch_size: int, seed: int, epoch: int, window: int
) -> None:
    options = {"batch_size": batch_size, "seed": seed, "epoch": epoch, "window": window}
    batches = data.bucketed_minibatches(lengths, **options)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    assert all(len(batch) == batch_size for batch in batches[:-1])
    assert 1 <= len(batches[-1]) <= batch_size
    assert batches == data.bucketed_minibatches(lengths, **options)
    whole = len(lengths) // batch_size
    if window >= whole:  # one window: minibatches are cut from one sorted row
        ranges = sorted(sorted(lengths[index] for index in batch) for batch in batches[:whole])
        assert all(one[-1] <= other[0] for one, other in zip(ranges, ranges[1:], strict=False))


def test_bucketing_spares_padding_and_mixes_from_epoch_to_epoch() -> None:
    lengths = np.random.default_rng(0).integers(1, 100, size=1000).tolist()

    def padding(batches: tuple) -> float:
        padded = sum(max(lengths[index] for index in batch) * len(batch) for batch in batches)
        return padded / sum(lengths) - 1

    by_chance = padding(data.minibatches(1000, batch_size=16))
    made = [data.bucketed_minibatches(lengths, batch_size=16, window=20, epoch=epoch) for epoch in range(3)]
    assert by_chance > 0.7
    assert all(padding(batches) < by_chance / 6 for batches in made)
    assert len({frozenset(map(frozenset, batches)) for batches in made}) == 3
    first = [np.mean([lengths[index] for index in batch]) for batch in made[0][:31]]
    assert 30 < np.mean(first) < 70  # an epoch does not begin with the short ones


@given(labels, batch_sizes, seeds, epochs)
def test_class_balanced_minibatches_have_classes_alike(
    given_labels: list[int], batch_size: int, seed: int, epoch: int
) -> None:
    options = {"batch_size": batch_size, "seed": seed, "epoch": epoch}
    batches = data.class_balanced_minibatches(given_labels, **options)
    assert batches == data.class_balanced_minibatches(given_labels, **options)
    plain = data.minibatches(len(given_labels), batch_size=batch_size)
    assert [len(batch) for batch in batches] == [len(batch) for batch in plain]
    classes = sorted(set(given_labels))
    for chosen in (*batches, tuple(index for batch in batches for index in batch)):  # each minibatch, and the epoch
        found = Counter(given_labels[index] for index in chosen)
        numbers = [found[label] for label in classes]
        assert max(numbers) - min(numbers) <= 1
    drawn = Counter(index for batch in batches for index in batch)
    for label in classes:
        times = [drawn[index] for index, own in enumerate(given_labels) if own == label]
        assert max(times) - min(times) <= 1


def test_class_balanced_epochs_draw_anew() -> None:
    made = {data.class_balanced_minibatches([0] * 20 + [1] * 5, batch_size=5, epoch=epoch) for epoch in range(4)}
    assert len(made) == 4


@pytest.mark.parametrize("bad", [{"num_samples": 0}, {"batch_size": 0}, {"epoch": -1}, {"seed": -1}])
def test_bad_numbers_are_refused(bad: dict) -> None:
    options = {"num_samples": 4, "batch_size": 2} | bad
    num_samples = options.pop("num_samples")
    for make, first in (
        (data.minibatches, num_samples),
        (data.voxel_balanced_minibatches, [1] * num_samples),
        (data.bucketed_minibatches, [1] * num_samples),
        (data.class_balanced_minibatches, [1] * num_samples),
    ):
        with pytest.raises(InputError, match="expected"):
            make(first, **options)
    for make in (data.voxel_balanced_minibatches, data.bucketed_minibatches):
        with pytest.raises(InputError, match="window 0 given"):
            make([1, 2], batch_size=1, window=0)


# --- the last minibatch ---------------------------------------------------------------------------------------------


@given(st.integers(1, 60), st.integers(1, 20), st.sampled_from(data.LAST_MINIBATCH), seeds)
def test_what_becomes_of_the_last_minibatch_is_known_from_the_numbers(
    num: int, size: int, last: str, seed: int
) -> None:
    told = data.sizes(num, size, last=last)
    orders = [
        data.minibatches(num, batch_size=size, seed=seed, last=last),
        data.voxel_balanced_minibatches(list(range(1, num + 1)), batch_size=size, seed=seed, last=last),
        data.bucketed_minibatches(list(range(1, num + 1)), batch_size=size, seed=seed, last=last),
        data.class_balanced_minibatches([k % 3 for k in range(num)], batch_size=size, seed=seed, last=last),
    ]
    for order in orders:
        assert tuple(map(len, order)) == told
    for order in orders[:3]:
        visited = sorted(index for batch in order for index in batch)
        assert len(set(visited)) == len(visited) == sum(told)
    rest = num % size
    if last != "drop" or num < size:
        assert sum(told) == num
    if last == "drop" and num >= size:
        assert set(told) == {size}
    if last == "merge" and num > size > 1:
        assert min(told) > 1 and len(told) == num // size + (rest > 1)


def test_the_last_minibatch_in_plain_numbers() -> None:
    assert [data.sizes(9, 4, last=last) for last in data.LAST_MINIBATCH] == [(4, 4, 1), (4, 5), (4, 4)]
    assert [data.sizes(10, 4, last=last) for last in data.LAST_MINIBATCH] == [(4, 4, 2), (4, 4, 2), (4, 4)]
    assert [data.sizes(1, 4, last=last) for last in data.LAST_MINIBATCH] == [(1,)] * 3
    with raises("order.last_minibatch", "keep, merge, drop", last="lose"):
        data.sizes(9, 4, last="lose")
