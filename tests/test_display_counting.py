"""Numbers of things: "1 devices" stood in plans, messages and tiles, each with its own way of saying more than one."""

import ast
from pathlib import Path

import pytest
from coded import mentions

import sparsepipe
from sparsepipe import Cluster, DeviceType, Link, Node
from sparsepipe.util.text.numbers import as_given, number_of

PACKAGE = Path(sparsepipe.__file__).parent


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ((1, "device"), "1 device"),
        ((0, "device"), "0 devices"),
        ((2, "minibatch"), "2 minibatches"),
        ((1, "minibatch"), "1 minibatch"),
        ((3, "process"), "3 processes"),
        ((2, "boundary"), "2 boundaries"),
        ((2, "day"), "2 days"),
        ((1, "more stage"), "1 more stage"),
        ((2, "more stage"), "2 more stages"),
        ((1200, "voxel", ","), "1,200 voxels"),
        ((1.0, "epoch", as_given), "1 epoch"),
        ((1.5, "epoch", as_given), "1.5 epochs"),
        ((1000.5, "epoch", as_given), "1000.5 epochs"),
    ],
)
def test_one_is_singular(given, told):
    assert number_of(*given) == told


def test_a_cluster_of_one_says_so():
    assert mentions(str(Cluster((Node("a", (DeviceType("gpu"),), Link()),))), "1 device", 1)


WORDS = (
    "device",
    "minibatch",
    "stage",
    "layer",
    "epoch",
    "pipeline",
    "host",
    "node",
    "rank",
    "sample",
    "core",
    "process",
)
PLURALS = tuple(number_of(2, word).removeprefix("2") for word in WORDS)
MORE_THAN_ONE = {  # said of several alone: the code asks before
    "views/plots/accuracy.py",
    "views/widgets/job_line.py",
    "views/widgets/settings.py",
}


def test_every_count_goes_through_it():
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.JoinedStr) or name in MORE_THAN_ONE:
                continue
            for before, count, after in zip([None, *node.values], node.values, node.values[1:], strict=False):
                of = isinstance(before, ast.Constant) and before.value.endswith(" of ")  # "1 of 2 devices"
                counts = isinstance(count, ast.FormattedValue) and ast.unparse(count.value).startswith("len(")
                if counts and not of and isinstance(after, ast.Constant) and after.value.startswith(PLURALS):
                    found.append(f"{name}:{node.lineno} {ast.unparse(count.value)}{after.value[:20]}")
    assert not found
