"""Crops: every point is in one, none reaches beyond its shape, and text says what they are."""

import numpy as np
import pytest
from coded import raises
from hypothesis import given
from hypothesis import settings as drawn
from hypothesis import strategies as st

from sparsepipe.data.crops import CROPS, Cuboid, Sphere, named_crop

MAP = np.array([448000.0, 5428000.0, 120.0])
kinds = st.sampled_from(["cuboid:3", "column:2.5", "sphere:radius=2", "cuboid:3,overlap=0.5", "sphere:2,overlap=0.3"])


@drawn(max_examples=40)
@given(kinds, st.integers(1, 60), st.floats(0.1, 12), st.integers(0, 2**32), st.sampled_from([0, 1, 100]))
def test_crops_cover_a_scene_and_stay_within_their_shape(
    kind: str, count: int, extent: float, seed: int, far: int
) -> None:
    crop, draw = named_crop(kind), np.random.default_rng(seed)
    points = draw.uniform(-extent, extent, (count, 3)) + far * MAP
    cells = crop.cells(points)
    parts = [crop.rows(points, cell) for cell in cells]
    assert set(np.concatenate(parts)) == set(range(count)) and all(len(part) for part in parts)
    for rows in (*parts, crop.random_rows(points, draw)):
        sides = np.ptp(points[rows], axis=0)[: crop.axes]
        assert (sides <= (2 * crop.radius if isinstance(crop, Sphere) else crop.size) + 1e-6).all()
    if "overlap" not in kind and not isinstance(crop, Sphere):
        assert sum(map(len, parts)) <= count + 4 * len(cells), "cells share their sides alone"


def test_a_random_crop_is_decided_by_its_generator() -> None:
    points = np.random.default_rng(0).uniform(0, 20, (500, 3))
    one, two, other = (Cuboid(4.0).random_rows(points, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert np.array_equal(one, two) and not np.array_equal(one, other)


@pytest.mark.parametrize("text", ["cuboid:size=4", "column:size=2.5,overlap=0.5", "sphere:radius=3"])
def test_text_and_crop_are_one(text: str) -> None:
    assert str(named_crop(text)) == text and named_crop(named_crop(text)) == named_crop(text)
    name, _, rest = text.partition(":")
    assert named_crop(f"{name}:{rest.partition('=')[2]}") == named_crop(text), "the first option needs no name"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("ball:2", "crop.unknown"),
        ("sphere", "option.missing"),
        ("sphere:0", "crop.out_of_range"),
        ("sphere:wide", "crop.out_of_range"),
        ("cuboid:4,overlap=1", "crop.out_of_range"),
        ("cuboid:4,depth=1", "option.unknown"),
        ("column:nan", "crop.out_of_range"),
    ],
)
def test_what_is_no_crop_is_refused(text: str, code: str) -> None:
    with raises(code):
        named_crop(text)


def test_a_crop_that_is_far_too_small_is_refused() -> None:
    points = np.random.default_rng(0).uniform(0, 1e4, (2**16 + 1, 3))
    with raises("crop.too_many", str(2**16 + 1)):
        named_crop("cuboid:0.001").cells(points)
    assert set(CROPS) == {"cuboid", "column", "sphere"}
