"""A schedule is a row of facts: nothing outside its family compares names, or says who feeds whom."""

import ast
from importlib import import_module
from pathlib import Path

import pytest

from sparsepipe import Plan, Stage
from sparsepipe.engines import ENGINES
from sparsepipe.records.run_progress import REPLAY
from sparsepipe.values.schedule_rules import SCHEDULE_RULES, WEIGHT_RULES

PACKAGE = Path(__file__).parent.parent / "sparsepipe"
NAMES = {*SCHEDULE_RULES, *WEIGHT_RULES, *ENGINES, REPLAY.name}


def _compared(path):
    """Where a file compares something with the name of a schedule, a weight policy, an engine or a workload.

    The name may stand there, or be a constant of the file.
    """
    tree = ast.parse(path.read_text())
    constants = _constants(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "startswith":
            parts = node.args
        else:
            continue
        found = [part for whole in parts for part in ast.walk(whole)]
        literals = {part.value for part in found if isinstance(part, ast.Constant)}
        named = {constants.get(part.id) for part in found if isinstance(part, ast.Name)}
        if (literals | named) & NAMES:
            yield f"{path.relative_to(PACKAGE)}:{node.lineno}: {ast.unparse(node)}"


def _constants(tree):
    """The literals that a file gives names to, outside functions."""
    given = [(node.targets, node.value) for node in tree.body if isinstance(node, ast.Assign)]
    given += [([node.target], node.value) for node in tree.body if isinstance(node, ast.AnnAssign)]
    return {
        target.id: value.value
        for targets, value in given
        for target in targets
        if isinstance(target, ast.Name) and isinstance(value, ast.Constant)
    }


def test_a_name_compared_through_a_constant_is_found(tmp_path, monkeypatch):
    """Engines' names were compared in this way, and not seen."""
    monkeypatch.setitem(globals(), "PACKAGE", tmp_path)
    (path := tmp_path / "again.py").write_text(
        '_OURS = "native"\n_OTHER: str = "gpipe"\n_TEXT = "else"\n'
        "a = x.name == _OURS\nb = y in (_OTHER, z)\nc = x.name == _TEXT\nd = x == 'zbv'\n"
    )
    assert [place.split(":")[1] for place in _compared(path)] == ["4", "5", "7"]


def test_no_code_outside_the_schedule_family_compares_a_name():
    files = [path for path in sorted(PACKAGE.rglob("*.py")) if path.parent.name != "schedule"]
    found = [place for path in files for place in _compared(path)]
    assert found == []


@pytest.mark.parametrize("name", SCHEDULE_RULES)
def test_a_row_is_complete(name):
    rules = SCHEDULE_RULES[name]
    for module in (rules.order, rules.interleaved_order):
        assert not module or callable(import_module(f"sparsepipe.values.schedule.{module}").order)
    assert rules.summary and set(rules.weights) <= set(WEIGHT_RULES)
    assert rules.planned_as in ("", *SCHEDULE_RULES)
    plan = Plan((Stage(("a",), (0,)),), name)
    assert plan.weights == rules.weights[0] and plan.flushes is WEIGHT_RULES[plan.weights].flushes


EXECUTORS = ("planning/simulator", "planning/forecast.py", "runtime", "launching")  # what plays a program, or runs it


def _neighbours(path):
    """Where a file works out a neighbouring stage by itself: `stages[k + 1]`, `stages[: k + 1]`, `pairwise(stages)`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith("stages"):
            steps = (part for part in ast.walk(node.slice) if isinstance(part, ast.BinOp))
            found = any(isinstance(step.op, ast.Add | ast.Sub) for step in steps)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in ("pairwise", "zip"):
            found = sum("stages" in ast.unparse(argument) for argument in node.args) > (len(node.args) > 1)
        else:
            continue
        if found:
            yield f"{path.name}:{node.lineno}: {ast.unparse(node)}"


def test_who_feeds_whom_is_asked_of_the_program():
    """Its rule stands in values/schedule/actions.py alone: no simulator, worker or launcher writes it again."""
    files = [
        path for name in EXECUTORS for path in ((PACKAGE / name).rglob("*.py") if "." not in name else [PACKAGE / name])
    ]
    assert len(files) > 60
    assert [place for path in files for place in _neighbours(path)] == []


def test_a_second_rule_of_who_feeds_whom_is_found(tmp_path):
    path = tmp_path / "again.py"
    path.write_text(
        "a = plan.stages[k + 1]\nb = pairwise(plan.stages)\nc = zip(stages, stages[1:])\nd = stages[target]\n"
    )
    assert [place.split(":")[1] for place in _neighbours(path)] == ["1", "2", "3"]
