"""What goes wrong through no fault of the code: one line that says what was given, what was expected, what to do."""

from .display.markup import one_line


class _OneLine(Exception):
    def __str__(self) -> str:
        """The message as one line, whatever the names in it are: they may come from files of others."""
        return one_line(super().__str__())

    def _render_traceback_(self) -> list[str]:
        """Tell IPython what a notebook shows in place of a stack trace."""
        return [f"{type(self).__name__}: {self}"]


class InputError(_OneLine, ValueError):
    """A user can cause and mend this. The command line prints its one line and exits with 2."""


class DamagedRecord(InputError):
    """A file of a run's record that is not what the run wrote. Whoever looks at several runs shows the others."""


class RunFailed(_OneLine, RuntimeError):
    """A launched run ended badly. The command line prints its one line and exits with 1; the record stays readable."""
