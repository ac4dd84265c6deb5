"""Numbers that a caller gives: text in their place, as notebooks' tools pass it, is refused in one line."""

from collections.abc import Callable

import pytest

from sparsepipe import Cluster, InputError, data
from sparsepipe.data.recipe import Recipe


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Recipe("0.05"), "voxel size '0.05' given, expected a number"),
        (lambda: Recipe(True), "voxel size True given, expected a number"),
        (lambda: Recipe([0.05]), "voxel size [0.05] given, expected a number"),
        (lambda: Recipe(0.05, num_points="100"), "points a sample: '100' given, expected a whole number"),
        (lambda: Recipe(0.05, num_points=0.5), "points a sample: 0.5 given, expected a whole number"),
        (lambda: Recipe(0.05, seed="1"), "seed '1' given, expected a whole number"),
        (lambda: data.voxelize([[0.0, 0, 0]], "0.1"), "voxel size '0.1' given, expected a number"),
        (lambda: data.minibatches("9", batch_size=4), "samples '9' given, expected a whole number"),
        (lambda: data.minibatches(9, batch_size="4"), "batch size '4' given, expected a whole number"),
        (lambda: data.minibatches(9, batch_size=4, seed="1"), "seed '1' given, expected a whole number"),
        (lambda: data.minibatches(9, batch_size=4, epoch="1"), "epoch '1' given, expected a whole number"),
        (
            lambda: data.voxel_balanced_minibatches([1, 2], batch_size=4, window="3"),
            "window '3' given, expected a whole number",
        ),
        (
            lambda: data.make_shapes("out", num_train="3", num_test=1),
            "training shapes: '3' given, expected a whole number",
        ),
        (lambda: Cluster.uniform("3"), "a device count of '3' given, expected a whole number"),
    ],
)
def test_text_where_a_number_is_expected_is_refused_in_one_line(call: Callable, message: str) -> None:
    """papermill -r voxel_size 0.05 ended a cell in "TypeError: must be real number, not str"."""
    with pytest.raises(InputError) as caught:
        call()
    assert str(caught.value) == message
