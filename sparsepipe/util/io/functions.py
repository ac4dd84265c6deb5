"""Functions of the user's own, named in text: a network, a data set, a loss. Imported again by every process.

    package.module:function     found as Python finds modules
    path/file.py:function       a file, wherever it lies; relative to the current folder. It may import its neighbours
                                and its package: their folder is on Python's path while it is imported

Nothing is pickled: what travels in a record is the name, with the SHA-256 of the file and of the neighbours that its
import statements name. Which these are is read from the statements, so that every process and host finds the same.
"""

import ast
import hashlib
import importlib
import importlib.util
import sys
import sysconfig
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    ModuleSpec,
    SourceFileLoader,
)
from pathlib import Path
from types import ModuleType
from typing import Any

from ...errors import CODE_FAILURES, InputError
from ..derived import digest
from ..host.imports import restore_removed_names
from ..lazy_names import module_now
from .files import expanded, sha256
from .spconv_repairs import repair_spconv

_USER = "sparsepipe_user_"  # what names of users' files begin with, as modules
_NEIGHBOURS = "__sparsepipe_neighbours__"  # in a user's file: names of the neighbours that it imported
_ROOT = "__sparsepipe_root__"  # in a neighbour: the folder that it was imported from, and its file's SHA-256
_LOADERS = ((ExtensionFileLoader, EXTENSION_SUFFIXES), (SourceFileLoader, SOURCE_SUFFIXES))
_OUR_PACKAGE = Path(__file__).resolve().parents[2]
_MOST_FILES = 2_000  # that a function is read of
_MOST_BYTES = 64_000_000  # of code that a host is sent
# Settings that may name a function.
_NAMING = ("model", "data", "loss", "collate", "sampler", "optimizer", "learning_rate_schedule", "on_epoch")
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
    named = {name: settings.get(name) for name in _NAMING}
    named |= {f"metrics.{number}": value for number, value in enumerate(settings.get("metrics") or ())}
    return {name: UserFunction.parse(value) for name, value in named.items() if value and is_function(value)}


def with_functions(settings: Mapping[str, Any], references: Mapping[str, str]) -> dict[str, Any]:
    """Return those settings that name functions by other `references`, whose keys are as `functions_of` has them."""
    changed: dict[str, Any] = {}
    for key, reference in references.items():
        name, _, number = key.partition(".")
        if number:
            several = changed.get(name, settings[name])
            changed[name] = (*several[: int(number)], reference, *several[int(number) + 1 :])
        else:
            changed[name] = reference
    return changed


