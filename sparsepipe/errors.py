"""Exceptions for users: one line that says what was given, what was expected, and what to do."""

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


class _OneLine(Exception):
    def __str__(self) -> str:
        """The message as one line, whatever the names in it are: they may come from files of others."""
        return one_line(super().__str__())

    def _render_traceback_(self) -> list[str]:
        """What IPython shows in a notebook in place of a stack trace: the message in one line."""
        return [f"{type(self).__name__}: {self}"]


class InputError(_OneLine, ValueError):
    """Bad input, which the user can mend. The command line prints its one line and exits with 2."""


class DamagedRecord(InputError):
    """A damaged file in a run's record. Code that looks at several runs leaves this one out."""


class RunFailed(_OneLine, RuntimeError):
    """A launched run ended badly. The command line prints its one line and exits with 1; the record stays readable."""


def missing_extra(error: ImportError) -> InputError | None:
    """Return the error that names the extra which has the missing module; None for a module of no extra."""
    module = (error.name or "").partition(".")[0]
    for extra, modules in _EXTRAS.items():
        if module in modules:
            return InputError(f"{module} is not installed: pip install 'sparsepipe[{extra}]'")
    return None
