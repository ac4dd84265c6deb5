"""The entry point `main`: parse the arguments, run one verb, print its answer, and report errors in one line.

The parser has verbs in groups. A setting that an error names is written as the option that has it:

voxel_size                --voxel-size
profile=…                 --profile [TYPE=]FILE
planner='optimal'         --planner optimal
num_microbatches, in run  plan --num-microbatches: what the plan was made with
"""

import argparse
import json
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from textwrap import TextWrapper
from typing import TYPE_CHECKING, Any, NoReturn

from .. import __version__
from ..errors import InputError, RunFailed, in_python, missing_extra, one_line, visible
from ..util.host.limits import limit_met
from ..util.host.python_path import check_current_folder
from ..util.io.keywords import meant
from ..views.words import OF_PLANS, OF_RUNS
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
from .arguments import GROUPS, OPTIONS
from .options import value
from .output import Answer, OutputLost, print_answer, progress_line, standard_streams

# What one wants to do: the verbs for it. Those that are named nowhere come last, under "more".
TASKS: Mapping[str, tuple[str, ...]] = {
    "see what there is": ("models", "data list", "data info", "data check"),
    "get data": ("data fetch", "data make"),
    "describe machines": ("cluster show", "cluster check", "cluster measure"),
    "measure and decide": ("profile", "plan", "simulate", "sweep"),
    "train": ("run", "replay"),
    "follow, change and end runs": ("runs attach", "runs replan", "runs stop", "runs cancel"),
    "disturb a machine on purpose": ("interference run", "interference measure"),
    "look at what happened": ("runs list", "runs show", "runs compare", "runs drift", "runs export"),
    "explain a trace": ("trace show", "trace replay", "trace whatif", "trace export"),
    "notebooks, figures, files for others": ("reproduce", "export"),
}
FIRST_STEPS = (
    "data make shapes --out work/shapes",
    "profile --model minkvgg11bn-narrow --data work/shapes --voxel-size 0.05 --batch-size 16 --out work/profile.json",
    "plan --profile work/profile.json --devices 2 --planner model-parallel --out work/plan.json",
    "run work/plan.json --model minkvgg11bn-narrow --data work/shapes --voxel-size 0.05 --batch-size 16 --epochs 2",
    "reproduce 01_pipelines 02_data 03_profile 04_layer_graph 05_partition 06_launch",
)
_TIMES = ("work", "dependency", "imbalance", "averaging", "communication", "bubble")
_SIMULATED = (*_TIMES[:3], "sizes", *_TIMES[3:])
_PLAN_WORDS = ("stage", "time per minibatch", "lower bound", "gap to the bound", "averaging", "transfer")

