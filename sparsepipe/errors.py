"""What goes wrong through no fault of the code: one line that says what was given, what was expected, what to do."""


class InputError(ValueError):
    """A user can cause and mend this. The command line prints its one line and exits with 2."""


class RunFailed(RuntimeError):
    """A launched run ended badly. The command line prints its one line and exits with 1; the record stays readable."""
