"""The verb of the command line that lists networks. torch comes in only where parameters of modules are asked for."""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from ..errors import InputError
from ..networks import MODULE_NETWORKS
from ..networks.catalogue import Entry, catalogue, table_parameters
from ..util.io.keywords import meant
from .output import Answer, table

_OWN = (
    ("package.module:function", "a function that Python finds as it finds modules"),
    ("path/net.py:function", "a function of a file, wherever it lies"),
)
_HOW = (
    "it is called with --model-args JSON and with those facts of the data that its parameters are named after "
    "(num_classes, in_channels, image_size, vocabulary_size, ...), and returns a torch.nn.Module"
)


def models(options: argparse.Namespace) -> Answer:
    found = catalogue(options.text)
    if not found:
        near = f"; did you mean {one}?" if (one := meant(options.text, [row.name for row in catalogue("")])) else ""
        raise InputError(
            "model.none_found", f"no model's name contains {options.text!r}; sparsepipe models lists all{near}"
        )
    rows = [{**asdict(entry), "parameters": _parameters(entry, options)} for entry in found]
    columns = ("name", "kind", "takes", "parameters", "summary")
    lines = [columns, *([_cell(row[column]) for column in columns] for row in rows)]
    own = {name: f"{what}; {_HOW}" for name, what in _OWN}
    text = "\n".join([table(lines), "", "your own:", *(f"  {name}  {what}" for name, what in _OWN), f"  {_HOW}"])
    return Answer({"models": rows, "classes": options.classes, "own": own}, text)


def _parameters(entry: Entry, options: argparse.Namespace) -> int | None:
    """Count a network's parameters; those of a module, which takes torch and seconds for all, only if asked to."""
    if entry.name not in MODULE_NETWORKS:
        return table_parameters(entry.name, num_classes=options.classes)
    return _module_parameters(entry.name, options.classes) if options.parameters else None


def _module_parameters(name: str, num_classes: int) -> int:
    from importlib import import_module
    from inspect import signature

    import torch

    chosen = MODULE_NETWORKS[name]
    builder = getattr(import_module(f"sparsepipe.networks.{chosen.home}"), chosen.function)
    facts = {"num_classes": num_classes} if "num_classes" in signature(builder).parameters else {}
    with torch.device("meta"):  # shapes without memory
        module = builder(**chosen.args, **facts)
    return sum(parameter.numel() for parameter in module.parameters())


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else str(value)


VERBS: Mapping[str, Callable[[argparse.Namespace], Answer]] = {"models": models}