# verb: the words of what it answers, which its help explains
WORDS: Mapping[str, Mapping[str, str]] = {
    "plan": {word: OF_PLANS[word] for word in _PLAN_WORDS},
    "simulate": {word: OF_RUNS[word] for word in _SIMULATED},
    "trace show": {word: OF_RUNS[word] for word in _TIMES[:-1]},
    **dict.fromkeys(("runs list", "runs show", "runs compare"), {"samples/s": OF_RUNS["samples/s"]}),
}
EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "models": ("models", "models resnet --parameters --classes 10"),
    "data fetch": ("data fetch digits", "data fetch mnist-5k --out data"),
    "data make": ("data make shapes --out work/shapes --train 16 --test 4",),
    "data info": ("data info work/shapes", "data info digits"),
    "data check": ("data check work/shapes --voxel-size 0.05",),
    "runs replan": ("runs replan work/run work/other_plan.json --reason slow",),
    "cluster show": ("cluster show cluster.toml", "cluster show hostfile --json"),
    "cluster check": ("cluster check hostfile",),
    "cluster measure": ("cluster measure hostfile --out cluster.toml",),
    "profile": (
        FIRST_STEPS[1],
        "profile --model resnet18-32 --data path/data.py:pictures --batch-size 32 --out work/resnet.json",
    ),
    "plan": (
        "plan --profile work/profile.json --devices 2 --out work/plan.json",
        "plan --profile TITAN=titan.json --profile RTX=rtx.json --server-file servers.txt --planner optimal",
        "plan --profile work/profile.json --cluster cluster.toml --planner optimal --planner pipedream",
        "plan --profile work/profile.json --devices 4 --devices 2 --bandwidth 12GB/s --bandwidth 1.25GB/s",
        "plan --profile TITAN=titan.json --profile RTX=rtx.json --cluster cluster.toml --objective latency "
        "--period-at-most 0.02 --out work/inference.json",
        "plan --profile work/profile.json --devices 8 --pipelines 4 --replication quorum:grace=0.05 --out work/p.json",
    ),
    "simulate": (
        "simulate work/plan.json --profile work/profile.json --devices 2 --trace work/trace.json",
        "simulate work/plan.json --profile work/profile.json --devices 2 --straggler slow:rank=1,factor=4",
        "simulate work/plan.json --profile work/profile.json --devices 2 --order shuffle --order planned "
        "--sizes lognormal:cv=0.5",
    ),
    "sweep": (
        "sweep --profile work/profile.json --devices 2",
        "sweep --profile work/profile.json --devices 4 --schedule 1f1b --schedule gpipe --compression none "
        "--compression int8 --variant coarse=work/coarse.json --out work/sweep",
    ),
    "run": (
        FIRST_STEPS[3],
        "run work/plan.json --model net.py:build --data path/data.py:digits --batch-size 32 --epochs 4 --detach",
        "run --resume runs/first --epochs 4 --log tensorboard work/tensorboard",
        "run driver_configs/vgg16_4pipedream.yml",
        "run work/inference.json --forward-only runs/first",
    ),
    "replay": (
        "replay work/plan.json --profile work/profile.json --cluster cluster.toml --minibatches 64",
        "replay work/plan.json --profile work/profile.json --cluster hosts.toml --launcher ssh",
    ),
    "runs list": ("runs list", "runs list --folder runs --json"),
    "runs show": ("runs show runs/first",),
    "runs compare": ("runs compare runs/first runs/second",),
    "runs attach": ("runs attach first",),
    "runs export": ("runs export first --perfetto trace.json",),
    "trace show": ("trace show runs/first",),
    "trace whatif": ("trace whatif runs/first",),
    "trace export": ("trace export runs/first --out trace.html",),
    "interference run": ("interference run memory-streams --cores 1 --after 20 --seconds 60",),
    "interference measure": (
        "interference measure --out work/interference.jsonl --predictor work/predictor.json",
        "interference measure --out work/interference.jsonl --victim minkvgg11bn-narrow --batch-size 8 --together 1",
    ),
    "export": ("export work/plan.json --profile work/profile.json --model minkvgg11bn-narrow --out work/pipedream",),
    "reproduce": (
        "reproduce",
        "reproduce 06_launch -p epochs 4 -p train_model minkvgg16bn-narrow",
        "reproduce timeline throughput --data modelnet10-sample --out real/figures",
        "reproduce --resume",
        "reproduce --only-changed --width 3.5 --no-title --out paper/figures",
    ),
}

_HEAD = "Plan, simulate and run pipeline-parallel training."
_TAIL = "sparsepipe VERB --help says more of a verb; every verb takes --json."


