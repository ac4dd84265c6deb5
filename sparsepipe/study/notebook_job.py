"""One notebook at a time: execute it with papermill, keep its copy, and know whether it has to run again.

Each has a kernel of its own, which ends with this process however that ends.
"""

import hashlib
import json
import logging
import os
import re
import signal
import subprocess
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import invalidate_caches
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ..data.folder import find
from ..errors import InputError
from ..records import NO_PICTURES, NOTEBOOK, PAPER
from ..util.host.imports import ADDRESSES, HADOOP, left_out, python_environment
from ..util.io.files import expanded, read_json, write_atomic, write_json
from ..util.io.functions import is_function
from ..util.io.quantities import meant
from . import catalogue
from .executed import REPORT, not_drawn

if TYPE_CHECKING:
    from ..views.plots import Paper

_START = 120  # seconds for a kernel to begin, and for a cell's outputs once it has ended: else they would be lost
_END = 20  # seconds that an interrupted kernel has to end what it started


@dataclass(eq=False)
class NotebookKernels:
    """The kernels of one batch, whose notebooks may run side by side. Once `ending`, no further cell begins."""

    at_work: list[subprocess.Popen[bytes]] = field(default_factory=list)
    ending: threading.Event = field(default_factory=threading.Event)

    def execute(
        self,
        source: Path,
        target: Path,
        *,
        parameters: Mapping[str, Any],
        folder: Path,
        environment: Mapping[str, str],
        log: Path,
        on_cell: Callable[[str], None] = lambda text: None,
    ) -> dict[str, Any]:
        """Run the notebook `source` with `parameters` in `folder`, and keep the executed copy as `target`.

        A parameter that this notebook does not have is left out. `environment` is added to the kernel's, `log` takes
        what kernel and papermill complain of, and `on_cell` each cell that begins: "cell 7 of 16, The runs".
        Returns {}, or {"error"} in one line, with the "cell" that failed (from 1, as the notebook stands).
        """
        papermill = _papermill()
        given = {name: parameters[name] for name in catalogue.parameter_names(source) if name in parameters}
        with log.open("wb") as errors:
            try:
                papermill.execute_notebook(
                    source,
                    target,
                    given,
                    cwd=str(folder),
                    kernel_name="python3",
                    progress_bar=False,
                    start_timeout=_START,
                    iopub_timeout=_START,  # this and what follows is handed on to nbclient
                    on_cell_start=_CellCounter(source, on_cell, self.ending),
                    kernel_manager_class=self._manager(python_environment(**environment), errors.fileno()),
                )
            except papermill.PapermillExecutionError as error:
                injected = given and error.cell_index > _first_code_cell_after_parameters(source)
                return {"cell": error.cell_index + (0 if injected else 1), "error": f"{error.ename}: {error.evalue}"}
            except Exception as error:  # a kernel that died or does not begin, a full disk: others may still run
                errors.write(traceback.format_exc().encode())
                return {"error": f"ended before its last cell ({type(error).__name__}: {error})"}
            finally:
                _close_event_loop()
        return {}

    def _manager(self, environment: dict[str, str], log: int) -> type:
        """Return the kernel manager that nbclient is to use: of this interpreter, whatever kernels a user has."""
        from ipykernel.kernelspec import get_kernel_dict
        from jupyter_client.kernelspec import KernelSpec
        from jupyter_client.manager import AsyncKernelManager

        kernels = self

        class Manager(AsyncKernelManager):
            @property
            def kernel_spec(self) -> KernelSpec:
                return KernelSpec(**get_kernel_dict())

            async def _async_launch_kernel(self, kernel_cmd: list[str], **options: Any) -> None:
                options |= {"env": {**options["env"], **environment}, "stdout": log, "stderr": log}
                await super()._async_launch_kernel(kernel_cmd, **options)
                provisioner: Any = self.provisioner  # whose base class declares no process
                kernels.at_work.append(provisioner.process)

        return Manager

    def end(self) -> None:
        """Interrupt the notebooks at work, and wait until their kernels are gone."""
        self.ending.set()
        alive = [process for process in self.at_work if process.poll() is None]
        for process in alive:
            process.send_signal(signal.SIGINT)
        for process in alive:
            try:
                process.wait(_END)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _papermill() -> Any:  # noqa: ANN401 - it has no types
    with warnings.catch_warnings(), left_out(ADDRESSES), left_out(HADOOP):  # no notebook has any, or is there
        warnings.simplefilter("ignore")  # papermill's own imports
        import papermill
    logging.getLogger("papermill").setLevel(logging.ERROR)  # it warns of parameters of the cell above the tagged one
    return papermill


def _close_event_loop() -> None:
    """Close what papermill leaves open in each thread that it has run in, unless it is Jupyter's."""
    from jupyter_core.utils import ensure_event_loop

    loop = ensure_event_loop()
    if not loop.is_running():
        loop.close()


