"""Which measured runs are comparable: those of one campaign, or of the same hour, under the same other load.

A campaign is a series of runs that one notebook, or one person, made one after another in order to compare them.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from ..util.derived import digest
from . import RunRecord

MOST_APART = 3600.0  # seconds from one run's end to the next one's start: more is another hour of the machine


def new_campaign(name: str, settings: Any) -> str:
    """Return an id for a campaign that starts now: "NAME-20261125T093100-1a2b3c4d5e6f", with the settings' digest."""
    return f"{name}-{datetime.now(UTC):%Y%m%dT%H%M%S}-{digest(settings)}"


def made_for(campaign: str | None, settings: Any) -> bool:
    """Return whether a campaign, by its id, was made under these settings."""
    return campaign is not None and campaign.rpartition("-")[2] == digest(settings)


def campaign_began(campaign: str) -> datetime:
    """Start of a campaign, from its id; the year 1 for an id of another form."""
    try:
        return datetime.strptime(campaign.split("-")[-2], "%Y%m%dT%H%M%S").replace(tzinfo=UTC)
    except (IndexError, ValueError):
        return datetime.min.replace(tzinfo=UTC)


def differences(records: Iterable[RunRecord]) -> list[str]:
    """Return reasons why measured speeds of these runs should not be compared; none if they may be.

    Runs without a campaign are looked at by the time between them, see `MOST_APART`.
    """
    records = list(records)
    texts = [*_apart(records), *_beside(records)]
    return list(dict.fromkeys(texts))


def when(records: Iterable[RunRecord]) -> str:
    """The dates of runs for a figure's note: "run on 2026-11-25 09:31 to 10:02 UTC"; nothing if none is known."""
    times = [time for record in records if (time := record.ran)]
    if not times:
        return ""
    first, last = min(start for start, _ in times), max(end for _, end in times)
    text = f"{first:%Y-%m-%d %H:%M}"
    if last.date() != first.date():
        text += f" to {last:%Y-%m-%d %H:%M}"
    elif f"{last:%H:%M}" != f"{first:%H:%M}":
        text += f" to {last:%H:%M}"
    return f"run on {text} UTC"


def _apart(records: Sequence[RunRecord]) -> list[str]:
    campaigns = {record.campaign for record in records}
    if len(campaigns) == 1 and None not in campaigns:
        return []
    times = sorted(time for record in records if (time := record.ran))
    gaps = [later[0] - earlier[1] for earlier, later in zip(times, times[1:], strict=False)]
    longest = max((gap.total_seconds() for gap in gaps), default=0.0)
    if len(campaigns) > 1:
        return [f"runs of different campaigns: {_told_apart(records)}"]
    days = list(dict.fromkeys(f"{start:%Y-%m-%d %H:%M}" for start, _ in times))
    dates = ", ".join(days) if len(days) <= 3 else f"{days[0]} to {days[-1]}"
    return [f"runs of different hours: {dates}"] if longest > MOST_APART else []


def _told_apart(records: Sequence[RunRecord]) -> str:
    """Each campaign once, by its first run and when that began: "a (2026-11-25 09:00), b (2026-11-26 12:00)".

    Of more than three the first and the last; without times the runs alone. A run of no campaign is one by itself.
    """
    firsts: dict[str, tuple[datetime | None, RunRecord]] = {}
    known = ((record.ran[0] if record.ran else None, record) for record in records)
    for start, record in sorted(known, key=lambda one: (one[0] is None, one[0] or datetime.min.replace(tzinfo=UTC))):
        firsts.setdefault(record.campaign or f"run {record.folder}", (start, record))
    names = [f"{record.name} ({start:%Y-%m-%d %H:%M})" if start else record.name for start, record in firsts.values()]
    return ", ".join(names) if len(names) <= 3 else f"{names[0]} to {names[-1]}, {len(names)} in all"


def _beside(records: Sequence[RunRecord]) -> list[str]:
    """Runs that shared the machine while others of these did not, or with a run that is not among these."""
    names = {record.name for record in records}
    texts = []
    concurrent = {record.name: set(record.beside) for record in records}
    for name, others in concurrent.items():
        if outside := sorted(others - names):
            texts.append(f"{name} ran at the same time as another job: {', '.join(outside)}")
    inside = {len(others & names) for others in concurrent.values()}
    if len(inside) > 1:
        shared = {name: len(others & names) for name, others in concurrent.items() if others & names}
        if len(shared) < len(concurrent):
            rest = "the other" if len(concurrent) - len(shared) == 1 else "the others"
            texts.append(f"runs under different load: {', '.join(shared)} ran at once, {rest} did not")
        else:
            text = ", ".join(f"{name} beside {count}" for name, count in shared.items())
            texts.append(f"runs under different load: of these, {text} others")
    return texts
