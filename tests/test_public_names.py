"""Public names, those of `sparsepipe.__all__` and of the guides: each has an example that runs, and says its fields."""

import doctest
import inspect
import re
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

import sparsepipe as sp
from scripts.docs.build import EXAMPLES_START, documented_names, named_by_guides, resolve
from scripts.docs.conf import as_restructured_text

REPOSITORY = Path(__file__).resolve().parent.parent
RUN = REPOSITORY / "tests" / "records_0_1_0" / "one"  # of two epochs
SLOW = {"launch", "profile_model"}  # they start processes, or measure


PUBLIC = documented_names()


def fields_of(value: Any) -> list[str]:
    """The fields of a value, or the members of an enumeration."""
    if not isinstance(value, type):
        return []
    if issubclass(value, Enum):
        return list(value.__members__)
    names = [field.name for field in fields(value)] if is_dataclass(value) else list(getattr(value, "_fields", ()))
    return [name for name in names if not name.startswith("_")]


def parameters_of(value: Any) -> list[str]:
    """The parameters of a function or a method, or of a class that is no value."""
    if isinstance(value, type) and (fields_of(value) or value in (sp.RunRecord, sp.RunFailed)):
        return []
    known = inspect.signature(value).parameters
    return [name for name in known if name not in ("self", "cls", "args", "kwargs", "given") and name[0] != "_"]


def explained(name: str, doc: str) -> bool:
    """Whether a docstring has a line for a field or a parameter: "name: …", "one, name: …", "- `name`: …"."""
    return bool(re.search(rf"^ +(?:\w+, )*{name}(?:, \w+)*: ", doc, re.M) or f"- `{name}`: " in doc)


def test_there_are_about_sixty():
    assert 50 <= len(PUBLIC) <= 80 and {"partition", "data.load", "Plan.alike", "plots.timeline"} <= PUBLIC.keys()


@pytest.mark.parametrize("name", PUBLIC)
def test_a_docstring_follows_the_template(name):
    value, doc = PUBLIC[name], inspect.getdoc(PUBLIC[name])
    opening = doc.splitlines()[0]
    assert re.match(r"[A-Z][a-z]+ ", opening) and opening.endswith("."), opening
    assert [part for part in fields_of(value) if not explained(part, doc)] == []
    assert [part for part in parameters_of(value) if not explained(part, doc)] == []
    assert ">>> " in doc and re.search(r"^Example:$", doc, re.M)
    returns = not isinstance(value, type) and inspect.signature(value).return_annotation not in (None, "None")
    assert not returns or re.search(r"^Returns:$", doc, re.M)


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in PUBLIC])
def test_an_example_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    known: dict[str, Any] = {"run_dir": RUN}
    exec(EXAMPLES_START, known)
    example = doctest.DocTestParser().get_doctest(inspect.getdoc(PUBLIC[name]), known, name, None, 0)
    said: list[str] = []
    assert doctest.DocTestRunner(verbose=False).run(example, out=said.append).failed == 0, "".join(said)


def test_what_a_docstring_points_to_exists():
    """Pages of the guides, and public names."""
    pages = REPOSITORY / "notebooks"
    for name, value in PUBLIC.items():
        (section,) = re.findall(r"^See also:\n((?: +.*\n?)+)", inspect.getdoc(value), re.M) or [""]
        for page in re.findall(r"\b(?:guides|background)/\w+", section):
            assert any((pages / f"{page}.{suffix}").exists() for suffix in ("md", "ipynb")), (name, page)
        assert [other for other in re.findall(r"`([\w.]+)`", section) if not callable(resolve(other))] in (
            [],
            ["SCHEDULES"],
        )


def test_dir_lists_public_names_and_the_folders_that_guides_name():
    listed = {name for name in dir(sp) if not name.startswith("__")}
    folders = listed - set(sp.__all__)
    assert folders >= {name.partition(".")[0] for name in named_by_guides() if "." in name} - set(sp.__all__)
    assert folders == {
        *("data", "engines", "functions", "monitoring", "networks", "planning", "plots", "profiling", "records"),
        *("runtime", "study", "values", "views", "widgets"),
    }


def test_pages_that_docstrings_point_to_are_links_of_the_site():
    lines = as_restructured_text(["Say.", "", "See also:", "    guides/ssh, `Plan`"])
    assert lines[-1] == "    :doc:`/notebooks/guides/ssh`, ``Plan``"