class _CellCounter:
    """Says which cell of a notebook begins, counted among those of code, and under which heading it stands."""

    def __init__(self, source: Path, on_cell: Callable[[str], None], ending: threading.Event) -> None:
        import nbformat

        cells = nbformat.read(source, as_version=4).cells
        self._number, self._of = 0, sum(cell.cell_type == "code" for cell in cells)
        self._heading, self._on_cell, self._ending = "", on_cell, ending

    def __call__(self, cell: Any, cell_index: int) -> None:  # noqa: ANN401 - nbformat has no types
        if self._ending.is_set():
            raise InterruptedError("the batch was interrupted")
        if cell.cell_type == "markdown":
            heads = [line.lstrip("# ") for line in cell.source.splitlines() if line.startswith("## ")]
            self._heading = heads[-1] if heads else self._heading
        elif "injected-parameters" not in cell.metadata.get("tags", []):
            self._number += 1
            counted = f"cell {self._number} of {self._of}"
            self._on_cell(f"{counted}, {self._heading}" if self._heading else counted)


def _first_code_cell_after_parameters(source: Path) -> int:
    """Position of the given parameters by papermill: behind the cell tagged so."""
    import nbformat

    tags = [cell.metadata.get("tags", []) for cell in nbformat.read(source, as_version=4).cells]
    return next((k + 1 for k, names in enumerate(tags) if "parameters" in names), 0)


def show_exported(copy: Path, figures: Path) -> None:
    """Let the picture at the head of an executed copy be the figure in `figures`; without a picture there is none."""
    text = copy.read_text(encoding="utf-8")

    def exported(match: re.Match[str]) -> str:
        path = figures / f"{match[2]}.png"
        address = quote(Path(os.path.relpath(path, copy.parent)).as_posix())
        return f"![{match[1]}]({address})" if path.exists() else ""

    write_atomic(copy, _GALLERY.sub(exported, text))


_SECONDS_A_THUMBNAIL = 0.8  # that 00_start takes for each figure, on two cores
_GALLERY = re.compile(r"!\[([^\]]*)\]\((?:\.\./)+figures/gallery/(\w+)\.webp\)")
_PACKAGE = Path(__file__).resolve().parents[1]
# Where data and published profiles are looked for: other folders there are other inputs.
_LOOKED_AT = ("SPARSEPIPE_DATA", "SPARSEPIPE_REFERENCE")
_SUFFIXES = ("pdf", "svg", "png", "csv", "json")


@dataclass(frozen=True)
class Outcome:
    """The end of a notebook: its seconds, and its error in one line, if any."""

    seconds: float
    error: str = ""


