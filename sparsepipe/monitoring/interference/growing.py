"""Grow a forest on measured rows, by scikit-learn, and take its trees out as arrays."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...errors import InputError
from .forest import Floats, Forest


@dataclass(frozen=True)
class Growth:
    """Growth parameters: number of trees, fewest rows of a leaf, and the share of features per node."""

    trees: int = 500
    least_rows: int = 1
    feature_share: float = 1.0
    seed: int = 42


DYNPIPE = Growth()  # what DynPipe published: scikit-learn's own defaults, 500 trees
COARSE = Growth(
    least_rows=5, feature_share=1 / 3
)  # Liaw and Wiener 2002, their defaults for regression: few rows, noise


def grow(
    names: Sequence[str], rows: Sequence[Sequence[float]] | Floats, targets: Sequence[float] | Floats, growth: Growth
) -> Forest:
    """Grow a random forest (Breiman 2001) that answers with `targets` [N] for `rows` [N, F]; the same for one seed.

    Raises InputError for fewer than two rows, for rows of another width than there are `names`, and if scikit-learn
    is not installed.
    """
    given, wanted = np.asarray(rows, dtype=np.float64), np.asarray(targets, dtype=np.float64)
    if given.ndim != 2 or given.shape[1] != len(names) or len(given) != len(wanted):
        raise InputError(
            "forest.row_shape",
            f"rows have shape {list(given.shape)}, but there are {len(names)} features and {len(wanted)} targets",
        )
    if len(given) < 2:
        raise InputError("forest.too_few_rows", f"{len(given)} training rows, expected at least two; measure more")
    if not np.isfinite(given).all() or not np.isfinite(wanted).all():
        raise InputError("forest.not_finite", "a training row contains a number that is not finite; remove that row")
    from sklearn.ensemble import RandomForestRegressor

    found = RandomForestRegressor(
        n_estimators=growth.trees,
        min_samples_leaf=growth.least_rows,
        max_features=growth.feature_share,
        random_state=growth.seed,
    ).fit(given, wanted)
    return _as_arrays(tuple(names), [estimator.tree_ for estimator in found.estimators_])


def _as_arrays(names: tuple[str, ...], trees: Sequence[object]) -> Forest:
    """Put scikit-learn's trees one behind the other; a leaf asks for feature -1 and has no children."""
    sizes = [len(tree.feature) for tree in trees]  # type: ignore[attr-defined]
    roots = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
    joined = {}
    for ours, theirs in (("feature", "feature"), ("left", "children_left"), ("right", "children_right")):
        shift = 0 if ours == "feature" else roots
        parts = [getattr(tree, theirs).astype(np.int64) for tree in trees]
        shifted = [part + start for part, start in zip(parts, np.broadcast_to(shift, len(parts)), strict=True)]
        joined[ours] = np.concatenate(shifted)
    leaf = joined["feature"] < 0
    threshold = np.concatenate([tree.threshold for tree in trees])  # type: ignore[attr-defined]
    value = np.concatenate([tree.value[:, 0, 0] for tree in trees])  # type: ignore[attr-defined]
    places = np.arange(len(leaf))
    return Forest(
        names,
        roots,
        np.where(leaf, -1, joined["feature"]),
        np.where(leaf, 0.0, threshold),
        np.where(leaf, places, joined["left"]),
        np.where(leaf, places, joined["right"]),
        value,
    )
