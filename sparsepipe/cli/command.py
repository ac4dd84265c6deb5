"""The entry point `main`: parse the arguments, run one verb, print its answer, and report errors in one line.

What the library says of its parameters, said of the command's options.

voxel_size                --voxel-size
profile=…                 --profile [TYPE=]FILE
planner='optimal'         --planner optimal
num_microbatches, in run  plan --num-microbatches: what the plan was made with
"""

import argparse
import json
import os
import re
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ..display.markup import one_line, visible
from ..errors import DamagedRecord, InputError, RunFailed, missing_extra
from ..host.limits import limit_met
from ..host.python_path import check_current_folder
from . import (
    cluster_verbs,
    data_verbs,
    interference_verbs,
    model_verbs,
    plan_verbs,
    replay_verb,
    run_verbs,
    sweep_verb,
    trace_verbs,
)
from .argument_types import value
from .output import Answer, OutputLost, print_answer, progress_line, standard_streams
from .parser import complete, parser

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


if TYPE_CHECKING:
    from ..plots import Paper


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb. Returns 0, 1 for a run that failed or an answer that could not be written, 2 for bad input or a
    limit of the machine, 130 when interrupted.
    """
    has_output = standard_streams()
    known = parser()
    complete(known)
    try:
        options = known.parse(arguments)
        options.words = list(sys.argv[1:] if arguments is None else arguments)
    except SystemExit:
        with suppress(OutputLost):  # of --help
            print_answer("", end="")
        raise
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: progress_line(f"warning: {message}")  # in one line, without code
        return _run_verb(options, known.verbs, has_output=has_output)


def _run_verb(options: argparse.Namespace, verbs: Verbs, *, has_output: bool) -> int:
    try:
        check_current_folder()
        answer = VERBS[options.verb](options)
        if not has_output:
            raise OutputLost("it is closed")
        print_answer(json.dumps(answer.document, indent=2) if options.json else visible(answer.text))
        if answer.fault:
            return _failed(one_line(answer.fault), 2)
    except (InputError, RunFailed) as error:
        text = str(error) if isinstance(error, DamagedRecord) else as_options(str(error), options.verb, verbs)
        return _failed(text, 1 if isinstance(error, RunFailed) else 2)
    except OutputLost as error:
        return _failed(f"{options.verb} is done, but its answer could not be written to standard output ({error})", 1)
    except KeyboardInterrupt:
        return _failed("interrupted", 130)
    except Exception as error:
        if (told := _of_the_machine(error)) is None:
            raise
        return _failed(told, 2)
    return 0


def _failed(text: str, code: int) -> int:
    progress_line(f"sparsepipe: {text}")
    return code


def _of_the_machine(error: Exception) -> str | None:
    """Return the message for a limit, a missing package or an unusable path; None for an error of this code."""
    if isinstance(error, ImportError) and (missing := missing_extra(error)):
        return str(missing)
    if told := limit_met(error):
        return told
    if not isinstance(error, OSError):
        return None
    if error.filename is not None:  # a folder that is a file, no permission
        return f"{one_line(os.fsdecode(error.filename))}: {error.strerror}; choose another path"
    return f"{error.strerror or error}"


def reproduce(options: argparse.Namespace) -> Answer:
    from ..reproduce import PAGE
    from ..reproduce import reproduce as run_notebooks

    settings = {"jobs": options.jobs, "data": options.data, "out": options.out, "only_changed": options.only_changed}
    settings |= {"resume": options.resume, "pictures": not options.no_pictures}
    settings["paper"] = _paper(options)
    settings["parameters"] = {name: value(text) for name, text in options.parameters}
    written = run_notebooks(options.figures or None, **settings)
    page = options.out / PAGE
    return Answer({"figures": [str(path) for path in written], "page": str(page.resolve())}, str(page))


def _paper(options: argparse.Namespace) -> "Paper | None":
    """What the options ask of figures; None where they ask nothing."""
    given = {"inches": options.width, "height": options.height, "font": options.font}
    asked = {name: value for name, value in given.items() if value is not None}
    if options.no_title:
        asked["title"] = False
    if not asked:
        return None
    if options.no_pictures:
        raise InputError("--width, --height, --font and --no-title are of pictures: leave them out, or --no-pictures")
    from ..plots import Paper  # here: it brings plotly

    return Paper(**asked)


VERBS: Mapping[str, Callable[[argparse.Namespace], Answer]] = {
    **cluster_verbs.VERBS,
    **data_verbs.VERBS,
    **interference_verbs.VERBS,
    **model_verbs.VERBS,
    **plan_verbs.VERBS,
    **sweep_verb.VERBS,
    **run_verbs.VERBS,
    **replay_verb.VERBS,
    **trace_verbs.VERBS,
    "reproduce": reproduce,
}
