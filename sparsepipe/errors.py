"""What goes wrong through no fault of the code: one line that says what was given, what was expected, what to do."""


class _OneLine(Exception):
    def _render_traceback_(self) -> list[str]:
        """Tell IPython what a notebook shows in place of a stack trace."""
        return [f"{type(self).__name__}: {self}"]


class InputError(_OneLine, ValueError):
    """A user can cause and mend this. The command line prints its one line and exits with 2."""


class RunFailed(_OneLine, RuntimeError):
    """A launched run ended badly. The command line prints its one line and exits with 1; the record stays readable."""
