"""The words on screen explained where they stand: a list to open below a picture, by mouse or keyboard."""

from collections.abc import Mapping

from ..display.markup import Html, joined
from ..schedule_rules import SCHEDULE_RULES, WEIGHT_RULES
from .sentences import sentence


def explained(words: Mapping[str, str], *, schedules: bool = False) -> Html:
    """Return the list, closed until it is asked for; `schedules` adds every schedule and weight policy."""
    rows = dict(words)
    if schedules:
        rows |= {f"weights {name}": rules.summary for name, rules in WEIGHT_RULES.items()}
        rows |= {f"schedule {name}": rules.summary for name, rules in SCHEDULE_RULES.items()}
    row = Html("<dt style='font-weight:600'>{}</dt><dd style='margin:0 0 4px 16px'>{}</dd>")
    return Html(
        "<details style='font-size:12px;line-height:1.45;max-width:900px'><summary>What the words mean</summary>"
        "<dl style='margin:4px 0'>{}</dl></details>"
    ).format(joined(row.format(word, sentence(text)) for word, text in rows.items()))
