"""The parser of the `sparsepipe` command: verbs in groups, help by task, and help of a verb on one screen.

`VERB --help` has the common options, `VERB --help-all` every option. Verbs of before are taken and not shown.
"""

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from itertools import takewhile
from textwrap import TextWrapper
from typing import Any, NoReturn

from .. import __version__
from ..util.io.quantities import meant
from ..views.glossary import definitions
from . import emulate_verb, plan_file_verbs, trace_verbs, train_verbs
from .arguments import GROUPS, OPTIONS
from .options import Parser
from .output import Answer

# Tasks, and the verbs for each. Verbs that are named nowhere come last, under "more".
TASKS: Mapping[str, tuple[str, ...]] = {
    "networks and data": ("models", "data list", "data info", "data check", "data fetch", "data make"),
    "clusters": ("cluster show", "cluster check", "cluster measure"),
    "profiles and plans": (
        *("profile", "profile show", "plan", "plan show", "plan diff", "plan export", "simulate", "sweep", "import"),
    ),
    "training": ("init", "train", "predict", "export-weights", "emulate"),
    "running jobs": ("runs attach", "runs logs", "runs replan", "runs stop", "runs cancel"),
    "finished runs": ("runs list", "runs show", "runs compare", "runs drift", "runs export", "runs rm"),
    "traces": ("trace show", "trace simulate", "trace whatif", "trace export"),
    "interference": ("interference run", "interference measure"),
    "notebooks and figures": ("reproduce",),
    "claims": ("study kick", "study run", "study verify", "study bundle"),
}
FIRST_STEPS = (
    "data make shapes -o work/shapes",
    "profile -m minkvgg11bn-narrow -d work/shapes -v 0.05 -b 16 -o work/profile.json",
    "plan -p work/profile.json -n 2 --planner model-parallel -o work/plan.json",
    "train work/plan.json --epochs 2",
    "reproduce 01_pipelines 02_data 03_profile 04_layer_graph 05_partition 06_launch",
)
_TIMES = ("work", "dependency", "imbalance", "averaging", "communication", "bubble")
_SIMULATED = (*_TIMES[:3], "sizes", *_TIMES[3:])
_PLAN_WORDS = ("stage", "time per minibatch", "lower bound", "optimality gap", "averaging", "transfer")

