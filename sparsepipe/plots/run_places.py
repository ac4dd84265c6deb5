"""A run's place among those it is compared with: it gives its colour, dash and marker in each of their figures."""

from collections.abc import Sequence

from ..errors import DamagedRecord
from ..record import RunRecord
from .table import strategy


def run_places(
    records: Sequence[RunRecord], among: Sequence[RunRecord] = (), names: Sequence[str] | None = None
) -> list[int]:
    """Return the place of each of `records` among the runs of all figures that stand beside each other.

    `among`: those runs; `records` themselves unless given. A run that is none of them has the place of the first with
    its strategy, or else one behind them. Runs of one of the `names` have one place, as they are one line.
    """
    called = dict(zip(records, names, strict=True)) if names else {}
    everyone = list(among) or list(records)
    keys: list[RunRecord | str] = list(dict.fromkeys(called.get(one, one) for one in everyone))
    of_strategy = {_strategy(one): keys.index(called.get(one, one)) for one in reversed(everyone)}
    places = []
    for record in records:
        key = called.get(record, record)
        alike = of_strategy.get(_strategy(record)) if key not in keys else None
        if key not in keys and alike is None:
            keys.append(key)
        places.append(keys.index(key) if alike is None else alike)
    return places


def _strategy(record: RunRecord) -> str:
    """What it is by its plan; of a damaged record its folder, which is no other's."""
    try:
        return strategy(record.plan)
    except DamagedRecord:
        return str(record.folder)