def reference_to(function: Callable[..., object], *, setting: str) -> str:
    """Return how settings name a function of a file: path/file.py:function. Raises InputError for one of no file."""
    code = getattr(function, "__code__", None)
    file, name = getattr(code, "co_filename", ""), getattr(function, "__qualname__", "")
    if not file.endswith(".py") or not name.isidentifier() or not Path(file).is_file():
        raise InputError(
            "function.of_no_file",
            f"{{{setting}}} is {name or function!r}, which other processes cannot import; define it at the top level "
            "of a file (in a notebook by %%writefile), then import it",
            setting=setting,
        )
    return f"{Path(file).resolve()}:{name}"


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
            raise InputError(
                "function.malformed", f"{reference!r} is not a function name, expected one such as {_EXAMPLE}"
            )
        home = str(expanded(home)) if home.endswith(".py") else module_now(home)
        if home.endswith(".py") and not Path(home).is_file():
            raise InputError(
                "function.no_file", f"{reference}: no such file {home}; give the path of the file that defines {name}()"
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

    def files(self) -> dict[str, Path]:
        """Return its file, first, and the neighbours that import statements name, by their paths in the root folder.

        Statements within functions count, and those of neighbours. Neighbours are files under the folder that imports
        start from; installed packages are none. Raises InputError if its file does not exist, or has too many.
        """
        file = self.file().absolute()
        if self.is_file:
            file = file.resolve()
            try:
                root, package = _package_of(file)
            except (SyntaxError, ValueError):  # told as it is imported
                return {file.name: file}
        else:
            package = self.home if file.stem == "__init__" else self.home.rpartition(".")[0]
            root = file.parents[package.count(".") + 1 if package else 0]
        files = {file.relative_to(root).as_posix(): file}
        if _is_installed(file):
            return files
        for path in _imported(root, file, package):
            files[path.relative_to(root).as_posix()] = path
            if len(files) > _MOST_FILES:
                raise InputError(
                    "function.too_many_files",
                    f"{self}: imports more than {_MOST_FILES:,} files of {root}; install them as a package",
                    root=str(root),
                )
        return files

    def sha256(self) -> str:
        """Return a SHA-256 of its files: what a record keeps of it. Without neighbours it is that of its file."""
        hashes = {name: sha256(path) for name, path in self.files().items()}
        if len(hashes) == 1:
            return next(iter(hashes.values()))
        return hashlib.sha256("".join(f"{name}\0{hashes[name]}\n" for name in sorted(hashes)).encode()).hexdigest()

    def files_for_hosts(self) -> dict[str, Path]:
        """Return its files, to be laid out equally on other hosts; none for a module, which must be installed there.

        Raises InputError if they cannot all be sent.
        """
        if not self.is_file:
            return {}
        files = self.files()
        (inner, file), *neighbours = files.items()
        root = file.parents[inner.count("/")]
        for path in dict(neighbours).values():
            if not path.resolve().is_relative_to(root):
                raise InputError(
                    "function.outside",
                    f"{self}: {path} is a link to {path.resolve()} outside {root}, so it cannot be sent to hosts; "
                    "copy the file into that folder",
                    path=str(path),
                )
        size = sum(path.stat().st_size for path in files.values())
        if size > _MOST_BYTES:
            raise InputError(
                "function.too_large",
                f"{self}: its {len(files)} files have {size / 1e6:.1f} MB, more than the limit of "
                f"{_MOST_BYTES / 1e6:.0f} MB; store large values in the data set instead",
                size=size,
            )
        return files

    def load(self) -> Callable[..., Any]:
        """Import it. Raises InputError if it does not exist, or its file raises as it is imported."""
        restore_removed_names()  # the file, or the package that it is in, may import MinkowskiEngine
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The MinkowskiEngine was compiled with CPU_ONLY")  # as it always says
            warnings.filterwarnings("ignore", ".*custom_(fwd|bwd)", FutureWarning)  # as spconv is imported
            file = self.file()  # says what is missing
            try:
                module = _from_file(file.resolve()) if self.is_file else importlib.import_module(self.home)
            except CODE_FAILURES as error:  # whatever the user's file raises is reported in a line
                what = " ".join(str(error).split())
                raise InputError(
                    "function.module_raises",
                    f"{self}: {file} raises {type(error).__name__} during import ({what}){self.neighbour(error)}",
                ) from error
        repair_spconv()
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


def _imported(root: Path, file: Path, package: str) -> Iterator[Path]:
    """Yield the files under a folder that a file's import statements lead to, each once, in a fixed order."""
    specs: dict[str, ModuleSpec | None] = {}

    def spec_of(name: str) -> ModuleSpec | None:
        if name not in specs:
            parent, _, _ = name.rpartition(".")
            above = spec_of(parent) if parent else None
            folders = [str(root)] if not parent else (above and above.submodule_search_locations) or []
            spec = FileFinder(folders[0], *_LOADERS).find_spec(name) if folders else None
            specs[name] = None if spec and spec.origin and _is_installed(Path(spec.origin)) else spec
        return specs[name]

    todo, known = [(file, package)], {file}
    while todo:
        path, package = todo.pop()
        for name in (package, *_names_imported(path, package)):
            parts = name.split(".")
            for end in range(1, len(parts) + 1):  # a package's __init__.py is imported before its modules
                spec = spec_of(".".join(parts[:end])) if name else None
                if spec is None:
                    break
                origin = Path(spec.origin) if spec.origin else file  # none: a folder without __init__.py
                if origin not in known:
                    known.add(origin)
                    todo.append((origin, spec.parent or ""))
                    yield origin


def _is_installed(file: Path) -> bool:
    """Return whether a file is not the user's, but of this package, of Python, or of another that was installed."""
    if any(name in file.parts for name in ("site-packages", "dist-packages")):
        return True
    return any(map(file.resolve().is_relative_to, (_OUR_PACKAGE, Path(sysconfig.get_path("stdlib")).resolve())))


def _names_imported(path: Path, package: str) -> Iterator[str]:
    """Yield the dotted names of modules that a file's import statements may lead to."""
    try:
        tree = ast.parse(path.read_bytes(), str(path)) if path.suffix in SOURCE_SUFFIXES else ast.Module([], [])
    except (SyntaxError, ValueError):  # told as it is imported
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            name = "." * node.level + (node.module or "")
            try:
                base = importlib.util.resolve_name(name, package)
            except ImportError:  # it leads out of the package, which is told as it is imported
                continue
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)  # a module, or a name in one


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
