"""The parser of the whole command: verbs in groups, help by task, and errors in one line with what was meant."""

import argparse
import os
from collections.abc import Mapping, Sequence
from textwrap import TextWrapper
from typing import Any, NoReturn

from .. import __version__
from ..io.keywords import meant
from .arguments import GROUPS, OPTIONS
from .tasks import EXAMPLES, FIRST_STEPS, TASKS, WORDS

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
