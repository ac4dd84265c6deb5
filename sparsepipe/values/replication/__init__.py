"""Replication rules: how several pipelines that train one network keep their copies consistent.

    base.py         what a rule is, and a merge
    gathering.py    who is live and who waits: what all rules keep
    base.py  how far ahead of what they train pipelines take minibatches
    synchronous.py, partial_reduce.py, asynchronous.py    the rules, a class each

A rule is chosen as RULE[:option=value,…], such as `partial-reduce:wait=0.01,overlap=false`.
"""

from collections.abc import Mapping
from typing import Any

from ...errors import InputError
from ...util.io.fields import shown
from ...util.io.options import option_values, split_options, typed, with_options, written_options
from .asynchronous import AdPsgd, Wsp
from .base import SERVER, Arithmetic, Groups, Merge, Rule
from .partial_reduce import PartialReduce, Quorum
from .synchronous import AllReduce, DiLoCo, LocalSgd

RULES: Mapping[str, type[Rule]] = {
    cls.name: cls for cls in (AllReduce, PartialReduce, AdPsgd, Wsp, LocalSgd, DiLoCo, Quorum)
}


def rule(name: str, options: Mapping[str, Any] | None = None) -> Rule:
    """Return a synchronization scheme by its name, with its options.

    Raises InputError for an unknown name or option.
    """
    if not isinstance(name, str) or name not in RULES:
        raise InputError(
            "replication.unknown", f"unknown replication {shown(name)}, expected one of {', '.join(RULES)}"
        )
    return with_options(RULES[name], options or {}, f"replication {name}")


def parse_rule(given: str) -> Rule:
    """Parse a synchronization scheme from its text on the command line.

    Args:
        given: "NAME" or "NAME:option=value,…", such as "local-sgd:every=8".

    Returns:
        The scheme.

    Raises:
        InputError: An unknown name or option.

    Example:
        >>> from sparsepipe.values.replication import parse_rule
        >>> parse_rule("local-sgd:every=8").every
        8

    See also:
        background/synchronization_schemes, guides/pipeline_replicas
    """
    name, options = split_options(given, "replication")
    return rule(name, {option: typed(value) for option, value in options.items()})


def rule_text(given: Rule) -> str:
    """Write a scheme as `parse_rule` reads it, with the options that differ from their defaults."""
    return written_options(given.name, given)


def rule_to_json(given: Rule) -> dict[str, Any]:
    """Return a scheme as plans and records store it: {"rule": name, "options": all options}."""
    return {"rule": given.name, "options": option_values(given)}


def rule_from_json(document: object, what: str = "replication") -> Rule:
    """Return the scheme of a plan or record.

    Missing options have their defaults. Raises InputError for malformed JSON.
    """
    if not isinstance(document, Mapping) or not isinstance(document.get("options", {}), Mapping):
        raise InputError(
            "replication.malformed", f'{what} is {shown(document)}, expected {{"rule": NAME, "options": {{…}}}}'
        )
    return rule(document.get("rule", None), document.get("options", {}))


def sent_share(given: Rule) -> float:
    """Return the bytes sent per byte of weights. Below 1: the scheme has an option for fewer bits."""
    return float(option_values(given).get("bits", 32)) / 32


__all__ = [
    "RULES",
    "SERVER",
    "Arithmetic",
    "Groups",
    "Merge",
    "Rule",
    "parse_rule",
    "rule",
    "rule_from_json",
    "rule_text",
    "rule_to_json",
    "sent_share",
]
