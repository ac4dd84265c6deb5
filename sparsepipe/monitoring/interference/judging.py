"""How far a forest's slow-downs are from measured ones on rows it did not learn from, compared with the mean
predictor's.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...errors import InputError
from .forest import Floats, Forest
from .growing import DYNPIPE, Growth, grow
from .rows import Row, table_of


@dataclass(frozen=True)
class Judged:
    """Errors on rows that were held out: the mean of |predicted / measured - 1|.

    The mean predictor says for every row the mean of the slow-downs that were learned from; the mean pace's error is
    that of 1 over the mean of their inverses, which slow-downs of a hundred do not pull away.
    """

    num_learned: int
    num_held_out: int
    error: float
    mean_predictor_error: float
    mean_pace_error: float

    def __str__(self) -> str:
        return (
            f"{self.error:.1%} mean error on {self.num_held_out} held-out rows (predicting the mean of the "
            f"{self.num_learned} other rows: {self.mean_predictor_error:.1%}, their mean slowdown: "
            f"{self.mean_pace_error:.1%})"
        )


def relative_error(predicted: Floats, measured: Floats) -> float:
    """Return the mean of |predicted / measured - 1|."""
    return float(np.abs(predicted / measured - 1).mean())


def split(count: int, *, share: float = 0.3, seed: int = 42) -> tuple[list[int], list[int]]:
    """Return which of `count` rows are learned from and which held out, as scikit-learn's train_test_split draws them.

    The shares and the seed are those that DynPipe published.
    """
    held_out = int(np.ceil(share * count))
    if not 0 < held_out < count:
        raise InputError(
            "forest.too_few_rows",
            f"{count} rows for training and testing, expected at least two; measure more",
        )
    drawn = np.random.RandomState(seed).permutation(count)
    return drawn[held_out:count].tolist(), drawn[:held_out].tolist()


def judge(
    learned: Sequence[Row], held_out: Sequence[Row], growth: Growth = DYNPIPE, *, of_paces: bool = False
) -> tuple[Forest, Judged]:
    """Grow a forest on some rows and ask it about others.

    `of_paces`: it learns which share of its pace a victim keeps, 1 over the slow-down, as Gavel does: if some
    slow-downs are a hundred times others, these alone would be learned. Raises InputError for rows of unlike features,
    or for none.
    """
    names, given, slowdowns = table_of(learned)
    other_names, asked, measured = table_of(held_out)
    if names != other_names:
        raise InputError(
            "forest.features_differ", "held-out rows and training rows have different features; give both the same"
        )
    forest = grow(names, given, 1 / slowdowns if of_paces else slowdowns, growth)
    found = forest.predict(asked)
    errors = [
        relative_error(np.broadcast_to(predicted, measured.shape), measured)
        for predicted in (1 / found if of_paces else found, slowdowns.mean(), 1 / (1 / slowdowns).mean())
    ]
    return forest, Judged(len(learned), len(held_out), *errors)
