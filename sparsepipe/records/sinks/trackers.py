"""Trackers of experiments: what a run's rows become in each. Each needs the extra of its name.

A tracker needs each row of a run's metrics as it comes, and a word at the end.
"""

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ...errors import InputError, missing_extra
from ..record_files import CLOCK, read_fields

if TYPE_CHECKING:
    from ..run_record import RunRecord

Row = Mapping[str, Any]  # of a run's metrics


class Sink(Protocol):
    """Forward the rows of a run's metrics to a tracker. `Job.wait(on_row=sink)` passes the rows.

    The "event" of a row is "start", "step" (one minibatch), "epoch", "summary", or another one, which may be ignored. A
    sink is any class with these two methods.

    Example:
        >>> from sparsepipe.records.sinks import scalars
        >>> class Printed:
        ...     def __call__(self, row):
        ...         if (found := scalars(row)) and row["event"] == "epoch":
        ...             print(found[0], round(found[1]["epoch/train/loss"], 1))
        ...
        ...     def close(self):
        ...         pass
        >>> sink = Printed()
        >>> for row in sp.RunRecord.load(run_dir).metrics():
        ...     sink(row)
        4 1.1
        8 1.1

    See also:
        guides/trackers, `records.sinks.scalars`
    """

    def __call__(self, row: Row) -> None:
        """Take one row."""
        ...

    def close(self) -> None:
        """Write the remaining rows. Called at the end of the run, or when it is no longer followed."""
        ...


def is_address(where: object) -> bool:
    """Return whether a sink is given the address of a server, such as "http://127.0.0.1:4318", and not a folder."""
    return "://" in str(where)


def described(row: Row, record: "RunRecord") -> Row:
    """Return a row of a run's metrics as trackers need it.

    The row "start" also gets the run's name ("run"), its directory ("run_dir"), its settings ("settings": numbers,
    truth values and texts by name) and the time at which "seconds" was 0 ("began", in seconds since 1970).

    Args:
        row: A row of the run's metrics.
        record: The run's record.

    Returns:
        The row; other rows are unchanged.

    Example:
        >>> from sparsepipe.records.sinks import described
        >>> record = sp.RunRecord.load(run_dir)
        >>> start = described({"event": "start"}, record)
        >>> start["run"], start["settings"]["devices"]
        ('one', 2)

    See also:
        guides/trackers, `RunRecord`
    """
    if row.get("event") != "start":
        return row
    plan = record.plan
    settings = record.config | {"planner": plan.planner, "schedule": plan.schedule, "devices": len(plan.ranks)}
    simple = {
        name: value if isinstance(value, int | float | str) else json.dumps(value)
        for name, value in settings.items()
        if value not in (None, "")
    }
    clock = record.folder / "logs" / "clock.json"  # records of version 0.1 have none
    began = read_fields(clock, CLOCK, what="run's clock")["started"] if clock.exists() else None
    return {**row, "run": record.name, "run_dir": str(record.folder), "settings": simple, "began": began}


def scalars(row: Row) -> tuple[int, dict[str, float]] | None:
    """Extract the numbers of a row of metrics.

    Names begin with the event, and levels are separated by slashes: "step/loss", "epoch/validation/accuracy", "stage
    0/busy_fraction". Names of pipeline replicas contain their number: "step/loss of pipeline 1".

    Args:
        row: A row of a run's metrics.

    Returns:
        (Number of minibatches done, name → number). None for a row without numbers.

    Example:
        >>> from sparsepipe.records.sinks import scalars
        >>> scalars({"event": "step", "minibatch": 7, "loss": 0.5})
        (8, {'step/loss': 0.5})

    See also:
        guides/trackers
    """
    event, done = row.get("event"), row.get("minibatches")
    if event == "step" and isinstance(row.get("minibatch"), int):
        done = row["minibatch"] + 1
    if event not in ("step", "epoch") or not isinstance(done, int):
        return None
    behind = f" of pipeline {row['pipeline']}" if isinstance(row.get("pipeline"), int) else ""
    left = {key: value for key, value in row.items() if key not in _COUNTS}
    numbers = {f"{name}{behind}": value for name, value in _numbers(left, str(event))}
    for stage in row.get("stages") or () if event == "epoch" else ():
        if isinstance(stage, Mapping) and "stage" in stage:
            stage_numbers = {key: value for key, value in stage.items() if key not in ("stage", "ranks")}
            numbers |= {f"{name}{behind}": value for name, value in _numbers(stage_numbers, f"stage {stage['stage']}")}
    return (done, numbers) if numbers else None


