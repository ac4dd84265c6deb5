"""Functions of the user's own, named in text: a network, a data set, a loss. Imported again by every process.

    package.module:function     found as Python finds modules
    path/file.py:function       a file, wherever it lies; relative to the current folder. It may import its neighbours
                                and its package: their folder is on Python's path while it is imported

Nothing is pickled: what travels in a record is the name, with the file's SHA-256.
"""

import ast
import importlib
import importlib.util
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from ...errors import CODE_FAILURES, InputError
from ..derived.digests import digest
from ..host.removed_names import restore_removed_names
from ..moved_modules import module_now
from .files import sha256
from .paths import expanded

_USER = "sparsepipe_user_"  # what names of users' files begin with, as modules
_NEIGHBOURS = "__sparsepipe_neighbours__"  # in a user's file: names of the neighbours that it imported
_ROOT = "__sparsepipe_root__"  # in a neighbour: the folder that it was imported from, and its file's SHA-256
_EXAMPLE = "'package.module:function' or 'path/net.py:function'"


def is_function(reference: str) -> bool:
    """Return whether text names a function of the user's own, by its form alone."""
    home, colon, name = reference.rpartition(":")
    return bool(colon and home) and name.isidentifier()


def short_name(reference: str) -> str:
    """Return a name for texts and folders: of a function its file's name and its own, "net.py:build"; else as it is."""
    home, colon, name = reference.rpartition(":")
    return f"{Path(home).name}:{name}" if is_function(reference) else reference


def functions_of(settings: Mapping[str, Any]) -> dict[str, "UserFunction"]:
    """Return the user's own functions that the settings of a run name, by setting.

    Raises InputError for a file that does not exist.
    """
    named = {name: settings.get(name) for name in ("model", "data", "loss")}
    return {name: UserFunction.parse(value) for name, value in named.items() if value and is_function(value)}


@dataclass(frozen=True)
class UserFunction:
    """A function by name: `home` is a module's dotted name, or a .py file."""

    home: str
    name: str

    @classmethod
    def parse(cls, reference: str) -> "UserFunction":
        """Read "home:name". Raises InputError for another form, and for a file that does not exist."""
        home, _, name = reference.rpartition(":")
        if not is_function(reference):
            raise InputError("function.malformed", f"{reference!r} names no function, expected {_EXAMPLE}")
        home = str(expanded(home)) if home.endswith(".py") else module_now(home)
        if home.endswith(".py") and not Path(home).is_file():
            raise InputError(
                "function.no_file", f"{reference}: no file {home}; give the path of the file that has {name}()"
            )
        return cls(home, name)

    @property
    def is_file(self) -> bool:
        return self.home.endswith(".py")

    def __str__(self) -> str:
        return f"{self.home}:{self.name}"

    def absolute(self) -> "UserFunction":
        """Return the same with the path of its file made absolute, for processes with another current folder."""
        return UserFunction(str(Path(self.home).resolve()), self.name) if self.is_file else self

    def file(self) -> Path:
        """Return the file that holds it. Raises InputError if there is none."""
        if self.is_file:
            return Path(self.home)
        try:
            spec = importlib.util.find_spec(self.home)
        except (ImportError, AttributeError, ValueError) as error:
            raise InputError(
                "function.not_importable", f"{self}: {self.home} cannot be imported ({error}); {_way_out(self.home)}"
            ) from None
        if spec is None or spec.origin is None:
            raise InputError("function.no_module", f"{self}: there is no module {self.home}; {_way_out(self.home)}")
        return Path(spec.origin)

    def sha256(self) -> str:
        """Return the SHA-256 of its file: what a record keeps of it."""
        return sha256(self.file())

    def load(self) -> Callable[..., Any]:
        """Import it. Raises InputError if it does not exist, or its file raises as it is imported."""
        file = self.file()  # says what is missing
        restore_removed_names()  # the file may import MinkowskiEngine
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "The MinkowskiEngine was compiled with CPU_ONLY")  # as it always says
                module = _from_file(file.resolve()) if self.is_file else importlib.import_module(self.home)
        except CODE_FAILURES as error:  # whatever the user's file raises: it is told in a line
            what = " ".join(str(error).split())
            raise InputError(
                "function.module_raises",
                f"{self}: {file} raises {type(error).__name__} as it is imported ({what}){self.neighbour(error)}",
            ) from error
        found: object = getattr(module, self.name, None)
        if not callable(found):
            there = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
            has = f"it has {', '.join(sorted(there)[:8])}" if there else "it has none"
            raise InputError("function.missing", f"{self}: {file} has no function {self.name!r}; {has}", name=self.name)
        return found

    def neighbour(self, error: BaseException) -> str:
        """Return how to import a file that lies next to this one; "" if that is not what the error is about."""
        if not self.is_file or not isinstance(error, ImportError):
            return ""
        folder = Path(self.home).resolve().parent
        if "relative import" in str(error):  # of a package that nobody imported
            parts = [folder.name, Path(self.home).stem]
            while (folder / "__init__.py").is_file() and (folder.parent / "__init__.py").is_file():
                folder = folder.parent
                parts.insert(0, folder.name)
            return f"; give it as {'.'.join(parts)}:{self.name}, and put {folder.parent} on PYTHONPATH"
        name = (error.name or "").partition(".")[0]
        if name and ((folder / f"{name}.py").is_file() or (folder / name).is_dir()):
            return f"; {name} lies next to it: put {folder} on PYTHONPATH"
        return ""


