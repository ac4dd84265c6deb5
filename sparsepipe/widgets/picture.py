"""What the partition explorer's picture shows of an answer, as JSON-ready values."""

from typing import Any

from .cut_limits import blocked
from .planning import Answer
from .view_model import scene


def picture(answer: Answer, pinned: Answer | None, *, batch_size: int | None, note: str) -> dict[str, Any]:
    """Return a plan, its numbers and what each rank does. `pinned`: what it is compared with."""
    settings, movable = answer.settings, answer.settings.cuts is not None
    before = pinned.plan if pinned is not None else None
    drawn = scene(answer.plan, answer.problem, answer.trace, bound=answer.bound, batch_size=batch_size, before=before)
    where = blocked(answer.plan, answer.problem, answer.ends) if movable else {"blocked": [], "reasons": []}
    drawn |= {
        "cuts": {"at": answer.ends, "movable": movable, **where},
        "hint": "drag a cut, or focus it and press the arrow keys"
        if movable
        else "in order, as high as their time; pin cuts to move them",
        "code": answer.as_code(),
    }
    if drawn["before"] is not None and pinned is not None and pinned.settings != settings:
        drawn["before"]["name"] += f", with {pinned.told()}"
    if note:
        drawn["notes"] = [*drawn["notes"], note]
    return drawn