def parser() -> "VerbsParser":
    """Return the parser of the whole command; what it parses has the verb, such as "data list", in `verb`."""
    top = VerbsParser(prog="sparsepipe", description=_HEAD)
    top.add_argument("--version", action="version", version=f"sparsepipe {__version__}")
    groups = {"": _verbs_of(top)}
    for name, (summary, add_options) in OPTIONS.items():
        group = name.rpartition(" ")[0]
        if group not in groups:
            groups[group] = _verbs_of(groups[""].add_parser(group, help=GROUPS[group]))
        verb = groups[group].add_parser(
            name.split()[-1],
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.",
            epilog="\n\n".join(filter(None, [_words(WORDS.get(name, {})), _examples(EXAMPLES.get(name, ()))])),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        verb.set_defaults(verb=name)
        verb.add_argument("--json", action="store_true", help="print one JSON document and nothing else")
        add_options(verb)
        top.verbs[name] = verb
    return top


def complete(known: argparse.ArgumentParser) -> None:
    """Complete the words of a command line, where a shell asks for that through argcomplete; else return at once."""
    if "_ARGCOMPLETE" in os.environ:
        import argcomplete  # an extra: `pip install 'sparsepipe[completion]'`

        argcomplete.autocomplete(known)


class _OneLineParser(argparse.ArgumentParser):
    """Errors in one line. Options are written whole: of an abbreviation it is said what it may mean."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **settings})

    def error(self, message: str) -> NoReturn:
        """One line instead of argparse's usage block; exit code 2 all the same."""
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            if near := meant(str(value), map(str, action.choices or ())):
                error.message = f"invalid choice: {value!r}; did you mean {near}?"
            raise


class VerbsParser(_OneLineParser):
    """The parser of the whole command, which knows the parser of each verb."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.verbs: dict[str, argparse.ArgumentParser] = {}

    def parse(self, arguments: Sequence[str] | None = None) -> argparse.Namespace:
        """As `parse_args`; words that a verb does not know are told by its own parser, which has their neighbours."""
        options, unknown = self.parse_known_args(arguments)
        if unknown:
            verb = self.verbs.get(getattr(options, "verb", ""), self)
            word = next((word for word in unknown if word.startswith("-")), unknown[0])
            near = meant(word.partition("=")[0], verb._option_string_actions)
            verb.error(f"unrecognized arguments: {' '.join(unknown)}" + (f"; did you mean {near}?" if near else ""))
        return options

    def format_help(self) -> str:
        """Help by task: what one wants to do, the verbs for it, and a first walk through them."""
        width = max(map(len, OPTIONS))
        told = ["usage: sparsepipe [--help] [--version] VERB …", "", _HEAD]
        named = {name for names in TASKS.values() for name in names}
        others = {"more": tuple(name for name in OPTIONS if name not in named)}
        for task, names in {**TASKS, **others}.items():
            rows = [f"  {name:<{width}}  {OPTIONS[name][0]}" for name in names if name in OPTIONS]
            told += ["", task, *rows] if rows else []
        return "\n".join([*told, "", _examples(FIRST_STEPS), "", _TAIL, ""])


def _verbs_of(parser: argparse.ArgumentParser) -> Any:
    return parser.add_subparsers(required=True, metavar="VERB", parser_class=_OneLineParser)


def _words(explained: Mapping[str, str]) -> str:
    """What the words of a verb's answer mean, each below the other."""
    wrapper = TextWrapper(78, initial_indent="  ", subsequent_indent="    ")
    lines = [wrapper.fill(f"{word}: {told}") for word, told in explained.items()]
    return "\n".join(["what the words mean:", *lines]) if lines else ""


def _examples(lines: Sequence[str]) -> str:
    return "\n".join(["examples:", *(f"  sparsepipe {line}" for line in lines)]) if lines else ""


_OF_PLANS, _PLAN = ("run", "replay", "simulate"), "plan"  # verbs that take a plan, and the one that makes it
# Settings that are options of another name.
_CALLED = {"stragglers": "straggler", "num_pipelines": "pipelines"}

Verbs = Mapping[str, argparse.ArgumentParser]


def as_option(name: str, value: Any, verb: str, verbs: Verbs) -> str:
    """Return a setting as it is typed on the command line, with the value to give it where there is one.

    It is an option of the verb, or of `plan` where a plan has it; where neither has, it is written as in Python.
    """
    flag = f"--{_CALLED.get(name, name).replace('_', '-')}"
    where = next((one for one in (verb, _PLAN) if flag in verbs[one]._option_string_actions), None)
    if where is None or (where != verb and verb not in _OF_PLANS):
        return in_python(name, value)
    action = verbs[where]._option_string_actions[flag]
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
        answer = VERBS[options.verb](options)
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
    """What the options ask of figures; None where they ask nothing."""
    given = {"inches": options.width, "height": options.height, "font": options.font}
    asked = {name: value for name, value in given.items() if value is not None}
    if options.no_title:
        asked["title"] = False
    if not asked:
        return None
    if options.no_pictures:
        raise InputError(
            "option.without_effect",
            "--width, --height, --font and --no-title are of pictures: leave them out, or --no-pictures",
        )
    from ..views.plots import Paper  # here: it brings plotly

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
