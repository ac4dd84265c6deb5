"""Samplers: frequencies by weight, the same draws in every process, and indices that exist."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from coded import raises
from hypothesis import given
from hypothesis import strategies as st
from test_data_examples_own import own

from sparsepipe.data.examples import open_examples
from sparsepipe.data.samplers import class_weights, dealt, draw, split_by_size, substituted


@dataclass
class Split:
    labels: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.labels)


RARE = Split((0,) * 900 + (1,) * 90 + (2,) * 10)


def test_weighted_draws_each_class_as_often_or_by_the_weights_given() -> None:
    classes = Counter(
        RARE.labels[index] for epoch in range(10) for index in draw("weighted", RARE, seed=1, epoch=epoch)
    )
    assert all(abs(classes[label] / 10_000 - 1 / 3) < 0.03 for label in range(3))
    twice = draw("weighted", RARE, weights=[1.0] + [0.0] * 998 + [3.0], epoch=2)
    assert set(twice) == {0, 999} and 0.7 < twice.count(999) / len(twice) < 0.8
    assert draw("weighted", RARE, epoch=2) == draw("weighted", RARE, epoch=2) != draw("weighted", RARE, epoch=3)


def test_a_sampler_of_ones_own_says_the_samples_of_an_epoch(tmp_path: Path) -> None:
    sampler = own(tmp_path, "def make(num_samples, seed, epoch): return [(seed + epoch) % num_samples, 1]\n", "sampler")
    assert draw(sampler, RARE, seed=3, epoch=2) == (5, 1)
    assert dealt((5, 1, 1), batch_size=2, last="drop") == ((5, 1),)


@pytest.mark.parametrize(
    ("sampler", "weights", "code"),
    [
        ("even", None, "sampler.unknown"),
        ("weighted", [1.0], "sampler.weights_malformed"),
        ("weighted", [0.0] * 1000, "sampler.weights_malformed"),
        ("weighted", ["much"] * 1000, "sampler.weights_malformed"),
        ("def make(num_samples, seed, epoch): return [1000]", None, "sampler.sample_unknown"),
        ("def make(num_samples, seed, epoch): return []", None, "sampler.sample_unknown"),
        ("def make(num_samples, seed, epoch): return 3", None, "sampler.not_indices"),
        ("def make(num_samples): return [0]", None, "sampler.raises"),
        ("def make(num_samples, seed, epoch): return {}['x']", None, "sampler.raises"),
    ],
)
def test_what_is_no_sampler_is_refused(tmp_path: Path, sampler: str, weights: list | None, code: str) -> None:
    with raises(code):
        draw(own(tmp_path, sampler) if "def" in sampler else sampler, RARE, weights=weights)


def test_balanced_weights_are_inverse_to_counts(tmp_path: Path) -> None:
    body = "import torch\ndef make(split): return [(1.0, torch.tensor([0, 0, 0, 2, -100])), (1.0, torch.tensor([2]))]\n"
    voxels = open_examples(own(tmp_path, body), split="train")
    weights = class_weights(voxels, 4)
    assert weights == pytest.approx([2.5 / 3, 0.0, 2.5 / 2, 0.0])
    counts = [3, 0, 2, 0]
    assert sum(weight * count for weight, count in zip(weights, counts, strict=True)) == pytest.approx(sum(counts))
    with raises("loss.class_weights_malformed", "train/0"):
        class_weights(voxels, 2)


def test_draws_repeat_in_every_process_and_after_resuming(tmp_path: Path) -> None:
    body = "import numpy as np\ndef make(num_samples, seed, epoch): return np.random.permutation(num_samples)\n"
    sampler = own(tmp_path, body, "sampler")
    assert draw(sampler, RARE, epoch=1) == draw(sampler, RARE, epoch=1) != draw(sampler, RARE, epoch=2)
    module = "rng = np.random.default_rng(0)\ndef make(num_samples, seed, epoch): return rng.permutation(num_samples)\n"
    with raises("sampler.not_repeatable"):
        draw(own(tmp_path, "import numpy as np\n" + module, "goes_on"), RARE)
    body = """
    import torch
    class Items(list):
        def __init__(self):
            super().__init__([(1.0, k % 2) for k in range(8)])
            draws = torch.Generator().manual_seed(0)
            self.sampler = torch.utils.data.WeightedRandomSampler([1.0] * 8, 8, generator=draws)
    def make(split): return Items()
    """
    samples, resumed = (open_examples(own(tmp_path, body), split="train") for _ in range(2))
    assert samples.drawn(0) != samples.drawn(1)
    assert samples.drawn(0) == samples.drawn(0) and samples.drawn(2) == resumed.drawn(2)


@given(
    counts=st.lists(st.integers(1, 5), min_size=1, max_size=6),
    away=st.sets(st.integers(0, 29)),
    epoch=st.integers(0, 3),
)
def test_others_take_the_place_of_samples_that_are_left_out(counts, away, epoch) -> None:
    order = iter(np.random.default_rng(epoch).permutation(30).tolist())
    minibatches = tuple(tuple(next(order) for _ in range(count)) for count in counts)
    if len(away) == 30:
        return
    found = substituted(minibatches, away, num_samples=30, seed=1, epoch=epoch)
    assert found == substituted(minibatches, away, num_samples=30, seed=1, epoch=epoch)
    for before, after in zip(minibatches, found, strict=True):
        assert len(before) == len(after) and not away & set(after)
        assert all(old == new for old, new in zip(before, after, strict=True) if old not in away)
        assert len(set(after)) == min(len(after), 30 - len(away)) or 30 - len(away) < len(after)


@given(sizes=st.lists(st.integers(1, 100), min_size=1, max_size=9), most=st.integers(1, 300))
def test_parts_of_a_minibatch_fit_and_are_few(sizes, most) -> None:
    samples = [7 + 3 * k for k in range(len(sizes))]
    parts, size_of = split_by_size(samples, sizes, most), dict(zip(samples, sizes, strict=True))
    assert parts == split_by_size(samples, sizes, most)
    assert sorted(sample for part in parts for sample in part) == samples and all(map(len, parts))
    assert all(list(part) == sorted(part) for part in parts), "samples keep their order"
    if max(sizes) <= most:
        assert all(sum(map(size_of.get, part)) <= most for part in parts)
        assert len(parts) <= max(1, 2 * sum(sizes) / most), "two parts together would not fit into one"
    spare = [min(map(size_of.get, part)) for part in parts if len(part) > 2]
    alone = [size_of[part[0]] for part in parts if len(part) == 1]
    assert all(one + other > most for one in alone for other in spare), "batch norm needs two samples where they fit"