_COUNTS = ("event", "seconds", "epoch", "minibatch", "minibatches", "pipeline", "stages")


def _numbers(value: Row, before: str) -> Iterator[tuple[str, float]]:
    for key, each in value.items():
        if isinstance(each, Mapping):
            yield from _numbers(each, f"{before}/{key}")
        elif isinstance(each, int | float) and not isinstance(each, bool):
            yield f"{before}/{key}", float(each)


PROJECT = "sparsepipe"  # of trackers that sort runs by project or experiment
_ROWS_SECONDS = 2.0  # between two writes to MLflow's database, whose transactions take some 20 ms each
_MOST_METRICS = 1000  # in one request to MLflow
_COLLECTOR_SECONDS = 5.0  # for one request to a collector
_Foreign = Any  # of a library that is not everywhere, and so are its types
_COLLECTOR = "http://127.0.0.1:4318"  # OTLP's own port for HTTP


@contextmanager
def _of_an_extra() -> Iterator[None]:
    """Raise InputError, which names the extra, if a module of one is not installed."""
    try:
        yield
    except ImportError as error:
        raise missing_extra(error) or error from None


def _made(folder: Path | str) -> Path:
    """Return the folder, which is made if it is missing. Raises InputError if it cannot be."""
    if is_address(folder):
        raise InputError("sink.no_folder", f"{folder}: is an address, expected a folder")
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        text = f"{folder}: cannot be written to ({error.strerror or error}); choose another folder"
        raise InputError("out.unwritable", text) from None
    return Path(folder).absolute()


def _start_time(row: Row) -> float:
    """Return when the run of a row began, in seconds since 1970: as the row says, else by its arrival."""
    return row.get("began") or time.time() - float(row.get("seconds", 0.0))


class TensorBoard:
    """Write the metrics of a run as scalars in `folder`. `tensorboard --logdir FOLDER` shows them during the run."""

    def __init__(self, folder: Path | str) -> None:
        """Raises InputError if tensorboard is not installed, or the folder cannot be written to."""
        with _of_an_extra():
            from torch.utils.tensorboard import SummaryWriter
        self._writer = SummaryWriter(str(folder if is_address(folder) else _made(folder)))

    def __call__(self, row: Row) -> None:
        """Write the numbers of a row at the minibatch that it is of."""
        if values := scalars(row):
            minibatch, numbers = values
            for name, number in numbers.items():
                self._writer.add_scalar(name, number, minibatch)
            if row.get("event") == "epoch":
                self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases:
    """Log the metrics of a run to Weights & Biases, with its files in `folder`.

    The environment variables of wandb apply. WANDB_MODE=offline sends nothing; `wandb sync` sends the files later.
    WANDB_PROJECT names the project (default: sparsepipe).
    """

    def __init__(self, folder: Path | str) -> None:
        """Raises InputError if wandb is not installed, or the folder cannot be written to."""
        with _of_an_extra():
            import wandb
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            dir=_made(folder),
            reinit="create_new",  # a notebook may follow several runs
            settings=wandb.Settings(console="off"),
        )
        # Pipeline replicas report minibatches out of order, which wandb's own steps may not be.
        self._run.define_metric("*", step_metric="minibatch")
        self._ended = False

    def __call__(self, row: Row) -> None:
        """Log the numbers of a row over "minibatch"; the row "start" sets the run's name and settings."""
        self._ended |= row.get("event") == "summary"
        if "run" in row and row.get("event") == "start":
            self._run.name = row["run"]
            self._run.config.update(row["settings"], allow_val_change=True)
        if values := scalars(row):
            self._run.log({"minibatch": values[0], **values[1]})

    def close(self) -> None:
        """Mark the run as failed if it has no summary."""
        self._run.finish(exit_code=0 if self._ended else 1)


