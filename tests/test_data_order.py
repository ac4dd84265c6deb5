"""The order of an epoch: each sample once, or classes alike, or minibatches of equal work; by seed and epoch alone."""

from collections import Counter
from typing import Any

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


def lognormal(cv: float, seed: int, count: int = 512) -> np.ndarray:
    return np.random.default_rng(seed).lognormal(0, np.log(1 + cv * cv) ** 0.5, count)


def seconds_of_1f1b(costs: np.ndarray, stages: int) -> float:
    """Asynchronous 1F1B of equal stages, written from its definition: a backward costs two forwards."""
    count = len(costs)
    ends = {}  # (is backward, stage, minibatch) -> second
    free, places = [0.0] * stages, [0] * stages
    programs = []
    for stage in range(stages):
        warmup = min(stages - stage, count)
        actions = [(False, number) for number in range(warmup)]
        for number in range(count):
            actions += [(True, number)] + [(False, number + warmup)] * (number + warmup < count)
        programs.append(actions)
    while len(ends) < 2 * count * stages:
        for stage, program in enumerate(programs):
            while places[stage] < len(program):
                backward, number = program[places[stage]]
                source = (True, stage + 1, number) if backward else (False, stage - 1, number)
                if backward and stage == stages - 1:
                    source = (False, stage, number)
                if source not in ends and not (stage == 0 and not backward):
                    break
                begin = max(free[stage], ends.get(source, 0.0))
                free[stage] = ends[backward, stage, number] = begin + costs[number] * (2 if backward else 1)
                places[stage] += 1
    return max(free)


@given(
    st.lists(st.floats(0.1, 9), min_size=1, max_size=70),
    st.sampled_from(data.ORDERS),
    st.integers(0, 3),
    st.integers(1, 9),
    st.integers(1, 4),
    st.one_of(st.none(), st.floats(1, 5)),
    st.integers(1, 5),
)
def test_composed_minibatches_hold_each_sample_once_within_the_budget(
    sizes: list[float], order: str, epoch: int, stages: int, step: int, budget: float | None, batch_size: int
) -> None:
    limit = budget and budget * max(sizes)
    settings: dict[str, Any] = {"order": order, "stages": stages, "step": step, "seed": 3}
    settings |= {"budget": limit} if limit else {"batch_size": batch_size}
    dealt = data.compose(sizes, epoch=epoch, **settings)
    assert sorted(sample for samples in dealt for sample in samples) == list(range(len(sizes)))
    assert all(dealt)
    assert dealt == data.compose(sizes, epoch=epoch, **settings)
    assert len(dealt) == len(data.compose(sizes, epoch=epoch + 7, **settings))
    if limit:
        assert max(sum(sizes[sample] for sample in samples) for samples in dealt) <= limit * (1 + 1e-12)


def test_shuffled_minibatches_are_those_of_today_to_the_bit() -> None:
    sizes = lognormal(0.5, 0)
    for last in data.LAST_MINIBATCH:
        expected = data.minibatches(len(sizes), batch_size=3, seed=5, epoch=2, last=last)
        assert data.compose(sizes, batch_size=3, seed=5, epoch=2, last=last) == expected
        snake = data.compose(sizes, batch_size=3, order="snake", seed=5, epoch=2, last=last)
        assert sorted(snake) == sorted(expected)


@pytest.mark.parametrize("order", ["shuffle", "planned"])
def test_an_order_without_need_is_the_random_one(order: str) -> None:
    assert data.compose([2.0] * 50, batch_size=1, order=order, stages=4) == data.minibatches(50, batch_size=1)
    assert data.compose(lognormal(0.5, 0), batch_size=1, order=order, stages=1) == data.minibatches(512, batch_size=1)


def neighbours(order: np.ndarray, sizes: np.ndarray) -> float:
    """The mean difference of rank between neighbours, as a share of all ranks: 1/3 in random order."""
    ranks = np.argsort(np.argsort(sizes))[order] / len(sizes)
    return float(np.abs(np.diff(ranks)).mean())


@pytest.mark.parametrize(("cv", "stages", "most"), [(0.5, 2, 1.03), (0.5, 4, 1.06), (0.5, 8, 1.12), (0.8, 8, 1.2)])
def test_planned_orders_lose_little_time_and_stay_nearer_to_random_than_windows(
    cv: float, stages: int, most: float
) -> None:
    ratios, windows = [], []
    for seed in (0, 1):
        sizes = lognormal(cv, seed, 1024)
        balanced = seconds_of_1f1b(np.full(1024, sizes.mean()), stages)
        planned = np.concatenate(data.compose(sizes, batch_size=1, order="planned", stages=stages, seed=seed))
        ratios.append(seconds_of_1f1b(sizes[planned], stages) / balanced)
        for window in (32, 40, 48, 56, 64):  # the first of windows up and down that is as fast
            snake = np.concatenate(data.compose(sizes, batch_size=1, order="snake", window=window, seed=seed))
            if seconds_of_1f1b(sizes[snake], stages) / balanced <= ratios[-1]:
                break
        windows.append((neighbours(planned, sizes), neighbours(snake, sizes)))
    assert np.mean(ratios) <= most
    assert all(mine > theirs for mine, theirs in windows)


def test_steps_of_data_parallelism_wait_little_with_a_budget() -> None:
    sizes = lognormal(0.5, 1, 4096)
    dealt = (
        data.compose(sizes, budget=4 * sizes.mean(), order="planned", step=8)
        if sizes.max() < 4 * sizes.mean()
        else None
    )
    dealt = dealt or data.compose(sizes, budget=sizes.max(), order="planned", step=8)
    totals = np.array([sizes[list(samples)].sum() for samples in dealt])
    steps = totals[: len(totals) // 8 * 8].reshape(-1, 8)
    assert (8 * steps.max(axis=1)).sum() / steps.sum() <= 1.08


@pytest.mark.parametrize(
    ("sizes", "settings", "code", "fields"),
    [
        ([1.0, 4.0], {}, "order.budget_or_batch_size", {}),
        ([1.0, 4.0], {"budget": 3, "batch_size": 1}, "order.budget_or_batch_size", {}),
        ([1.0, 4.0], {"budget": 3}, "order.sample_above_budget", {"sample": 1}),
        ([1.0, 4.0], {"budget": -3}, "order.sample_above_budget", {"sample": 1}),
        ([1.0, 4.0], {"batch_size": 1, "order": "sorted"}, "order.unknown", {"order": "sorted"}),
        ([1.0, 0.0], {"batch_size": 1}, "order.size_not_positive", {"sample": 1}),
        ([1.0, -1.0], {"budget": 2}, "order.size_not_positive", {"sample": 1}),
        ([1.0, float("nan")], {"batch_size": 1}, "order.size_not_positive", {"sample": 1}),
        ([], {"batch_size": 1}, "order.sizes_malformed", {}),
    ],
)
def test_what_cannot_be_composed_is_named(
    sizes: list[float], settings: dict[str, Any], code: str, fields: dict[str, object]
) -> None:
    with raises(code, **fields):
        data.compose(sizes, **settings)