@dataclass(frozen=True)
class NotebookJob:
    """Paths and parameters of one batch. `copies` holds what was executed, and next to it what is known of each."""

    notebooks: Path
    out: Path
    copies: Path
    parameters: dict[str, Any]
    exports: dict[str, tuple[str, ...]] = field(default_factory=dict)  # notebook -> names of its figures
    pictures: bool = True
    paper: "Paper | None" = None  # what all figures are exported with; None: the usual one
    kernels: NotebookKernels = field(default_factory=NotebookKernels)
    why_not: dict[str, str] = field(default_factory=dict)  # of a browser that was looked for: why it cannot draw
    lock: Any = field(default_factory=threading.Lock)  # of the file of times

    @classmethod
    def prepare(
        cls,
        *,
        out: Path | str,
        notebooks: Path | None,
        data: str | Path | None,
        parameters: dict[str, Any],
        pictures: bool = True,
        paper: "Paper | None" = None,
    ) -> "NotebookJob":
        """Find the notebooks; `work/`, `runs/` and the executed copies stand alongside `out`. Raises InputError."""
        folder = notebooks or catalogue.notebooks_folder()
        missing = [name for name in catalogue.NOTEBOOKS if not (folder / f"{name}.ipynb").exists()]
        if missing:
            raise InputError(
                "notebooks.missing", f"{folder}: {missing[0]}.ipynb not found; run from a checkout of the project"
            )
        out = expanded(out).resolve()
        if out.exists() and not out.is_dir():
            raise InputError("out.is_file", f"{out}: is a file, expected a folder for the figures")
        if data and not is_function(str(data)) and not (published := find(data)).exists():
            raise InputError(
                "dataset.not_found",
                f"{published}: no such folder; give a data set's folder, or a name that `sparsepipe data list` lists",
            )
        source = "" if not data else str(expanded(data).resolve()) if expanded(data).exists() else str(data)
        told = {"root": str(out.parent), "figures": str(out), "data": source, "headless": True, **parameters}
        exports = {name: catalogue.exported(folder / f"{name}.ipynb") for name in catalogue.NOTEBOOKS}
        return cls(folder, out, out.parent / "runs" / "notebooks", told, exports, pictures, paper)

    def chosen(self, names: Sequence[str] | None) -> list[str]:
        """Notebooks by their own or their figures' names, in order; all of them without names.

        The folder may be left out: "12_gaps" is figures/12_gaps.
        """
        if not names:
            return list(catalogue.NOTEBOOKS)
        by_figure = {figure: name for name, figures in self.exports.items() for figure in figures}
        short = {name.rpartition("/")[2]: name for name in catalogue.NOTEBOOKS}
        for name in names:
            if name not in catalogue.NOTEBOOKS and name not in by_figure and name not in short:
                known = ", ".join([*catalogue.NOTEBOOKS, *by_figure])
                near = (
                    f"; did you mean {suggestion!r}?"
                    if (suggestion := meant(name, [*catalogue.NOTEBOOKS, *by_figure]))
                    else ""
                )
                raise InputError(
                    "notebooks.unknown", f"unknown notebook or figure {name!r}, expected one of {known}{near}"
                )
        wanted = {short.get(name) or by_figure.get(name, name) for name in names}
        return [name for name in catalogue.NOTEBOOKS if name in wanted]

    def check_parameters(self, names: Sequence[str], given: Mapping[str, Any]) -> None:
        """Raise InputError for a parameter that none of the notebooks `names` has: its value would be of no use."""
        known = {name: self._parameters_of(name) for name in catalogue.NOTEBOOKS}
        every = dict.fromkeys(parameter for parameters in known.values() for parameter in parameters)
        for parameter in given:
            having = [name for name, parameters in known.items() if parameter in parameters]
            if not having:
                near = f"; did you mean {suggestion!r}?" if (suggestion := meant(parameter, every)) else ""
                raise InputError(
                    "notebooks.parameter_unknown",
                    f"no notebook has a parameter {parameter!r}, expected one of {', '.join(every)}{near}",
                    parameter=parameter,
                )
            if not {*having}.intersection(names):
                none = f"{names[0]} has no" if len(names) == 1 else "none of these notebooks has a"
                raise InputError(
                    "notebooks.parameter_unused",
                    f"{none} parameter {parameter!r}; omit it, or run one of {', '.join(having)}",
                    parameter=parameter,
                )

    def _parameters_of(self, name: str) -> tuple[str, ...]:
        return catalogue.parameter_names(self.notebooks / f"{name}.ipynb")

    def uses_minkowski(self, name: str) -> bool:
        """Return whether a notebook uses MinkowskiEngine, by its code or by a parameter."""
        asked = "engine" in self._parameters_of(name) and catalogue.names_minkowski(repr(self.parameters.get("engine")))
        return asked or catalogue.uses_minkowski(self.notebooks / f"{name}.ipynb")

    def files(self, name: str) -> list[Path]:
        """The files of a notebook's figures that exist."""
        paths = (self.out / f"{figure}.{suffix}" for figure in self.exports[name] for suffix in _SUFFIXES)
        return [path for path in paths if path.exists()]

    def copy(self, name: str) -> Path:
        """Path of the executed copy of a notebook."""
        return self.copies / f"{name}.ipynb"

    def report(self, name: str) -> Path:
        """Path of a notebook's report: warnings, figures that failed, progress of its runs."""
        return self.copies / f"{name}.report.jsonl"

    def log(self, name: str) -> Path:
        """Path of the log of a notebook's process."""
        return self.copies / f"{name}.log"

    def expected_seconds(self, names: Sequence[str]) -> dict[str, float]:
        """Seconds of each in its last complete run here; if it never did, how long it usually takes.

        The last notebook shrinks every figure, of which there may have been few when it last ran.
        """
        last = self._last_seconds()
        expected = {name: last.get(name, catalogue.USUAL_SECONDS.get(name, 60.0)) for name in names}
        if catalogue.LAST in expected and self.pictures:
            drawn = {figure for name in names for figure in self.exports[name]}
            drawn |= {path.stem for path in self.out.glob("*.png")}
            least = catalogue.USUAL_SECONDS[catalogue.LAST] + _SECONDS_A_THUMBNAIL * len(drawn)
            expected[catalogue.LAST] = max(expected[catalogue.LAST], least)
        return expected

    def look_for_a_browser(self, say: Callable[[str], None]) -> None:
        """Find out once, for all notebooks, whether a browser draws: one that hangs would cost each its patience."""
        if not self.pictures:
            self.why_not.setdefault("", "none were asked for")
        if "" not in self.why_not:
            from ..views.plots.chromium import why_it_cannot_draw  # here: a batch that exports nothing needs no plotly

            self.why_not[""] = why_it_cannot_draw() or ""
            if self.why_not[""]:
                say(f"no pictures will be exported: {self.why_not['']}")

    def run(self, name: str, *, on_cell: Callable[[str], None] = lambda text: None) -> Outcome:
        """Execute one notebook; `on_cell` receives each cell that it comes to."""
        self._stamp(name).unlink(missing_ok=True)
        self.report(name).unlink(missing_ok=True)
        self._stamp(name).parent.mkdir(parents=True, exist_ok=True)
        started = time.perf_counter()
        answer = self.kernels.execute(
            self.notebooks / f"{name}.ipynb",
            self.copy(name),
            parameters=self.parameters,
            folder=self.notebooks,
            environment=self._environment(name),
            log=self.log(name),
            on_cell=on_cell,
        )
        seconds = time.perf_counter() - started
        if "error" in answer:
            where = f"cell {answer['cell']}: " if "cell" in answer else ""
            return Outcome(seconds, where + " ".join(answer["error"].split()))
        drawn = not not_drawn(self.report(name))
        show_exported(self.copy(name), self.out)
        write_json(self._stamp(name), {"digest": self._digest(name), "told": self._told(name), "pictures": drawn})
        with self.lock:
            write_json(self._times, {**self._last_seconds(), name: round(seconds, 1)})
        return Outcome(seconds)

    def _environment(self, name: str) -> dict[str, str]:
        environment = {NOTEBOOK: f"notebooks/{name}.ipynb", REPORT: str(self.report(name))}
        if why := self.why_not.get(""):
            environment[NO_PICTURES] = why
        if self.paper:
            environment[PAPER] = json.dumps(self.paper.to_json())
        return environment

    def end(self) -> None:
        """Interrupt the notebooks at work and wait until their kernels are gone."""
        self.kernels.end()

    def is_done(self, name: str) -> bool:
        """Return whether nothing would change: the same inputs, and each figure's files exist, pictures if asked."""
        return self._complete(name) and read_json(self._stamp(name))["digest"] == self._digest(name)

    def has_ended(self, name: str) -> bool:
        """Return whether its executed copy is of a whole notebook."""
        return self._stamp(name).exists()

    def has_ended_well(self, name: str) -> bool:
        """Return whether it ran to its end under these parameters and data, whatever changed in notebooks and code
        since.
        """
        return self._complete(name) and read_json(self._stamp(name)).get("told") == self._told(name)

    def _complete(self, name: str) -> bool:
        if not self._stamp(name).exists():
            return False
        stamp, there = read_json(self._stamp(name)), {path.name for path in self.files(name)}
        suffixes = ("csv", "json", *(("pdf", "svg", "png") if self.pictures else ()))
        expected = {f"{figure}.{suffix}" for figure in self.exports[name] for suffix in suffixes}
        return (stamp.get("pictures", True) or not self.pictures) and there >= expected

    def _stamp(self, name: str) -> Path:
        return self.copies / f"{name}.done.json"

    @property
    def _times(self) -> Path:
        return self.copies / "seconds.json"

    def _last_seconds(self) -> dict[str, float]:
        try:
            seconds_by_notebook = read_json(self._times)
        except InputError:  # none is there yet, or it is damaged: it tells no more than how long things took
            return {}
        return {name: float(value) for name, value in seconds_by_notebook.items() if isinstance(value, int | float)}

    def _told(self, name: str) -> str:
        """Parameters of a notebook: the requested ones that it has, and the data."""
        known = self._parameters_of(name)
        used_parameters = [
            {parameter: value for parameter, value in self.parameters.items() if parameter in known},
            [os.environ.get(variable) for variable in _LOOKED_AT],
            _contents(self.parameters["data"]),
            *([self.paper.to_json()] if self.paper else []),
            *([has_minkowski()] if self.uses_minkowski(name) else []),
        ]
        return hashlib.sha256(json.dumps(used_parameters, sort_keys=True).encode()).hexdigest()

    def _digest(self, name: str) -> str:
        """The notebook, its parameters, and all code that it can call."""
        whole = hashlib.sha256(self._told(name).encode())
        whole.update((self.notebooks / f"{name}.ipynb").read_bytes())
        whole.update(_code().encode())
        return whole.hexdigest()


def has_minkowski() -> bool:
    """Return whether MinkowskiEngine is installed, even if only since this process started."""
    invalidate_caches()
    return find_spec("MinkowskiEngine") is not None


def _code() -> str:
    """A digest of this package as it is on disk."""
    whole = hashlib.sha256()
    for path in sorted(_PACKAGE.rglob("*.py")):
        whole.update(path.read_bytes())
    return whole.hexdigest()


def _contents(data: str) -> list[list[Any]]:
    """Names, sizes and times of the files of a data folder; nothing for a name."""
    if not data or not expanded(data).is_dir():
        return []
    files = sorted(path for path in expanded(data).rglob("*") if path.is_file())
    return [[str(path), path.stat().st_size, path.stat().st_mtime_ns] for path in files]