def _from_file(path: Path) -> ModuleType:
    """Import a file under a name of its own, once as long as it and the neighbours that it imports stay as they are.

    Another file of the same name is another module, and so is one that was written again, as a cell of a notebook does.
    """
    root, package = _package_of(path)
    name = f"{_USER}{path.stem}_{digest([str(path), sha256(path)])}"
    name = f"{package}.{name}" if package else name
    _forget_neighbours(root)
    if name in sys.modules and all(sys.modules.get(each) is not None for each in vars(sys.modules[name])[_NEIGHBOURS]):
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    with _neighbours_importable(root):
        if package:
            importlib.import_module(package)  # imports within functions look it up
        sys.modules[name] = module  # dataclasses and the like look their module up
        try:
            # Not by the loader: its bytecode counts as fresh for a file of the same size, written within the second.
            exec(compile(path.read_bytes(), str(path), "exec"), vars(module))
        except BaseException:
            del sys.modules[name]
            raise
    vars(module)[_NEIGHBOURS] = tuple(each for each, _ in _neighbours(root))
    return module


def _package_of(path: Path) -> tuple[Path, str]:
    """Return the folder that a file's imports start from, and the package that it is in: "" without relative imports.

    Raises SyntaxError.
    """
    tree = ast.parse(path.read_bytes(), str(path))
    level = max((node.level for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)), default=0)
    folder, parts = path.parent, list[str]()
    while folder.name.isidentifier() and (len(parts) < level or (parts and (folder / "__init__.py").is_file())):
        parts.insert(0, folder.name)
        folder = folder.parent
    return folder, ".".join(parts)


@contextmanager
def _neighbours_importable(root: Path) -> Iterator[None]:
    """Have Python look for modules in a folder first, as it does for a script in it, and note which it finds there."""
    before, bytecode = set(sys.modules), sys.dont_write_bytecode
    sys.path.insert(0, str(root))
    sys.dont_write_bytecode = True  # see _from_file
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(root))
        sys.dont_write_bytecode = bytecode
        for name in set(sys.modules) - before:
            file = _file_of(sys.modules[name])
            if file.is_relative_to(root) and "site-packages" not in file.parts and _USER not in name:
                vars(sys.modules[name])[_ROOT] = (root, _content(file))


def _file_of(module: ModuleType) -> Path:
    """Return a module's file, or the folder of a package without one; "/" for what has neither."""
    return Path(getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), "/"))


def _content(file: Path) -> str:
    return sha256(file) if file.is_file() else ""


def _neighbours(root: Path | None = None) -> list[tuple[str, ModuleType]]:
    """Return the neighbours that are imported, of one folder if it is given."""
    modules = [(name, module) for name, module in list(sys.modules.items()) if _ROOT in getattr(module, "__dict__", ())]
    return [(name, module) for name, module in modules if root in (None, vars(module)[_ROOT][0])]


def _forget_neighbours(root: Path) -> None:
    """Forget neighbours of other folders that have a name of this one's, and this one's if one was written anew."""
    here = _neighbours(root)
    changed = any(vars(module)[_ROOT][1] != _content(_file_of(module)) for _, module in here)
    for name, module in _neighbours():
        top = name.partition(".")[0]
        others = vars(module)[_ROOT][0] != root and ((root / top).is_dir() or (root / f"{top}.py").is_file())
        if others or (changed and (name, module) in here):
            del sys.modules[name]


def _way_out(home: str) -> str:
    return f"install the package that has it, put its folder on PYTHONPATH, or give its file ({home}.py:function)"
