"""Sentences on screen begin with capitals: messages, which a command line shows behind "error:", do not."""

import re

from ...planning import PLANNERS
from ...values.replication import RULES
from ...values.schedule_rules import SCHEDULE_RULES

_FIRST = re.compile(r"[a-z]+(?=[ ,;:.!?…]|$)")  # no path, file or name with other signs in it
_NAMES = {*PLANNERS, *SCHEDULE_RULES, *RULES}


def sentence(text: str) -> str:
    """Return text with a capital at its beginning, unless it begins with a name."""
    found = _FIRST.match(text)
    if found is None or found[0] in _NAMES:
        return text
    return text[0].upper() + text[1:]