# verb: the words of what it answers, which its help explains
WORDS: Mapping[str, Mapping[str, str]] = {
    "plan": definitions(*_PLAN_WORDS),
    "simulate": definitions(*_SIMULATED),
    "trace show": definitions(*_TIMES[:-1]),
    **dict.fromkeys(("runs list", "runs show", "runs compare"), definitions("samples/s")),
}
_PLANNED = "work/plan.json -p work/profile.json -n 2"
EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "models": ("models", "models resnet --parameters --classes 10"),
    "data fetch": ("data fetch digits", "data fetch mnist-5k -o data"),
    "data make": ("data make shapes -o work/shapes --train 16 --test 4",),
    "data info": ("data info work/shapes", "data info digits"),
    "data check": ("data check work/shapes -v 0.05",),
    "runs logs": ("runs logs first -f", "runs logs runs/first --rank 1 --lines 0"),
    "runs rm": ("runs rm first second", "runs rm first --yes"),
    "runs replan": ("runs replan work/run work/other_plan.json --reason slow",),
    "cluster show": ("cluster show cluster.toml", "cluster show hostfile --json"),
    "cluster check": ("cluster check hostfile",),
    "cluster measure": ("cluster measure hostfile -o cluster.toml",),
    "profile": (
        FIRST_STEPS[1],
        "profile -m resnet18-32 -d path/data.py:pictures -b 32 -o work/resnet.json",
    ),
    "profile show": ("profile show work/profile.json", "profile show minkvgg16bn"),
    "plan": (
        "plan -p work/profile.json -n 2 -o work/plan.json",
        "plan -p work/profile.json -c cluster.toml --planner optimal --planner pipedream",
        "plan -p TITAN=titan.json -p RTX=rtx.json --server-file servers.txt --planner optimal",
        "plan -p work/profile.json -n 4 -n 2 --bandwidth 12GB/s --bandwidth 1.25GB/s",
        "plan -p TITAN=titan.json -p RTX=rtx.json -c cluster.toml --objective latency --period-at-most 0.02 "
        "-o work/inference.json",
        "plan -p minkvgg16bn -c mixed-cores --regret --what-if",
        "plan -p work/profile.json -n 8 --pipelines 4 --replication quorum:grace=0.05 -o work/p.json",
    ),
    "plan show": ("plan show work/plan.json",),
    "plan diff": ("plan diff work/plan.json work/other_plan.json",),
    "plan export": (
        "plan export work/plan.json -p work/profile.json -m minkvgg11bn-narrow -o work/pipedream",
        "plan export work/plan.json --to torchtitan -o work/titan",
    ),
    "simulate": (
        f"simulate {_PLANNED} --trace work/trace.json",
        f"simulate {_PLANNED} --inject slow:rank=1,factor=4",
        "simulate -p work/profile.json -n 2 --layout layout.json",
        f"simulate {_PLANNED} --order shuffle --order planned --sizes lognormal:cv=0.5",
    ),
    "sweep": (
        "sweep -p work/profile.json -n 2",
        "sweep -p work/profile.json -n 4 --schedule 1f1b --schedule gpipe --compression none --compression int8 "
        "--variant coarse=work/coarse.json -o work/sweep",
    ),
    "init": ("init work/plan.json", "init -o run.toml --set optimizer.learning_rate=0.1"),
    "train": (
        FIRST_STEPS[3],
        "train run.toml --set optimizer.learning_rate=0.1",
        "train work/plan.json -m net.py:build -d path/data.py:digits -b 32 -e 4 --detach",
        "train --resume runs/first -e 4 --log tensorboard work/tensorboard",
        "train driver_configs/vgg16_4pipedream.yml",
    ),
    "predict": ("predict runs/first", "predict runs/first work/inference.json"),
    "export-weights": ("export-weights runs/first -o model.safetensors",),
    "import": ("import driver_configs/vgg16_4pipedream.yml -o work/vgg16",),
    "emulate": (
        "emulate work/plan.json -p work/profile.json -c cluster.toml --minibatches 64",
        "emulate work/plan.json -p work/profile.json -c hosts.toml --launcher ssh",
    ),
    "runs list": ("runs list", "runs list --folder runs --json"),
    "runs show": ("runs show runs/first",),
    "runs compare": ("runs compare runs/first runs/second",),
    "runs attach": ("runs attach first",),
    "runs export": ("runs export first -o trace.json",),
    "trace show": ("trace show runs/first",),
    "trace simulate": ("trace simulate runs/first",),
    "trace whatif": ("trace whatif runs/first",),
    "trace export": ("trace export runs/first -o trace.html",),
    "interference run": ("interference run memory-streams --cores 1 --after 20 --seconds 60",),
    "interference measure": (
        "interference measure -o work/interference.jsonl --predictor work/predictor.json",
        "interference measure -o work/interference.jsonl --victim minkvgg11bn-narrow -b 8 --together 1",
    ),
    "reproduce": (
        "reproduce",
        "reproduce 06_launch -p epochs 4 -p train_model minkvgg16bn-narrow",
        "reproduce timeline throughput -d modelnet10-sample -o real/figures",
        "reproduce --resume",
        "reproduce --only-changed --width 3.5 --no-title -o paper/figures",
    ),
    "study kick": ("study kick", "study kick --claims paper/claims.toml --dry-run"),
    "study run": ("study run", "study run heterogeneous-gap provably-optimal"),
    "study verify": ("study verify", "study verify --json"),
    "study bundle": ("study bundle work/bundle",),
}
# Options that `VERB --help` shows, where a verb has more than fit on one screen; --help-all shows all.
_SHARED = ("--json", "--help-all")
_MACHINES = ("--profile", "--cluster", "--devices", "--bandwidth", "--memory")
COMMON: Mapping[str, tuple[str, ...]] = {
    "profile": (
        *("--model", "--data", "--voxel-size", "--batch-size", "--engine", "--device", "--threads", "--repeats"),
        *("--device-type", "--out", *_SHARED),
    ),
    "plan": (
        *(*_MACHINES, "--planner", "--schedule", "--num-microbatches", "--pipelines", "--replication"),
        *("--out", *_SHARED),
    ),
    "simulate": (*_MACHINES, "--inject", "--replan", "--minibatches", "--order", "--trace", *_SHARED),
    "sweep": (*_MACHINES, "--planner", "--schedule", "--compression", "--minibatches", "--out", *_SHARED),
    "train": (
        *("--set", "--cluster", "--launcher", "--detach", "--dry-run", "--out", "--resume", "--replan"),
        *("--model", "--data", "--batch-size", "--epochs", "--learning-rate", *_SHARED),
    ),
    "predict": (
        *("--set", "--cluster", "--launcher", "--detach", "--dry-run", "--out", "--data", "--batch-size"),
        *("--engine", "--device", "--threads", *_SHARED),
    ),
    "emulate": (
        *(*_MACHINES, "--launcher", "--minibatches", "--replication", "--inject", "--replan", "--dry-run", "--out"),
        *_SHARED,
    ),
    "reproduce": (
        *("--jobs", "--data", "--out", "--parameter", "--only-changed", "--resume", "--no-pictures", "--width"),
        *("--no-title", *_SHARED),
    ),
}
# Verbs of before, which are taken and not shown: the verb of today, what adds their options, and what they do.
_OLD_VERBS: Mapping[str, tuple[str, Callable[[Parser], None], Callable[[argparse.Namespace], Answer]]] = {
    "run": ("train", train_verbs.old_run_options, train_verbs.run),
    "replay": ("emulate", OPTIONS["emulate"][1], emulate_verb.VERBS["emulate"]),
    "export": ("plan export", OPTIONS["plan export"][1], plan_file_verbs.VERBS["plan export"]),
    "trace replay": ("trace simulate", OPTIONS["trace simulate"][1], trace_verbs.VERBS["trace simulate"]),
}

