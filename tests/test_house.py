"""The counts of scripts/house.py only fall: what is merged or named stays so."""

import ast

import pytest

from scripts.house import House, counts

AT_MOST = {
    "files": 799,
    "lines": 102_599,
    "modules at the root": 20,
    "folders at the root": 28,
    "modules that serve one other of their folder": 143,
    "most attributes of a class": 48,
    "classes of more than 12 attributes": 37,
    "most arguments of a function": 17,
    "calls through bundles of arguments": 114,
    "questions for the kind of a plan": 54,
    "Any": 1_708,
    "tests that pin a sentence": 300,
    "dependencies": 11,
    "pinned dependencies": 0,
}


@pytest.mark.slow
def test_no_count_rises():
    found = counts(House())
    assert {what: found[what] for what, most in AT_MOST.items() if found[what] > most} == {}


def test_what_is_counted_is_found(tmp_path):
    """On a package of two files, of which the counts are known."""
    package = tmp_path / "sparsepipe"
    (package / "room").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "room" / "__init__.py").write_text("from .b import B\n")
    (package / "room" / "a.py").write_text("from typing import Any\n\n\ndef f(x: Any, *, y: int = 0) -> None: ...\n")
    (package / "room" / "b.py").write_text(
        "from .a import f\n\n\nclass B:\n    field: int = 0\n\n"
        "    def __init__(self):\n        self.one = self.two = 1\n"
        "        own = {'x': 1}\n        f(**own)\n        isinstance(self, Plan)\n"
    )
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_a.py").write_text(
        "def test_a():\n    assert x == 'four words stand here'\n\n\n"
        "def test_b():\n    assert x == 'three words here'\n"
    )
    (tmp_path / "pyproject.toml").write_text('[project]\ndependencies = ["torch>=2", "numpy==2.1"]\n')
    house = House(tmp_path)
    assert house.serving_one() == [("sparsepipe.room.a", "sparsepipe.room.b"), ("sparsepipe.room.b", "sparsepipe.room")]
    assert house.attributes() == {"sparsepipe.room.b:B": 3} and house.arguments()["sparsepipe.room.a:f"] == 2
    assert house.bundles() == ["sparsepipe.room.b:10"] and house.kinds_of_plan() == ["sparsepipe.room.b:11"]
    assert house.tests_of_sentences() == ["test_a.py:test_a"] and house.rooms() == (0, 1) and house.anys() == 1
    assert house.dependencies() == ["torch>=2", "numpy==2.1"]
    assert all(isinstance(nodes[0], ast.Module) for nodes in house.nodes.values())
