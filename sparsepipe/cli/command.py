"""The entry point `main`: parse the arguments, run one verb, print its answer, and report errors in one line.

The parser has verbs in groups. A setting that an error names is written as the option that has it:

voxel_size                --voxel-size
profile=…                 --profile [TYPE=]FILE
planner='optimal'         --planner optimal
num_microbatches, in train  plan --num-microbatches: what the plan was made with
"""

import argparse
import json
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ..errors import InputError, RunFailed, in_python, missing_extra, one_line, visible
from ..util.host.imports import check_current_folder
from ..util.host.limits import limit_met
from . import (
    emulate_verb,
    interference_verbs,
    inventory_verbs,
    plan_file_verbs,
    plan_verbs,
    run_file,
    run_verbs,
    study_verbs,
    sweep_verb,
    trace_verbs,
    train_verbs,
)
from .options import value
from .output import Answer, OutputLost, print_answer, progress_line, standard_streams
from .parsing import complete, parser

_OF_PLANS = ("train", "predict", "emulate", "simulate")  # verbs that take a plan
_PLAN = "plan"  # the verb that makes it
# Settings that are options of another name.
_CALLED = {"stragglers": "inject", "num_pipelines": "pipelines", "run_dir": "out"}

Verbs = Mapping[str, argparse.ArgumentParser]


def as_option(name: str, value: Any, verb: str, verbs: Verbs) -> str:
    """Return a setting as it is typed on the command line, with the value to give it if there is one.

    It is an option of the verb, or of `plan` where a plan has it; where neither has, it is written as in Python.
    """
    flag = f"--{_CALLED.get(name, name).replace('_', '-')}"
    where = next((one for one in (verb, _PLAN) if flag in verbs[one]._option_string_actions), None)
    if where is None or (where != verb and verb not in _OF_PLANS):
        return in_python(name, value)
    action = verbs[where]._option_string_actions[flag]
    flag = next(name for name in action.option_strings if name.startswith("--"))  # the first is today's name
    typed = flag if where == verb else f"{where} {flag}"
    if value is None or action.nargs == 0:
        return typed
    return f"{typed} {action.metavar or action.dest.upper() if value is ... else value}"


if TYPE_CHECKING:
    from ..views.plots import Paper


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
        answer = (getattr(options, "act", None) or VERBS[options.verb])(options)
        if not has_output:
            raise OutputLost("it is closed")
        print_answer(json.dumps(answer.document, indent=2) if options.json else visible(answer.text))
        if answer.fault:
            return _failed(one_line(answer.fault), 2)
    except InputError as error:
        text = error.written(lambda name, value: as_option(name, value, options.verb, verbs))
        return _failed(f"{text} [{error.code}]", 2)
    except RunFailed as error:
        return _failed(f"{error} [{error.code}]", 1)
    except OutputLost as error:
        return _failed(f"{options.verb} is done, but its output could not be written to standard output ({error})", 1)
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
    from ..study import PAGE
    from ..study import reproduce as run_notebooks

    written = run_notebooks(
        options.figures or None,
        jobs=options.jobs,
        data=options.data,
        out=options.out,
        only_changed=options.only_changed,
        resume=options.resume,
        pictures=not options.no_pictures,
        paper=_paper(options),
        parameters={name: value(text) for name, text in options.parameters},
    )
    page = options.out / PAGE
    return Answer({"figures": [str(path) for path in written], "page": str(page.resolve())}, str(page))


def _paper(options: argparse.Namespace) -> "Paper | None":
    """Return the paper options of figures; None if none are given."""
    given = {"inches": options.width, "height": options.height, "font": options.font}
    asked = {name: value for name, value in given.items() if value is not None}
    if options.no_title:
        asked["title"] = False
    if not asked:
        return None
    if options.no_pictures:
        raise InputError(
            "option.without_effect",
            "--width, --height, --font and --no-title apply to pictures: omit them, or omit --no-pictures",
        )
    from ..views.plots import Paper  # here: it brings plotly

    return Paper(**asked)


VERBS: Mapping[str, Callable[[argparse.Namespace], Answer]] = {
    **inventory_verbs.VERBS,
    **interference_verbs.VERBS,
    **plan_verbs.VERBS,
    **sweep_verb.VERBS,
    **run_file.VERBS,
    **train_verbs.VERBS,
    **emulate_verb.VERBS,
    **run_verbs.VERBS,
    **plan_file_verbs.VERBS,
    **trace_verbs.VERBS,
    **study_verbs.VERBS,
    "reproduce": reproduce,
}