_HEAD = "Plan, simulate and run pipeline-parallel training on heterogeneous devices."
_TAIL = "sparsepipe VERB --help shows a verb's common options, --help-all every option."
_WIDEST_CHOICES = 40  # columns of an option's choices in the column of options
_WIDEST = 100  # columns of help, on a terminal that is wider


def parser() -> "VerbsParser":
    """Return the parser of the whole command; what it parses has the verb, such as "data list", in `verb`."""
    top = VerbsParser(prog="sparsepipe", description=_HEAD)
    top.add_argument("--version", action="version", version=f"sparsepipe {__version__}")
    for name, (summary, add_options) in OPTIONS.items():
        verb = top.verb_group(name).add_parser(name.split()[-1], help=summary)
        verb.description = f"{summary[0].upper()}{summary[1:]}."
        verb.common, verb.examples = COMMON.get(name, ()), EXAMPLES.get(name, ())
        verb.epilog = "\n\n".join(filter(None, [_words(WORDS.get(name, {})), _examples(verb.examples)]))
        _add_verb(verb, name, add_options)
        top.verbs[name] = verb
    for name, (today, add_options, act) in _OLD_VERBS.items():
        verb = top.verb_group(name).add_parser(name.split()[-1])
        verb.common = COMMON.get(today, ())
        _add_verb(verb, today, add_options)
        verb.set_defaults(act=act)
    return top


def _add_verb(verb: "_OneLineParser", name: str, add_options: Callable[[Parser], None]) -> None:
    verb.set_defaults(verb=name, act=None)
    verb.add_argument("--help-all", action=_HelpAll, nargs=0, help="every option, and further examples")
    verb.add_argument("--json", action="store_true", help="output as one JSON document")
    add_options(verb)


def complete(known: argparse.ArgumentParser) -> None:
    """Complete the words of a command line, where a shell asks for that through argcomplete; else return at once."""
    if "_ARGCOMPLETE" in os.environ:
        import argcomplete  # an extra: `pip install 'sparsepipe[completion]'`

        argcomplete.autocomplete(known)


class _HelpAll(argparse.Action):
    """Print the help with every option, and exit."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        assert isinstance(parser, _OneLineParser)
        parser.common = ()
        parser.print_help()
        parser.exit()


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """An option's letter, its name and its value in one column; names of before are left out."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30, width=min(_WIDEST, max(80, shutil.get_terminal_size().columns)))

    def _format_action_invocation(self, action: argparse.Action) -> str:
        return self.written(action)

    def written(self, action: argparse.Action) -> str:
        """Return an option with its value as it is typed, or the name of an argument."""
        if not action.option_strings:
            return super()._format_action_invocation(action)
        names = ", ".join(_names_of_today(action))
        if action.nargs == 0:
            return names
        return f"{names} {self._format_args(action, self._get_default_metavar_for_optional(action))}"