class MLflow:
    """Log the metrics of a run to MLflow: to the SQLite file mlflow.db in a folder, or to a tracking server.

    `mlflow ui --backend-store-uri sqlite:///FOLDER/mlflow.db` shows them. MLFLOW_EXPERIMENT_NAME names the experiment
    (default: sparsepipe).
    """

    def __init__(self, where: Path | str) -> None:
        """`where`: folder, or address such as "http://127.0.0.1:5000". Raises InputError if mlflow is not installed."""
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # a run's folder is nobody else's matter
        with _of_an_extra():
            from mlflow.entities import Metric, Param
            from mlflow.tracking import MlflowClient

            self._metric, self._param = Metric, Param
            folder = None if is_address(where) else _made(where)
            self._client = MlflowClient(tracking_uri=str(where) if folder is None else f"sqlite:///{folder}/mlflow.db")
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
            if experiment := self._client.get_experiment_by_name(name):
                experiment_id = experiment.experiment_id
            else:
                artifacts = None if folder is None else (folder / "artifacts").as_uri()
                experiment_id = self._client.create_experiment(name, artifact_location=artifacts)
        self._id = self._client.create_run(experiment_id).info.run_id
        self._waiting: list[_Foreign] = []
        self._written, self._began = time.monotonic(), 0.0
        self._named = self._ended = False

    def __call__(self, row: Row) -> None:
        """Log the numbers of a row at its minibatch; the row "start" sets the run's name and parameters."""
        self._ended |= row.get("event") == "summary"
        self._began = self._began or _start_time(row)
        if "run" in row and row.get("event") == "start" and not self._named:  # a parameter is logged once
            self._named = True
            self._client.update_run(self._id, name=row["run"])
            params = [self._param(name, str(value)) for name, value in row["settings"].items()]
            self._client.log_batch(self._id, params=params)
        if values := scalars(row):
            milliseconds = int(1000 * (self._began + float(row.get("seconds", 0.0))))
            minibatch, numbers = values
            self._waiting += [self._metric(name, number, milliseconds, minibatch) for name, number in numbers.items()]
        if row.get("event") == "epoch" or time.monotonic() - self._written > _ROWS_SECONDS:
            self._write()

    def close(self) -> None:
        """Write the remaining rows, and mark the run as failed if it has no summary."""
        self._write()
        self._client.set_terminated(self._id, "FINISHED" if self._ended else "FAILED")

    def _write(self) -> None:
        waiting, self._waiting = self._waiting, []
        for start in range(0, len(waiting), _MOST_METRICS):
            self._client.log_batch(self._id, metrics=waiting[start : start + _MOST_METRICS])
        self._written = time.monotonic()


class Trackio:
    """Log the metrics of a run to Trackio's files in `folder`. `TRACKIO_DIR=FOLDER trackio show` shows them."""

    def __init__(self, folder: Path | str) -> None:
        """Raises InputError if trackio is not installed, or the folder cannot be written to."""
        path = _made(folder)
        os.environ["TRACKIO_DIR"] = str(path)  # read when trackio is imported, which is once in a process
        with _of_an_extra():
            import trackio
        if path != trackio.utils.TRACKIO_DIR:
            raise InputError(
                "sink.other_folder",
                f"{path}: trackio already writes to {trackio.utils.TRACKIO_DIR} in this process; name that, or restart",
            )
        self._trackio = trackio
        self._run: _Foreign = None

    def __call__(self, row: Row) -> None:
        """Log the numbers of a row at its minibatch; the first row begins the run, by its name and settings."""
        if self._run is None:
            with redirect_stdout(sys.stderr):  # stdout has the answer of --json
                self._run = self._trackio.init(
                    PROJECT,
                    name=row.get("run"),
                    config=row.get("settings"),
                    embed=False,
                    auto_log_gpu=False,
                    auto_log_cpu=False,  # this process follows the run; the work is done in others
                )
        if values := scalars(row):
            self._run.log(values[1], step=values[0])

    def close(self) -> None:
        if self._run is not None:
            is_current = self._trackio.context_vars.current_run.get() is self._run
            with redirect_stdout(sys.stderr):
                (self._trackio if is_current else self._run).finish()  # trackio finishes its current run again at exit


