"""A forest of regression trees as plain arrays: what it says, and how it is kept in a file without any code in it.

Random forests (Breiman 2001) are grown by scikit-learn, see forest.py. Here they are read, checked and asked: a file
of one may come from anywhere, so that nothing in it is trusted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from ...util.io.fields import shown
from ...util.io.files import expanded, read_json, write_json
from ...util.io.quantities import SIZE

FORMAT = "sparsepipe-forest-1"
MOST_FEATURES, MOST_TREES, MOST_NODES = 1000, 5000, 5_000_000  # the last of all trees together
MOST_FILE_BYTES = 500_000_000
_LEAF = -1

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Forest:
    """Trees, all in one: node k of all trees asks `row[feature[k]] <= threshold[k]`, then goes left or right.

    A leaf has feature -1 and says `value[k]`; the forest's answer is the mean over trees, whose first nodes are
    `roots`. A tree's nodes stand together, children behind their parent. Features are compared as float32, as
    scikit-learn does. Raises InputError in one line if any of this does not hold.
    """

    names: tuple[str, ...]  # of the features, in the order of a row
    roots: Whole  # [T]
    feature: Whole  # [K]
    threshold: Floats  # [K]
    left: Whole  # [K]
    right: Whole  # [K]
    value: Floats  # [K]

    def __post_init__(self) -> None:
        _check_names(self.names)
        _check_nodes(self)

    def predict(self, rows: Sequence[Sequence[float]] | Floats) -> Floats:
        """Return the answer for each of `rows` [N, F]. Raises InputError for rows of another width, or with a NaN."""
        given = np.asarray(rows, dtype=np.float64)
        if given.ndim != 2 or given.shape[1] != len(self.names):
            raise InputError(
                "forest.row_shape",
                f"rows have shape {list(given.shape)}, but the forest has {len(self.names)} features",
            )
        if not np.isfinite(given).all():
            raise InputError("forest.not_finite", "a row contains a number that is not finite; remove that row")
        asked = given.astype(np.float32)
        at = np.broadcast_to(self.roots, (len(asked), len(self.roots))).copy()
        rows_at = np.arange(len(asked))[:, None]
        while (inner := self.feature[at] != _LEAF).any():
            below = asked[rows_at, self.feature[at]] <= self.threshold[at]
            at = np.where(inner, np.where(below, self.left[at], self.right[at]), at)
        return self.value[at].mean(axis=1)

    @cached_property
    def importances(self) -> Mapping[str, float]:
        """For each feature the share of the nodes that ask for it, the most first."""
        counts = np.bincount(self.feature[self.feature != _LEAF], minlength=len(self.names))
        shares = counts / max(1, counts.sum())
        return {self.names[k]: float(shares[k]) for k in np.argsort(-shares, kind="stable")}

    def to_json(self) -> dict[str, Any]:
        arrays = {name: getattr(self, name).tolist() for name in _ARRAYS}
        return {"format": FORMAT, "names": list(self.names), **arrays}

    @classmethod
    def from_json(cls, document: object, what: str = "forest") -> "Forest":
        """Read what `to_json` gives. Raises InputError in one line that begins with `what` for anything else."""
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise InputError("forest.malformed", f"{what}: expected an object whose format is {FORMAT!r}")
        names = document.get("names")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise InputError("forest.names_malformed", f"{what}: names are {shown(names)}, expected a list of strings")
        arrays = {name: _array(document.get(name), name, kind, what) for name, kind in _ARRAYS.items()}
        try:
            return cls(tuple(names), **arrays)
        except InputError as error:
            raise error.within(f"{what}: ") from None

    def save(self, path: Path | str) -> Path:
        return write_json(path, self.to_json())

    @classmethod
    def load(cls, path: Path | str) -> "Forest":
        """Read a file that `save` wrote. Raises InputError in one line for any other."""
        return cls.from_json(read_bounded_json(path, what="forest"), f"{path}")


_ARRAYS = {
    "roots": np.int64,
    "feature": np.int64,
    "threshold": np.float64,
    "left": np.int64,
    "right": np.int64,
    "value": np.float64,
}


def read_bounded_json(path: Path | str, *, what: str) -> Any:
    """Read JSON of a size that fits into memory. Raises InputError for a larger file, unread."""
    try:
        size = expanded(path).stat().st_size
    except (OSError, ValueError):
        size = 0  # what is wrong is told by who reads it
    if size > MOST_FILE_BYTES:
        raise InputError(
            "forest.too_large",
            f"{path}: has {SIZE.shown(size)}, expected at most {SIZE.shown(MOST_FILE_BYTES)} for a {what}",
        )
    return read_json(path, what=what)


def _array(value: object, name: str, kind: type, what: str) -> Any:
    """Turn a list of numbers into an array, and refuse all else."""
    allowed = (int,) if kind is np.int64 else (int, float)
    if not isinstance(value, list) or len(value) > MOST_NODES:
        raise InputError(
            "forest.list_malformed",
            f"{what}: {name} is {shown(value)}, expected a list of {MOST_NODES} numbers at most",
        )
    for place, item in enumerate(value):
        if type(item) not in allowed or not -(2**62) < item < 2**62:
            raise InputError(
                "forest.number_malformed",
                f"{what}: {name}[{place}] is {shown(item)}, expected a finite number",
            )
    return np.asarray(value, dtype=kind)


def _check_names(names: tuple[str, ...]) -> None:
    if not 0 < len(names) <= MOST_FEATURES:
        raise InputError("forest.feature_count", f"the forest has {len(names)} features, expected 1 to {MOST_FEATURES}")
    if len(set(names)) < len(names):
        raise InputError("forest.feature_twice", "a feature is listed twice; list each name once")


def _check_nodes(forest: Forest) -> None:
    """Refuse what would index past an array, go round in circles, or answer with no number."""
    count, trees = len(forest.feature), len(forest.roots)
    if not 0 < trees <= MOST_TREES:
        raise InputError("forest.tree_count", f"{trees} trees requested, expected 1 to {MOST_TREES}")
    lengths = {name: len(getattr(forest, name)) for name in _ARRAYS if name != "roots"}
    if not 0 < count <= MOST_NODES or set(lengths.values()) != {count}:
        raise InputError(
            "forest.node_count", f"node arrays have lengths {lengths}, expected equal lengths of at most {MOST_NODES}"
        )
    starts = forest.roots
    if starts[0] != 0 or (np.diff(starts) <= 0).any() or starts[-1] >= count:
        raise InputError(
            "forest.roots_malformed",
            f"roots are {shown(starts.tolist())}, expected increasing numbers from 0 to below {count}",
        )
    if not np.isfinite(forest.value).all() or not np.isfinite(forest.threshold).all():
        raise InputError("forest.node_not_finite", "a threshold or a value is not finite; train the forest again")
    inner = forest.feature != _LEAF
    if ((forest.feature < _LEAF) | (forest.feature >= len(forest.names))).any():
        raise InputError(
            "forest.feature_unknown",
            f"a node uses an unknown feature, expected -1 to {len(forest.names) - 1}",
        )
    places = np.arange(count)
    ends = np.append(starts[1:], count)[np.searchsorted(starts, places, side="right") - 1]  # of each node's tree
    for name in ("left", "right"):
        child = getattr(forest, name)
        if ((child <= places) | (child >= ends))[inner].any():
            raise InputError("forest.child_misplaced", f"a node's {name} child must come after the node in its tree")


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