def _names_of_today(action: argparse.Action) -> list[str]:
    """An option's letter, if it has one, and its first name; others are names of before."""
    letters = [name for name in action.option_strings if not name.startswith("--")]
    return [*letters[:1], *[name for name in action.option_strings if name.startswith("--")][:1]]


class _OneLineParser(argparse.ArgumentParser):
    """Errors in one line. Options are written whole: an abbreviation gets a suggestion.

    `common`: the options that help shows; empty: all of them, with their groups' summaries and all examples.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"allow_abbrev": False, "formatter_class": _Formatter, **settings})
        self.common: Sequence[str] = ()
        self.examples: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: object = None) -> Any:
        """As argparse's, and keep the words: a wrong verb may be the value of an unknown option."""
        self._words: Sequence[str] = sys.argv[1:] if args is None else args
        return super().parse_known_args(args, namespace)

    def unrecognized(self, words: list[str]) -> str:
        """Say which words are not known, and which option may be meant."""
        word = next((word for word in words if word.startswith("-")), words[0])
        near = meant(word.partition("=")[0], (name for action in self._actions for name in _names_of_today(action)))
        return f"unrecognized arguments: {' '.join(words)}" + (f"; did you mean {near}?" if near else "")

    def error(self, message: str) -> NoReturn:
        """One line instead of argparse's usage block; exit code 2 all the same."""
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")

    def format_help(self) -> str:
        """The usage, options by group, and below them the words of the answer and examples; of a group its verbs."""
        if "verb" not in self._defaults:
            group = self.prog.partition(" ")[2]
            rows = [f"  {name:<10}  {OPTIONS[f'{group} {name}'][0]}" for name in self._verbs()]
            return "\n".join([f"usage: {self.prog} VERB …", "", GROUPS[group].capitalize() + ".", "", *rows, ""])
        formatter = _Formatter(self.prog)
        needed = [action for action in self._actions if action.option_strings and action.required]
        words = [formatter.written(action).split(", ")[-1] for action in needed]
        words += [formatter._format_args(action, action.dest) for action in _positionals(self)]
        formatter.add_usage(" ".join([self.prog, "[options]", *words]), [], [])
        formatter.add_text(self.description)
        for section in self._action_groups:
            formatter.start_section(str(section.title).removeprefix("positional "))
            if not self.common:
                formatter.add_text(section.description)
            formatter.add_arguments(map(self._shortened, self._shown(section._group_actions)))
            formatter.end_section()
        hidden = sum(bool(action.option_strings) for action in self._actions) - len(self.common) - 1
        verbs = [f"{self.prog} {name}" for name in self._verbs()]
        further = f"Also: {', '.join(verbs)}.\n" if verbs else ""
        if self.common:
            formatter.add_text(f"{further}--help-all shows {hidden} more options, and further examples.")
            formatter.add_text(_examples(self.examples[:1]))
        else:
            formatter.add_text(further)
            formatter.add_text(self.epilog)
        return formatter.format_help()

    def _verbs(self) -> list[str]:
        """The verbs below this one, or of this group, without those of before."""
        prefix = self.prog.partition(" ")[2]
        every = [
            name
            for action in self._actions
            if isinstance(action, argparse._SubParsersAction)
            for name in action.choices
        ]
        return [name for name in every if f"{prefix} {name}" in OPTIONS]

    def _shown(self, actions: Iterable[argparse.Action]) -> Iterator[argparse.Action]:
        for action in actions:
            is_shown = not (self.common and action.option_strings) or set(self.common) & set(action.option_strings)
            if is_shown and not isinstance(action, argparse._HelpAction | argparse._SubParsersAction):
                yield action

    def _shortened(self, action: argparse.Action) -> argparse.Action:
        """The option with its help's first sentence, and its default, where help shows the common ones alone.

        Choices that are too long for a column are part of the help.
        """
        shown, meaning = copy(action), action.help or ""
        before, default, after = meaning.rpartition(" (default: ")
        meaning, default = (before, default + after) if default else (meaning, "")
        if self.common:
            meaning = meaning.partition(". ")[0]
            default = default.partition(". ")[0]
        choices = ", ".join(map(str, action.choices or ()))
        if action.metavar is None and len(choices) > _WIDEST_CHOICES:
            shown.metavar = action.dest.upper()
            meaning += f"; one of {choices}"
        shown.help = meaning + default
        return shown

    def _check_value(self, action: argparse.Action, value: object) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            if isinstance(action, argparse._SubParsersAction):
                options = [word for word in takewhile(lambda word: word != value, self._words) if word.startswith("--")]
                unknown = [word for word in options if word.partition("=")[0] not in self._option_string_actions]
                if unknown:  # then this is its value
                    self.error(self.unrecognized([unknown[-1], str(value)]))
            offered = self._offered(action)
            near = meant(str(value), offered)
            remedy = f"; did you mean {near}?" if near else f" (choose from {', '.join(offered)})"
            error.message = f"invalid choice: {value!r}{remedy}"
            raise

    def _offered(self, action: argparse.Action) -> list[str]:
        """The choices of an option, or the verbs, without verbs of before."""
        choices = list(map(str, action.choices or ()))
        if not isinstance(action, argparse._SubParsersAction):
            return choices
        prefix = self.prog.partition(" ")[2]
        return [name for name in choices if f"{prefix} {name}".strip() not in _OLD_VERBS]


