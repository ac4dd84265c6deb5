"""Exceptions for users: one line that says what was given, what was expected, and what to do.

    raise InputError("plan.rank_unknown", f"rank {rank} is not one of {count} devices", rank=rank)

The code, `noun.fault`, stays when the wording changes: programs and tests ask for it, and for the fields. It names one
fault, however many places meet it. All codes with their sentences are in tests/golden/errors.txt, but for those of a
setting that is not of its kind: these are in util/io/settings.py.
"""

import unicodedata
from collections.abc import Callable, Mapping
from typing import Any

# Codes that move a terminal's cursor or colour it, halves of characters that no file can hold, marks that turn the
# direction in which the rest of a line is read, and whatever ends a line.
_CATEGORIES = ("Cc", "Cs", "Zl", "Zp")
_DIRECTIONS = frozenset("\u200e\u200f\u061c\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
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
    "wandb": ("wandb",),
    "mlflow": ("alembic", "mlflow", "sqlalchemy"),
    "trackio": ("trackio",),
    "otlp": ("opentelemetry",),
}

CODE_FAILURES = (Exception, SystemExit)  # what users' code may raise: sys.exit would end this process without a word


def visible(text: object, *, kept: str = "\n\t") -> str:
    r"""Return text with its control characters, except those `kept`, written as Python escapes: "\x1b", "\u202e"."""
    text = str(text)
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        character if character in kept or not _acts(character) else _escaped(character) for character in text
    )


def one_line(text: object) -> str:
    r"""Return text as one line that a terminal shows as it is: a line's end becomes "\n"."""
    return visible(text, kept="")


def _acts(character: str) -> bool:
    return unicodedata.category(character) in _CATEGORIES or character in _DIRECTIONS


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


class CodedError(Exception):
    """An error that has a code, a sentence, and the values that a program may want of it."""

    def __init__(self, code: str, sentence: str, /, **fields: object) -> None:
        super().__init__(code, sentence)
        self.code = code
        self.fields: dict[str, Any] = fields

    def __str__(self) -> str:
        """The sentence as one line, whatever the names in it are: they may come from files of others."""
        return one_line(self.args[1])

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows in a notebook in place of a stack trace: the message in one line."""
        return [f"{type(self).__name__}: {self}"]


class InputError(CodedError, ValueError):
    """Report bad input that the user can correct. The command line prints one line and exits with code 2.

    Args:
        code: Stable name of the error, such as "plan.rank_unknown".
        sentence: Message: the given value, the expected value, and the remedy.
        setting: Setting that the sentence names in braces, or its name and a suggested value. Python prints it as
            `voxel_size`, the command line as `--voxel-size`.
        fields: Values for programs, by name.

    Example:
        >>> try:
        ...     sp.Link(bandwidth=0)
        ... except sp.InputError as error:
        ...     print(error.code)
        link.bandwidth

    See also:
        guides/troubleshooting, `RunFailed`
    """

    def __init__(
        self, code: str, sentence: str, /, *, setting: str | Mapping[str, object] | None = None, **fields: object
    ) -> None:
        super().__init__(code, sentence, **fields)
        self.settings = {setting: None} if isinstance(setting, str) else dict(setting or {})

    def __str__(self) -> str:
        return self.written(in_python)

    def within(self, before: str = "", after: str = "") -> "InputError":
        """Return this error inside a longer sentence, such as with its place; its settings are kept."""
        return InputError(self.code, f"{before}{self.args[1]}{after}", setting=self.settings, **self.fields)

    def written(self, write: Callable[[str, object], str]) -> str:
        """Return the message as one line. `write` formats each setting's name and value (None: no value)."""
        text = str(self.args[1])
        for name, value in self.settings.items():
            text = text.replace(f"{{{name}}}", write(name, value))
        return one_line(text)


def in_python(name: str, value: object) -> str:
    """Return a setting as Python writes it, with the value to give it where there is one (...: any)."""
    return name if value is None else f"{name}={'…' if value is ... else repr(value)}"


class DamagedRecord(InputError):
    """A damaged file in a run's record. Code that looks at several runs leaves this one out."""


class RunFailed(CodedError, RuntimeError):
    """Report a launched run that failed. The command line prints one line and exits with code 1.

    The run directory can still be read.

    Example:
        >>> try:
        ...     raise sp.RunFailed("run.worker_died", "rank 1 died: exit code 9", rank=1)
        ... except sp.RunFailed as error:
        ...     print(error.code, error.fields)
        run.worker_died {'rank': 1}

    See also:
        guides/troubleshooting, guides/resume_and_recover, `InputError`
    """


def missing_extra(error: ImportError) -> InputError | None:
    """Return the error that names the extra which has the missing module; None for a module of no extra."""
    module = (error.name or "").partition(".")[0]
    for extra, modules in _EXTRAS.items():
        if module in modules:
            return InputError(
                "extra.not_installed", f"{module} is not installed; run pip install 'sparsepipe[{extra}]'", extra=extra
            )
    return None
