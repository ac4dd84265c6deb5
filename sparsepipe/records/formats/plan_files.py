"""Plans in any format that is read: ours, PipeDream's conf json, DynPipe's partition files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...util.io.files import read_json
from ...values.graph import LayerGraph
from ...values.plan import Plan
from . import dynpipe, pipedream_conf


def check_plan(path: Path | str) -> Any:
    """Return the JSON of a plan's file, whose layers are not compared with a network's.

    Raises InputError naming the file if it is none of the formats that `load_plan` reads.
    """
    document = read_json(path, what="plan")
    if not dynpipe.is_partition(document) and not pipedream_conf.is_conf(document):
        Plan.load(path)
    return document


def load_plan(path: Path | str, graph: LayerGraph | Callable[[], LayerGraph]) -> Plan:
    """Read a plan for `graph`, which may be a function that is asked for it where the file names no layers.

    Raises InputError naming the file.
    """
    if dynpipe.is_partition(read_json(path, what="plan")):
        return dynpipe.load_partition(path, graph)
    return pipedream_conf.load_plan(path, graph)