def _positionals(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [a for a in parser._actions if not (a.option_strings or isinstance(a, argparse._SubParsersAction))]


class VerbsParser(_OneLineParser):
    """The parser of the whole command, which knows the parser of each verb."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.verbs: dict[str, _OneLineParser] = {}
        self._groups = {"": _verbs_of(self, required=True)}

    def verb_group(self, name: str) -> "argparse._SubParsersAction[_OneLineParser]":
        """Return what holds the parsers of the verbs of a group, such as of "runs list"; `plan` is a verb itself."""
        group = name.rpartition(" ")[0]
        if group not in self._groups:
            is_verb = group in self.verbs
            holder = self.verbs[group] if is_verb else self._groups[""].add_parser(group, help=GROUPS[group])
            self._groups[group] = _verbs_of(holder, required=not is_verb)
        return self._groups[group]

    def parse(self, arguments: Sequence[str] | None = None) -> argparse.Namespace:
        """As `parse_args`; words that a verb does not know are told by its own parser, which has their neighbours."""
        known: tuple[argparse.Namespace, list[str]] = self.parse_known_args(arguments)
        options, unknown = known
        if unknown:
            verb = self.verbs.get(getattr(options, "verb", ""), self)
            verb.error(verb.unrecognized(unknown))
        return options

    def format_help(self) -> str:
        """Help by task: the verbs for each, and first steps."""
        width = max(map(len, OPTIONS))
        lines = ["usage: sparsepipe [--help] [--version] VERB …", "", _HEAD]
        named = {name for names in TASKS.values() for name in names}
        others = {"more": tuple(name for name in OPTIONS if name not in named)}
        for task, names in {**TASKS, **others}.items():
            rows = [f"  {name:<{width}}  {OPTIONS[name][0]}" for name in names if name in OPTIONS]
            lines += ["", task, *rows] if rows else []
        return "\n".join([*lines, "", _examples(FIRST_STEPS), "", _TAIL, ""])


def _verbs_of(parser: argparse.ArgumentParser, *, required: bool) -> "argparse._SubParsersAction[_OneLineParser]":
    return parser.add_subparsers(required=required, metavar="VERB", parser_class=_OneLineParser, help="verb")


def _words(explained: Mapping[str, str]) -> str:
    """List the definitions of terms in a verb's output, one per line."""
    wrapper = TextWrapper(78, initial_indent="  ", subsequent_indent="    ")
    lines = [wrapper.fill(f"{word}: {meaning}") for word, meaning in explained.items()]
    return "\n".join(["terms in the output:", *lines]) if lines else ""


def _examples(lines: Sequence[str]) -> str:
    """Commands, with a backslash where a line is continued."""
    shown = [continued(f"sparsepipe {line}") for line in lines]
    return "\n".join(["examples:", *shown]) if shown else ""


def continued(command: str) -> str:
    """Return a command in lines of at most 80 columns, indented, each but the last ending in a backslash."""
    wrapper = TextWrapper(78, initial_indent="  ", subsequent_indent="      ", break_on_hyphens=False)
    wrapper.break_long_words = False
    return " \\\n".join(wrapper.wrap(command))
