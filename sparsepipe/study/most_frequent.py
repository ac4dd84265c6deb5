"""How often the most frequent label is right: what an accuracy must be above to be skill."""

from collections import Counter
from collections.abc import Iterable

from torch import Tensor

from ..data import IGNORED


def most_frequent_share(labels: Iterable[Tensor]) -> float:
    """Return the share of all labels that are the most frequent one: naming it alone is right so often.

    `labels`: tensors of whole numbers, of any shape; `IGNORED` ones do not count. Raises ValueError if none counts.
    """
    counts = Counter[int]()
    for some in labels:
        values, found = some[some != IGNORED].unique(return_counts=True)
        counts.update(dict(zip(values.tolist(), found.tolist(), strict=True)))
    return max(counts.values()) / counts.total()
