"""Count what makes a code base hard to walk through: `python scripts/house.py`. tests/test_house.py keeps the counts.

A module is a file of the package. Attributes of a class are those that its methods assign to `self`, and its fields.
"""

import ast
import re
import statistics
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeGuard

REPOSITORY = Path(__file__).resolve().parent.parent
MOST_ATTRIBUTES = 12  # of a class
MOST_ARGUMENTS = 10  # of a function
LINES = range(100, 451)  # of a file
# Names of variables and arguments that do not say what they hold, and words that open no sentence of a docstring.
_VAGUE = {"found", "kept", "one", "own", "place", "told"}
_QUESTIONS = {"how", "that", "those", "what", "when", "where", "whether", "which", "who", "why"}
_OF_LIBRARIES = {
    "_exit",
    "_buffers",
    "_modules",
    "_parameters",
    "_version",
}  # of os and torch
_CODE = re.compile(r"[a-z]\w*\.[a-z]\w*")  # of an error
_SENTENCE = re.compile(r"[A-Za-z'`]+( [\w'`,:.%-]+){3,}")  # four words and more


class House:
    """The package `sparsepipe` of a checkout, as its files' syntax trees."""

    def __init__(self, root: Path = REPOSITORY) -> None:
        self.root = root
        self.files = sorted((root / "sparsepipe").rglob("*.py"))

    @cached_property
    def places(self) -> dict[str, tuple[str, ...]]:
        """Dotted name of each module → the folders that it is in, and its file without the suffix."""
        every = [path.relative_to(self.root).with_suffix("").parts for path in self.files]
        return {".".join(parts[:-1] if parts[-1] == "__init__" else parts): parts for parts in every}

    @cached_property
    def texts(self) -> list[str]:
        """The text of each module."""
        return [path.read_text() for path in self.files]

    @cached_property
    def nodes(self) -> dict[str, list[ast.AST]]:
        """Dotted name of each module → the nodes of its syntax tree, walked once."""
        return {name: list(ast.walk(ast.parse(text))) for name, text in zip(self.places, self.texts, strict=True)}

    @property
    def lines(self) -> list[int]:
        """The number of lines of each module."""
        return [len(text.splitlines()) for text in self.texts]

    @cached_property
    def importers(self) -> dict[str, set[str]]:
        """Each module → the modules that import it, or a name of it."""
        by_module: dict[str, set[str]] = defaultdict(set)
        for name, nodes in self.nodes.items():
            for taken in imported_names(nodes, self.places[name]):
                module = taken if taken in self.places else taken.rpartition(".")[0]
                if module in self.places and module != name:
                    by_module[module].add(name)
        return by_module

    def serving_one(self) -> list[tuple[str, str]]:
        """(module, the only module that imports it), both of one folder."""
        pairs = ((name, next(iter(by))) for name, by in self.importers.items() if len(by) == 1)
        return sorted(
            (a, b) for a, b in pairs if self.places[a][:-1] == self.places[b][:-1] and self.places[a][-1] != "__init__"
        )

    def attributes(self) -> dict[str, int]:
        """Module and class → how many attributes it has."""
        return {f"{name}:{node.name}": len(_attributes(node)) for name, node in self._classes()}

    def arguments(self) -> dict[str, int]:
        """Module and function → how many arguments it takes, `self` and `cls` left out."""
        return {f"{name}:{node.name}": len(_arguments(node)) for name, node in self._functions()}

    def bundles(self) -> list[str]:
        """Places of calls through a dict or a tuple that the calling function has written itself."""
        return [f"{name}:{line}" for name, node in self._functions() for line in _bundles(node)]

    def privates(self) -> list[str]:
        """Places that use a private member which another class of the package has, and their own class has not."""
        members = {node: _members(node) for _, node in self._classes()}
        known = set().union(*members.values())
        own: dict[int, set[str]] = defaultdict(set)  # of the nodes in a class
        for node, names in members.items():
            for part in ast.walk(node):
                own[id(part)] |= names
        return [
            f"{name}:{part.lineno} {ast.unparse(part)}"
            for name, nodes in self.nodes.items()
            for part in nodes
            if isinstance(part, ast.Attribute)
            and part.attr.startswith("_")
            and not part.attr.startswith("__")
            and part.attr in known - own[id(part)] - _OF_LIBRARIES
            and not (isinstance(part.value, ast.Name) and part.value.id in ("self", "cls"))
        ]

    def kinds_of_plan(self) -> list[str]:
        """Places that ask for the type of a plan."""
        return [
            f"{name}:{call.lineno}"
            for name, nodes in self.nodes.items()
            for call in nodes
            if isinstance(call, ast.Call)
            and isinstance(call.func, ast.Name)
            and call.func.id == "isinstance"
            and any(isinstance(kind, ast.Name) and kind.id in ("Pipelines", "Plan") for kind in ast.walk(call.args[1]))
        ]

    def branches_on_several(self) -> list[str]:
        """Places outside plan.py that do another thing for a plan of several pipelines than for that of one."""
        return sorted(
            {
                f"{name}:{part.lineno}"
                for name, nodes in self.nodes.items()
                for test in _conditions(nodes)
                for part in ast.walk(test)
                if name != "sparsepipe.values.plan" and isinstance(part, ast.Attribute) and _asks_for_several(part)
            }
        )

    def anys(self) -> int:
        """How often `Any` is written."""
        return sum(isinstance(node, ast.Name) and node.id == "Any" for nodes in self.nodes.values() for node in nodes)

    def tests_of_sentences(self) -> list[str]:
        """Tests that compare with, or search for, a text of four words and more."""
        names = []
        for path in sorted((self.root / "tests").glob("test_*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.FunctionDef) and node.name.startswith("test_") and _pins_a_sentence(node):
                    names.append(f"{path.name}:{node.name}")
        return names

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The content of pyproject.toml."""
        return tomllib.loads((self.root / "pyproject.toml").read_text())

    @cached_property
    def coded_errors(self) -> list[tuple[str, ast.expr, ast.expr]]:
        """(place, code, sentence) of each error with a code that the package makes (see errors.py)."""
        classes = [(node.name, node) for _, node in self._classes()]
        kinds, known = {"CodedError"}, 0
        while known < len(kinds):
            known = len(kinds)
            kinds |= {name for name, node in classes if kinds & {getattr(base, "id", "") for base in node.bases}}
        makers = [
            (name, part) for name, node in classes for part in node.body if getattr(part, "name", "") == "__init__"
        ]
        own = {name for name, maker in makers if isinstance(maker, ast.FunctionDef) and "code" not in _arguments(maker)}
        return [
            (f"{name}:{call.lineno}", *[*call.args, ast.Constant(None), ast.Constant(None)][:2])
            for name, nodes in self.nodes.items()
            for call in nodes
            if isinstance(call, ast.Call)
            and (called := ast.unparse(call.func)) not in own
            and (called in kinds or called == "super().__init__" and is_code(call.args[:1]))
        ]

    def golden_errors(self) -> str:
        """Each code with its sentences, a line each, sorted; what is filled in is named where it has a name."""
        found = {
            (code.value, template(self._written(place, sentence)))
            for place, code, sentence in self.coded_errors
            if is_code([code])
        }
        return "".join(f"{code}: {sentence}\n" for code, sentence in sorted(found))

    def _written(self, place: str, sentence: ast.expr) -> ast.expr:
        """A sentence as it is written in the statement before, where that gives it a name."""
        module, _, line = place.rpartition(":")
        named = [
            node.value
            for node in self.nodes[module]
            if isinstance(node, ast.Assign)
            and node.end_lineno == int(line) - 1
            and isinstance(node.value, ast.Constant | ast.JoinedStr)
            and ast.unparse(node.targets[0]) == ast.unparse(sentence)
        ]
        return named[0] if named else sentence

    def dependencies(self) -> list[str]:
        """What the package cannot be installed without."""
        return list(self.settings["project"]["dependencies"])

    def less_than_strict(self) -> list[str]:
        """Flags of mypy's strict mode that are off, our modules where some are, and places that ANN401 leaves out."""
        mypy, ignores = self.settings["tool"]["mypy"], self.settings["tool"]["ruff"]["lint"]["per-file-ignores"]
        modules = [name for override in mypy["overrides"] for name in override["module"]]
        off = [flag for flag, value in mypy.items() if value is False]
        lists = [re.findall(r"{(.*)}", pattern) for pattern, rules in ignores.items() if "ANN401" in rules]
        places = [place for found in lists for names in found for place in names.split(",")]
        return [*off, *(name for name in modules if name.startswith("sparsepipe")), *places]

    def ignored_types(self) -> int:
        """How often a line is left out of type checking."""
        return sum(text.count("# type: ignore") for text in self.texts)

    def files_of_other_sizes(self) -> list[str]:
        """Modules that are shorter or longer than a file is to be; what a folder exports may be short."""
        sizes = zip(self.places.items(), self.lines, strict=True)
        return [name for (name, parts), lines in sizes if parts[-1] != "__init__" and lines not in LINES]

    def vague_names(self) -> list[str]:
        """Places where a variable or an argument gets a name that does not say what it holds."""
        return [
            f"{name}:{part.lineno}"
            for name, nodes in self.nodes.items()
            for part in nodes
            if (isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store) and part.id in _VAGUE)
            or (isinstance(part, ast.arg) and part.arg in _VAGUE)
        ]

    def classes_of_one_name(self) -> list[str]:
        """Names that several classes have."""
        return sorted(name for name, n in Counter(node.name for _, node in self._classes()).items() if n > 1)

    def docstrings_of_questions(self) -> list[str]:
        """Classes and functions whose docstring opens with neither a verb nor a noun."""
        defined = (*self._classes(), *self._functions())
        openings = [(f"{name}:{node.name}", (ast.get_docstring(node) or ".").split()[0]) for name, node in defined]
        return [place for place, opening in openings if opening.strip(".,:").lower() in _QUESTIONS]

    def rooms(self) -> tuple[int, int]:
        """Modules and folders at the root of the package."""
        inside = [path for path in (self.root / "sparsepipe").iterdir() if path.name != "__init__.py"]
        return sum(path.suffix == ".py" for path in inside), sum((path / "__init__.py").exists() for path in inside)

    def _classes(self) -> Iterator[tuple[str, ast.ClassDef]]:
        for name, nodes in self.nodes.items():
            yield from ((name, node) for node in nodes if isinstance(node, ast.ClassDef))

    def _functions(self) -> Iterator[tuple[str, ast.FunctionDef]]:
        for name, nodes in self.nodes.items():
            yield from ((name, node) for node in nodes if isinstance(node, ast.FunctionDef))


def imported_names(nodes: Iterable[ast.AST], place: Sequence[str]) -> Iterator[str]:
    """Yield the absolute dotted names that a file imports, wherever in it; each may be a module, or a name of one.

    `place`: the folders that the file is in, and its name without the suffix.
    """
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            folder = place[: len(place) - node.level] if node.level else ()
            base = ".".join((*folder, *filter(None, [node.module])))
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _conditions(nodes: Iterable[ast.AST]) -> Iterator[ast.expr]:
    for node in nodes:
        if isinstance(node, ast.If | ast.IfExp | ast.While | ast.Assert):
            yield node.test
        elif isinstance(node, ast.BoolOp):
            yield from node.values
        elif isinstance(node, ast.comprehension):
            yield from node.ifs


def _asks_for_several(part: ast.Attribute) -> bool:
    """`plan.members` or `plan.replication`, whatever ends the plan's name, such as `record.plan.members`."""
    owner = part.value.id if isinstance(part.value, ast.Name) else getattr(part.value, "attr", "")
    return part.attr in ("members", "replication") and owner in ("plan", "chosen", "newest", "value")


def is_code(nodes: Sequence[ast.expr]) -> TypeGuard[list[ast.Constant]]:
    """Whether these are one constant, which is an error's code."""
    return len(nodes) == 1 and isinstance(nodes[0], ast.Constant) and bool(_CODE.fullmatch(str(nodes[0].value)))


def template(sentence: ast.expr) -> str:
    """Return a sentence with names and attributes in braces, and {…} for other expressions."""
    if isinstance(sentence, ast.Constant):
        return str(sentence.value).replace("\n", "\\n")
    if isinstance(sentence, ast.JoinedStr):
        return "".join(map(template, sentence.values))
    value = sentence.value if isinstance(sentence, ast.FormattedValue) else sentence
    named = isinstance(value, ast.Name | ast.Attribute)
    return f"{{{ast.unparse(value).removeprefix('self.') if named else '…'}}}"


def _attributes(node: ast.ClassDef) -> set[str]:
    annotated = (part.target for part in node.body if isinstance(part, ast.AnnAssign))
    fields = {target.id for target in annotated if isinstance(target, ast.Name)}
    assigned = {
        part.attr
        for part in ast.walk(node)
        if isinstance(part, ast.Attribute)
        and isinstance(part.ctx, ast.Store)
        and isinstance(part.value, ast.Name)
        and part.value.id == "self"
    }
    return fields | assigned


def _members(node: ast.ClassDef) -> set[str]:
    return _attributes(node) | {part.name for part in node.body if isinstance(part, ast.FunctionDef)}


def _arguments(node: ast.FunctionDef) -> list[str]:
    every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return [argument.arg for argument in every if argument.arg not in ("self", "cls")]


def _bundles(node: ast.FunctionDef) -> Iterator[int]:
    """Lines of calls `f(**kept)` and `f(*kept)` where the function has assigned a dict or a tuple to `kept`."""
    inside = list(ast.walk(node))
    written = {
        target.id
        for part in inside
        if isinstance(part, ast.Assign) and isinstance(part.value, ast.Dict | ast.Tuple)
        for target in part.targets
        if isinstance(target, ast.Name)
    }
    for call in (part for part in inside if isinstance(part, ast.Call)):
        spread = [word.value for word in call.keywords if word.arg is None]
        spread += [argument.value for argument in call.args if isinstance(argument, ast.Starred)]
        if any(isinstance(value, ast.Name) and value.id in written for value in spread):
            yield call.lineno


def _pins_a_sentence(node: ast.FunctionDef) -> bool:
    asserted: list[ast.AST] = []
    for part in ast.walk(node):
        if isinstance(part, ast.Assert):
            asserted.append(part.test)
        elif isinstance(part, ast.Call):
            asserted += [word.value for word in part.keywords if word.arg == "match"]
    texts = (inner.value for part in asserted for inner in ast.walk(part) if isinstance(inner, ast.Constant))
    return any(isinstance(text, str) and _SENTENCE.search(text) for text in texts)


def counts(house: House) -> dict[str, float]:
    """Each point of the table → how much there is of it."""
    attributes, arguments = house.attributes(), house.arguments()
    modules, folders = house.rooms()
    return {
        "files": len(house.files),
        "median lines of a file": statistics.median(house.lines),
        "lines": sum(house.lines),
        "modules at the root": modules,
        "folders at the root": folders,
        "modules that serve one other of their folder": len(house.serving_one()),
        "most attributes of a class": max(attributes.values()),
        f"classes of more than {MOST_ATTRIBUTES} attributes": sum(n > MOST_ATTRIBUTES for n in attributes.values()),
        "most arguments of a function": max(arguments.values()),
        f"functions of more than {MOST_ARGUMENTS} arguments": sum(n > MOST_ARGUMENTS for n in arguments.values()),
        f"files not of {LINES[0]} to {LINES[-1]} lines": len(house.files_of_other_sizes()),
        "names that do not say what they hold": len(house.vague_names()),
        "names of several classes": len(house.classes_of_one_name()),
        "docstrings that open with a question": len(house.docstrings_of_questions()),
        "calls through bundles of arguments": len(house.bundles()),
        "private members used from outside their class": len(house.privates()),
        "questions for the kind of a plan": len(house.kinds_of_plan()),
        "branches on plans of several pipelines": len(house.branches_on_several()),
        "Any": house.anys(),
        "exceptions from strict types": len(house.less_than_strict()),
        "lines whose types are ignored": house.ignored_types(),
        "tests that pin a sentence": len(house.tests_of_sentences()),
        "lines of the README": len((house.root / "README.md").read_text().splitlines()),
        "dependencies": len(house.dependencies()),
        "pinned dependencies": sum("==" in one for one in house.dependencies()),
    }


def main() -> int:
    """Print the table, and what stands at its top; with --errors the lines of tests/golden/errors.txt instead."""
    if sys.argv[1:] == ["--errors"]:
        print(House().golden_errors(), end="")
        return 0
    house = House(Path(sys.argv[1]) if len(sys.argv) > 1 else REPOSITORY)
    for what, count in counts(house).items():
        print(f"{what:48s} {count:>9,g}")
    for title, found in (("attributes", house.attributes()), ("arguments", house.arguments())):
        largest = ", ".join(f"{name} {count}" for name, count in Counter(found).most_common(5))
        print(f"most {title}: {largest}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