class OpenTelemetry:
    """Send the metrics of a run as spans to an OpenTelemetry collector, by OTLP over HTTP.

    The span of the run contains epochs, and these contain minibatches; numbers are attributes of their span. The span
    of a minibatch begins at the end of the pipeline's previous minibatch. Environment variables such as
    OTEL_EXPORTER_OTLP_HEADERS apply.
    """

    def __init__(self, address: Path | str) -> None:
        """`address`: of a collector, such as "http://127.0.0.1:4318". Raises InputError if none answers there."""
        if not str(address).startswith(("http://", "https://")):
            raise InputError(
                "sink.no_address", f"{address}: expected the address of an OTLP/HTTP collector, such as {_COLLECTOR}"
            )
        with _of_an_extra():
            from opentelemetry import trace
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult

        url = f"{str(address).rstrip('/')}/v1/traces"
        exporter = OTLPSpanExporter(endpoint=url, timeout=_COLLECTOR_SECONDS)
        if exporter.export([]) is not SpanExportResult.SUCCESS:
            raise InputError("sink.unreachable", f"{url}: takes no spans; start a collector there, or name another")
        self._provider = TracerProvider(resource=Resource.create({"service.name": PROJECT}), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer, self._trace = self._provider.get_tracer(PROJECT), trace
        self._run: _Foreign = None
        self._epochs: dict[int, _Foreign] = {}  # number → span that is open
        self._steps: dict[object, int] = {}  # pipeline → end of its last minibatch, in nanoseconds since 1970
        self._began, self._last = 0.0, 0
        self._ended = False

    def __call__(self, row: Row) -> None:
        """Send the span that ends with a row: that of a minibatch or of an epoch."""
        if not isinstance(row.get("seconds"), int | float):
            return
        event, epoch = row.get("event"), row.get("epoch", 0)
        self._began = self._began or _start_time(row)
        now = int(1e9 * (self._began + row["seconds"]))
        if self._run is None:
            self._last = now
            self._run = self._span(row.get("run", "run"), None, int(1e9 * self._began), row.get("settings", {}))
        self._ended |= event == "summary"
        if event in ("step", "epoch") and (values := scalars(row)):
            minibatch, numbers = values
            if epoch not in self._epochs:
                self._epochs[epoch] = self._span(f"epoch {epoch + 1}", self._run, self._last, {})
            if event == "step":
                pipeline = row.get("pipeline")
                begun = min(max(self._steps.get(pipeline, 0), self._epochs[epoch].start_time), now)
                self._steps[pipeline] = now
                self._span(f"minibatch {minibatch}", self._epochs[epoch], begun, numbers).end(now)
            else:
                self._epochs[epoch].set_attributes(numbers)
                self._epochs.pop(epoch).end(now)
        self._last = max(self._last, now)

    def close(self) -> None:
        """Send the remaining spans. The run's span reports an error if the run has no summary."""
        for span in self._epochs.values():
            span.end(self._last)
        if self._run is not None:
            code = self._trace.StatusCode.OK if self._ended else self._trace.StatusCode.ERROR
            self._run.set_status(code, None if self._ended else "the run has no summary")
            self._run.end(self._last)
        self._provider.shutdown()

    def _span(self, name: str, parent: _Foreign, start: int, attributes: Row) -> _Foreign:
        context = self._trace.set_span_in_context(parent or self._trace.INVALID_SPAN)
        return self._tracer.start_span(name, context, attributes=dict(attributes), start_time=start)
