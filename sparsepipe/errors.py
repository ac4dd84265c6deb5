"""Exceptions for users: one line that says what was given, what was expected, and what to do.

    raise InputError("plan.rank_unknown", f"rank {rank} is not one of {count} devices", rank=rank)

The code, `noun.fault`, stays when the wording changes: programs and tests ask for it, and for the fields. It names one
fault, however many places meet it. All codes with their sentences are in tests/golden/errors.txt.
"""

from .display.markup import one_line

# The modules of each extra in pyproject.toml.
_EXTRAS = {
    "clouds": ("h5py", "laspy", "lzf", "mapbox_earcut"),
    "texts": ("sacrebleu", "tokenizers"),
    "traces": ("pyarrow",),
    "figures": ("choreographer", "kaleido", "plotly", "pygraphviz"),
    "images": ("PIL",),
    "lab": ("anywidget", "ipykernel", "ipywidgets", "jupyter_client", "mistune", "nbformat", "papermill", "traitlets"),
    "cluster": ("ray",),
    "tensorboard": ("tensorboard",),
}

CODE_FAILURES = (Exception, SystemExit)  # what users' code may raise: sys.exit would end this process without a word


class CodedError(Exception):
    """An error that has a code, a sentence, and the values that a program may want of it."""

    def __init__(self, code: str, sentence: str, /, **fields: object) -> None:
        super().__init__(code, sentence)
        self.code, self.fields = code, fields

    def __str__(self) -> str:
        """The sentence as one line, whatever the names in it are: they may come from files of others."""
        return one_line(self.args[1])

    def _render_traceback_(self) -> list[str]:
        """What IPython shows in a notebook in place of a stack trace: the message in one line."""
        return [f"{type(self).__name__}: {self}"]


class InputError(CodedError, ValueError):
    """Bad input, which the user can mend. The command line prints its one line and exits with 2."""


class DamagedRecord(InputError):
    """A damaged file in a run's record. Code that looks at several runs leaves this one out."""


class RunFailed(CodedError, RuntimeError):
    """A launched run ended badly. The command line prints its one line and exits with 1; the record stays readable."""


def missing_extra(error: ImportError) -> InputError | None:
    """Return the error that names the extra which has the missing module; None for a module of no extra."""
    module = (error.name or "").partition(".")[0]
    for extra, modules in _EXTRAS.items():
        if module in modules:
            return InputError(
                "extra.not_installed", f"{module} is not installed: pip install 'sparsepipe[{extra}]'", extra=extra
            )
    return None
