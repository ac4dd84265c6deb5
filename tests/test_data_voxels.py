"""Voxelization against a brute force in plain Python."""

import math

import numpy as np
import pytest
from coded import raises
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sparsepipe.data import IGNORED, unit_cube, voxelize
from sparsepipe.data.voxels import majority, mean_in_voxels, voxel_index

clouds = arrays(np.float64, st.tuples(st.integers(1, 30), st.integers(1, 4)), elements=st.floats(-100, 100, width=32))
sizes = st.floats(0.005, 50)


@settings(max_examples=25)
@given(clouds, sizes)
def test_voxels_are_the_cells_that_hold_a_point_each_once_in_order(points: np.ndarray, size: float) -> None:
    voxels = voxelize(points, size)
    assert voxels.dtype == np.int32
    expected = sorted({tuple(math.floor(float(x) / size) for x in point) for point in points})
    assert [tuple(voxel) for voxel in voxels.tolist()] == expected


@settings(max_examples=25)
@given(clouds, sizes, st.randoms(use_true_random=False))
def test_the_order_of_the_points_does_not_matter(points: np.ndarray, size: float, random: object) -> None:
    order = list(range(len(points)))
    random.shuffle(order)
    np.testing.assert_array_equal(voxelize(points, size), voxelize(points[order], size))


def test_ranges_too_wide_for_one_key_give_the_same_order() -> None:
    points = np.array([[2e9, -2e9, 2e9], [-2e9, 2e9, -2e9], [2e9, -2e9, 2e9], [0.5, 0.5, 0.5]])
    assert voxelize(points, 1.0).tolist() == [
        [-(2 * 10**9), 2 * 10**9, -(2 * 10**9)],
        [0, 0, 0],
        [2 * 10**9, -(2 * 10**9), 2 * 10**9],
    ]


@settings(max_examples=25)
@given(clouds)
def test_the_unit_cube_starts_at_zero_and_is_one_long(points: np.ndarray) -> None:
    extent = np.ptp(points, axis=0).max()
    if extent == 0:
        with raises("cloud.no_extent"):
            unit_cube(points)
        return
    cube = unit_cube(points)
    np.testing.assert_array_equal(cube.min(axis=0), 0)
    assert cube.max() == 1
    np.testing.assert_allclose(cube * extent + points.min(axis=0), points, atol=1e-9)  # proportions stay


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_points_that_are_not_finite_are_refused_with_their_index(bad: float) -> None:
    points = np.zeros((4, 3))
    points[2, 1] = bad
    for function in (unit_cube, lambda cloud: voxelize(cloud, 0.1)):
        with raises("cloud.not_finite", "2", "1", "4"):
            function(points)


@pytest.mark.parametrize("size", [0.0, -1.0, math.nan, math.inf])
def test_a_voxel_size_that_is_not_positive_is_refused(size: float) -> None:
    with raises("voxels.size_out_of_range"):
        voxelize(np.ones((1, 3)), size)


def test_an_empty_cloud_a_wrong_shape_and_voxels_beyond_int32_are_refused() -> None:
    with raises("cloud.no_points"):
        voxelize(np.empty((0, 3)), 1.0)
    with raises("cloud.shape", "[3]"):
        voxelize(np.zeros(3), 1.0)
    with raises("voxels.out_of_reach", "beyond int32"):
        voxelize(np.array([[1e6, 0, 0]]), 1e-4)


# --- what points say of their voxel ---------------------------------------------------------------------------------

votes = st.lists(st.tuples(st.integers(0, 4), st.sampled_from([IGNORED, 0, 1, 2, 7])), min_size=1, max_size=40)


@settings(max_examples=25)
@given(votes)
def test_the_majority_against_counting(ballots: list[tuple[int, int]]) -> None:
    index, labels = (np.array(column) for column in zip(*ballots, strict=True))
    expected = []
    for voxel in range(5):
        valid = sorted(label for place, label in ballots if place == voxel and label != IGNORED)
        expected.append(max(valid, key=valid.count) if valid else IGNORED)  # of equals the first: the smallest
    assert majority(labels, index, 5).tolist() == expected


@settings(max_examples=25)
@given(clouds, sizes)
def test_the_index_leads_each_point_to_its_voxel_and_means_are_means(points: np.ndarray, size: float) -> None:
    coordinates, index = voxel_index(points, size)
    np.testing.assert_array_equal(coordinates, voxelize(points, size))
    np.testing.assert_array_equal(coordinates[index], np.floor(points / size))
    means = mean_in_voxels(points, index, len(coordinates))
    for voxel in range(len(coordinates)):
        np.testing.assert_allclose(means[voxel], points[index == voxel].mean(axis=0), rtol=1e-4, atol=1e-4)


def test_the_index_holds_where_coordinates_span_more_than_an_integer_key_holds() -> None:
    points = np.array([[2e9, 2e9, 2e9], [-2e9, -2e9, -2e9], [2e9, 2e9, 2e9]])
    coordinates, index = voxel_index(points, 1.0)
    np.testing.assert_array_equal(coordinates[index], points)
