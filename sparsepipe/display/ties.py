"""Which of several are best where some are as good: a sentence that names one of them would be drawn by lot."""

from collections.abc import Mapping, Sequence

from .markup import markdown_text

TIE = 0.02  # of the best: simulations tell paces no finer than that


def ties(values: Mapping[str, float], *, least: bool = False) -> list[str]:
    """Return the names of the largest value, or of the `least`, and of all within `TIE` of it, in their order."""
    best = min(values.values()) if least else max(values.values())
    return [name for name, value in values.items() if abs(value - best) <= TIE * abs(best)]


def ties_text(names: Sequence[str], one: str, several: str) -> str:
    """Return who does what as Markdown: `one` is said of one name, `several` of more, with how close they are."""
    told = [f"**{markdown_text(name)}**" for name in names]
    if len(told) == 1:
        return f"{told[0]} {one}"
    return f"{', '.join(told[:-1])} and {told[-1]} {several}, within {TIE:.0%} of each other"
