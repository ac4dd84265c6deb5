"""What a notebook imports of this package, imported beforehand in a process that its kernel is forked from."""

import ast
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ..io.files import read_json

_PACKAGE = __name__.partition(".")[0]


def bring_in(source: str) -> None:
    """Import what the cells of a notebook name of this package; what cannot be imported its own cell will tell.

    What is not this package's is left to the notebook: a reader's own files may change between two notebooks.
    """
    for module, name in imports(source):
        with suppress(Exception):
            __import__(module, fromlist=[name] if name else [])


def imports(source: str) -> Iterator[tuple[str, str]]:
    """Yield modules of this package and names in them, "" for none, that a notebook's cells import or use."""
    short: dict[str, str] = {}  # what modules are called in the notebook
    for tree in _cells(source):
        for node in ast.walk(tree):
            match node:
                case ast.Import(names=names):
                    for each in names:
                        if _is_ours(each.name):
                            short[each.asname or each.name] = each.name
                            yield each.name, ""
                case ast.ImportFrom(module=str(module), names=names, level=0) if _is_ours(module):
                    yield from ((module, each.name) for each in names)
                case ast.Attribute(value=ast.Name(id=name), attr=attribute) if name in short:
                    yield short[name], attribute


def _cells(source: str) -> Iterator[ast.Module]:
    for cell in read_json(Path(source), what="notebook").get("cells", []):
        if cell["cell_type"] == "code":
            with suppress(SyntaxError):  # a cell of a magic
                yield ast.parse("".join(cell["source"]))


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == _PACKAGE
