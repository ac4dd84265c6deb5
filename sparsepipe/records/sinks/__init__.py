"""Sinks take metrics of runs to trackers: a class each behind the protocol in trackers.py, a row in SINKS."""

from collections.abc import Callable, Mapping
from pathlib import Path

from ...errors import CODE_FAILURES, InputError
from ...util.io.fields import complaint
from ...util.io.files import expanded
from ...util.io.functions import UserFunction, is_function
from .trackers import (
    MLflow,
    OpenTelemetry,
    Sink,
    TensorBoard,
    Trackio,
    WeightsAndBiases,
    described,
    is_address,
    scalars,
)

SINKS: Mapping[str, Callable[[Path | str], Sink]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "mlflow": MLflow,
    "trackio": Trackio,
    "otlp": OpenTelemetry,
}

__all__ = [
    "SINKS",
    "MLflow",
    "OpenTelemetry",
    "Sink",
    "TensorBoard",
    "Trackio",
    "WeightsAndBiases",
    "described",
    "open_sink",
    "scalars",
]


def open_sink(kind: str, folder: Path | str) -> Sink:
    """Return a sink, which writes a run's rows to a tracker.

    Args:
        kind: One of SINKS, or a function "package.module:function" or "path/file.py:function", which is called with
            the folder and returns a `Sink`.
        folder: Its folder, or an address such as "http://127.0.0.1:4318".

    Returns:
        The sink: call it with a row, and close it at the end.

    Raises:
        InputError: Another kind, or it cannot be opened.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     sink = sp.records.sinks.open_sink("tensorboard", folder)
        ...     sink({"event": "start"})
        ...     sink.close()

    See also:
        guides/trackers
    """
    where = folder if is_address(folder) else expanded(folder)
    if kind in SINKS or is_function(kind):
        make = SINKS[kind] if kind in SINKS else UserFunction.parse(kind).load()
        try:
            sink: Sink = make(where)
        except InputError:
            raise
        except CODE_FAILURES as error:  # whatever the user's code, or a tracker's, raises: it is told in a line
            raise InputError(
                "sink.raises",
                f"{kind}: raises {type(error).__name__} when opened ({complaint(error)})",
                kind=type(error).__name__,
            ) from error
        if not callable(sink) or not callable(getattr(sink, "close", None)):
            raise InputError(
                "sink.malformed",
                f"{kind}: did not return a sink, expected a callable that takes rows and has a method close()",
            )
        return sink
    raise InputError(
        "sink.unknown",
        f"unknown log {kind!r}, expected {', '.join(SINKS)}, package.module:function or path/file.py:function",
        kind=kind,
    )
