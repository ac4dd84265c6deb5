"""Names of a package that are imported when they are first asked for (PEP 562)."""

from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import Any

from ..errors import missing_extra


def lazy_names(
    namespace: dict[str, Any],
    homes: Mapping[str, str],
    *,
    folders: Collection[str] = (),
    unlisted: Collection[str] = (),
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and the `__dir__` of a package, whose globals() are `namespace`.

    `homes`: name -> file or folder of the package that gives it; `folders`: folders that are names themselves;
    `unlisted`: others, which `dir` leaves out. All else in `__all__` the package has imported already.
    """
    package, known = namespace["__name__"], {*folders, *unlisted}

    def find(name: str) -> Any:
        if name not in known and name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            module = import_module(f".{homes.get(name, name)}", package)
        except ImportError as error:
            raise missing_extra(error) or error from None
        namespace[name] = value = module if name in known else getattr(module, name)
        return value

    def names() -> list[str]:
        of_every_module = {name for name in namespace if name.startswith("__")}
        return sorted({*of_every_module, *namespace["__all__"], *folders})

    return find, names
