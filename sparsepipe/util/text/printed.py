"""What `print` shows of a value."""

from importlib import import_module


class Printed:
    """A value that `print` shows as the views do. They stand above it, and are imported when it is first printed."""

    __slots__ = ()

    def __str__(self) -> str:
        return str(import_module("sparsepipe.views").text(self, all_in="to_json() has all"))
