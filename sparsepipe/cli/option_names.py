"""What the library says of its parameters, said of the command's options.

voxel_size                --voxel-size
profile=…                 --profile [TYPE=]FILE
planner='optimal'         --planner optimal
num_microbatches, in run  plan --num-microbatches: what the plan was made with
"""

import argparse
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

_OF_PLANS, _PLAN = ("run", "replay", "simulate"), "plan"  # verbs that take a plan, and the one that makes it
# Parameters that are options of another name.
_CALLED = {"stragglers": "straggler", "num_pipelines": "pipelines"}
_VALUE = r"=(?P<value>'[^']*'|…|True|False)"
_COMMAND = r"`[^`]*`"  # is one already
_NAMED = re.compile(
    rf"{_COMMAND}|(?<![\w./,:;'\"`-])(?:(?P<set>[a-z]\w*){_VALUE}|(?P<name>[a-z]+(?:_[a-z]+)+))(?![\w/'\"`(])"
)
_SETTING = re.compile(r"[a-z_]+(?= (?:is|are) )")  # what a message begins with that is of a setting

Verbs = Mapping[str, argparse.ArgumentParser]


def as_options(text: str, verb: str, verbs: Verbs) -> str:
    """Return a message with the parameters that are options of the verb, or of `plan`, written as these.

    What is said of a file's content has the file's own names: such a message begins with its path, and stays.
    """
    if _is_of_a_file(text):
        return text

    def written(found: re.Match[str]) -> str:
        name = found["set"] or found["name"]
        return (_option(name, found["value"], verb, verbs) if name else None) or found[0]

    if (found := _SETTING.match(text)) and (option := _option(found[0], None, verb, verbs)):
        text = option + text[found.end() :]
    return _NAMED.sub(written, text)


def _is_of_a_file(text: str) -> bool:
    with suppress(OSError, ValueError):  # no path at all
        return Path(text.partition(": ")[0]).is_file()
    return False


def _option(name: str, value: str | None, verb: str, verbs: Verbs) -> str | None:
    """An option as it is typed, with its value where one is said; None where the verb has none of that name."""
    flag = f"--{_CALLED.get(name, name).replace('_', '-')}"
    asked = (verb, *([_PLAN] if verb in _OF_PLANS and "_" in name else []))
    where = next((one for one in asked if flag in verbs[one]._option_string_actions), None)
    if where is None:
        return None
    action = verbs[where]._option_string_actions[flag]
    typed = flag if where == verb else f"{where} {flag}"
    if value is None or action.nargs == 0:
        return typed
    return f"{typed} {(action.metavar or action.dest.upper()) if value == '…' else value.strip(chr(39))}"
