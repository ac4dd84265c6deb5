"""A run's place among those it is compared with: it gives its colour, dash and marker in each of their figures."""

from collections.abc import Sequence

from ...errors import DamagedRecord
from ...records import RunRecord
from .table import strategy
from .theme import RUN_COLORS


def run_places(
    records: Sequence[RunRecord], among: Sequence[RunRecord] = (), names: Sequence[str] | None = None
) -> list[int]:
    """Return the place of each of `records` among the runs of all figures that stand alongside each other.

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


def compared_with(records: Sequence[RunRecord]) -> list[RunRecord]:
    """Return the runs among which `records` have the colours of the figures of their campaigns.

    Those are all finished runs of their campaigns, in the same folder, and the records themselves: in the order in
    which they were launched, which is that of such figures. If two of `records` would share a colour then, they are
    compared with each other alone.
    """
    own = {record: _launched(record) for record in records}
    campaigns = {campaign for campaign, _ in own.values() if campaign}
    beside = (path.parent for folder in {one.folder.parent for one in records} for path in folder.glob("*/plan.json"))
    for other in map(RunRecord, beside if campaigns else ()):
        launched = _launched(other)
        if launched[0] in campaigns and other not in own and other.status["state"] == "finished":
            own[other] = launched
    found = sorted(own, key=lambda one: own[one][1])
    colors = {place % len(RUN_COLORS) for place in run_places(records, found)}
    return found if len(colors) == len(records) else sorted(records, key=lambda one: own[one][1])


def _launched(record: RunRecord) -> tuple[str | None, str]:
    """Its campaign, and when it was launched; nothing of a record whose origin is damaged."""
    try:
        return record.campaign, str(record.origin.get("created", ""))
    except DamagedRecord:
        return None, ""


def _strategy(record: RunRecord) -> str:
    """Strategy of a run by its plan; of a damaged record its folder."""
    try:
        return strategy(record.plan)
    except DamagedRecord:
        return str(record.folder)
