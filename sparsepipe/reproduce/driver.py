"""Execute the notebooks in their order, one at a time or side by side, and return the files of their figures."""

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import InputError, RunFailed
from ..files import read_json, write_json
from ..host.python_path import python_command, python_environment
from ..record import NO_PICTURES, NOTEBOOK
from .report import REPORT, not_drawn, warnings_of

_PACKAGE = Path(__file__).resolve().parents[1]
_PATIENCE = 20  # seconds that an interrupted notebook has to end its kernel

# Notebook -> those whose results it starts from. It runs without them too, and then makes what it needs itself.
NOTEBOOKS: dict[str, tuple[str, ...]] = {
    "01_data": (),
    "02_profile": (),
    "03_layer_graph": ("02_profile",),
    "04_partition": ("02_profile",),
    "05_launch": ("02_profile",),
    "06_figures": ("05_launch",),
    "07_learning": (),
    "08_segmentation": (),
    "09_your_own_network": (),
    "10_waiting": (),
    "figures/4_accuracy": (),  # trains what figures 1 and 5 read
    "figures/3_sparse_dense": (),
    "figures/1_devices": ("figures/4_accuracy",),
    "figures/5_prediction": ("figures/4_accuracy",),
    "figures/2_mixed_devices": (),
    "figures/6_bytes_memory": (),
    "figures/7_compression": (),
    "figures/8_waiting": (),
    "figures/10_dense": (),
}
# They measure: nothing else runs meanwhile.
ALONE = frozenset(
    {
        "02_profile",
        "05_launch",
        "07_learning",
        "08_segmentation",
        "09_your_own_network",
        "10_waiting",
        "figures/4_accuracy",
        "figures/3_sparse_dense",
        "figures/1_devices",
        "figures/7_compression",
        "figures/8_waiting",
        "figures/10_dense",
    }
)
# Where data and published profiles are looked for: other folders there are other inputs.
_LOOKED_AT = ("SPARSEPIPE_DATA", "SPARSEPIPE_REFERENCE")


def reproduce(
    figures: Sequence[str] | None = None,
    *,
    jobs: int = 1,
    data: str | Path | None = None,
    out: Path | str = "figures",
    notebooks: Path | None = None,
    only_changed: bool = False,
    parameters: dict[str, Any] | None = None,
    pictures: bool = True,
) -> list[Path]:
    """Execute the notebooks (those named, or that export the figures named) and return the figures' files.

    `work/`, `runs/` and the executed copies (`runs/notebooks/`) stand beside `out`. `jobs` notebooks run side by side,
    save those that measure. `only_changed` skips a notebook whose text, parameters and code are as they were when it
    last ran to its end, and whose figures are there, drawn. A notebook that fails stops only those that start from it.
    Without `pictures` tables and their provenance are written alone. The last lines name the notebooks that warn.
    Raises InputError for an unknown name, RunFailed at the end with notebook, cell and error of every failure, and
    where pictures were asked for and none, or not all, could be drawn.
    """
    job = _Job.prepare(out=out, notebooks=notebooks, data=data, parameters=parameters or {}, pictures=pictures)
    chosen = job.chosen(figures)
    started, failures, done, again = time.perf_counter(), {}, [], set[str]()
    for wave in _waves(chosen):
        ready = []
        for name in wave:
            if broken := [needed for needed in NOTEBOOKS.get(name, ()) if needed in failures]:
                failures[name] = f"not run, as {broken[0]} failed"
                _say(f"{name}: {failures[name]}")
            elif only_changed and job.is_done(name) and not again.intersection(NOTEBOOKS.get(name, ())):
                _say(f"{name}: unchanged since it last ran")
                done.append(name)
            else:
                ready.append(name)
        if any(job.exports[name] for name in ready):
            job.look_for_a_browser()
        again.update(ready)  # those that start from one of them are done again
        outcomes = _side_by_side(job, ready, jobs)
        failures |= {name: error for name, error in outcomes.items() if error}
        done += [name for name, error in outcomes.items() if not error]
    written = [path for name in chosen for path in job.files(name)]
    _say(f"{len(done)} of {len(chosen)} notebooks in {time.perf_counter() - started:.0f} s; figures in {job.out}")
    warned = {name: found for name in chosen if (found := warnings_of(job.report(name)))}
    for name, found in warned.items():
        for text in found:
            _say(f"{name}: warning: {text}")
    if warned:
        _say(f"{len(warned)} of {len(chosen)} notebooks warn: {', '.join(warned)}")
    told = [f"{name}.ipynb: {error}" for name, error in failures.items()]
    told = [f"{'; '.join(told)} (executed copies: {job.copies})"] if told else []
    missing = {figure: why for name in done if pictures for figure, why in not_drawn(job.report(name)).items()}
    if missing:
        of = sum(len(job.exports[name]) for name in chosen)
        told.append(f"{len(missing)} of {of} figures have no pictures: {next(iter(missing.values()))}")
    if told:
        raise RunFailed("; ".join(told))
    return written


@dataclass(frozen=True)
class _Job:
    """Paths and parameters of one call of `reproduce`."""

    notebooks: Path
    out: Path
    copies: Path
    parameters: dict[str, Any]
    exports: dict[str, tuple[str, ...]] = field(default_factory=dict)  # notebook -> names of its figures
    pictures: bool = True
    processes: list[subprocess.Popen] = field(default_factory=list)  # at work now
    why_not: dict[str, str] = field(default_factory=dict)  # of a browser that was looked for: why it cannot draw

    @classmethod
    def prepare(
        cls,
        *,
        out: Path | str,
        notebooks: Path | None,
        data: str | Path | None,
        parameters: dict[str, Any],
        pictures: bool = True,
    ) -> "_Job":
        folder = notebooks or _notebooks_folder()
        missing = [name for name in NOTEBOOKS if not (folder / f"{name}.ipynb").exists()]
        if missing:
            raise InputError(f"{folder}: no {missing[0]}.ipynb; run from a checkout of the project")
        out = Path(out).resolve()
        if out.exists() and not out.is_dir():
            raise InputError(f"{out}: is a file, expected a folder for the figures")
        source = "" if not data else str(Path(data).resolve()) if Path(data).exists() else str(data)
        told = {"root": str(out.parent), "figures": str(out), "data": source, "headless": True, **parameters}
        exports = {name: _exported(folder / f"{name}.ipynb") for name in NOTEBOOKS}
        return cls(folder, out, out.parent / "runs" / "notebooks", told, exports, pictures)

    def chosen(self, names: Sequence[str] | None) -> list[str]:
        """Notebooks by their own or their figures' names, in order; all of them without names."""
        if not names:
            return list(NOTEBOOKS)
        by_figure = {figure: name for name, figures in self.exports.items() for figure in figures}
        for name in names:
            if name not in NOTEBOOKS and name not in by_figure:
                raise InputError(
                    f"no notebook or figure {name!r}, expected one of {', '.join([*NOTEBOOKS, *by_figure])}"
                )
        wanted = {by_figure.get(name, name) for name in names}
        return [name for name in NOTEBOOKS if name in wanted]

    def files(self, name: str) -> list[Path]:
        """The files of a notebook's figures that are there."""
        suffixes = ("pdf", "svg", "png", "csv", "json")
        paths = (self.out / f"{figure}.{suffix}" for figure in self.exports[name] for suffix in suffixes)
        return [path for path in paths if path.exists()]

    def report(self, name: str) -> Path:
        """Where a notebook leaves its warnings, and the figures it could not draw."""
        return self.copies / f"{name}.report.jsonl"

    def look_for_a_browser(self) -> None:
        """Find out once, for all notebooks, whether a browser draws: one that hangs would cost each its patience."""
        if not self.pictures:
            self.why_not.setdefault("", "none were asked for")
        if "" not in self.why_not:
            from ..plots.chromium import why_it_cannot_draw  # here: a batch that exports nothing needs no plotly

            self.why_not[""] = why_it_cannot_draw() or ""
            if self.why_not[""]:
                _say(f"no pictures will be drawn: {self.why_not['']}")

    def run(self, name: str) -> str:
        """Execute one notebook; returns what went wrong in one line, or nothing."""
        self._stamp(name).unlink(missing_ok=True)
        self.report(name).unlink(missing_ok=True)
        self._stamp(name).parent.mkdir(parents=True, exist_ok=True)
        started = time.perf_counter()
        request = {
            "source": str(self.notebooks / f"{name}.ipynb"),
            "target": str(self.copies / f"{name}.ipynb"),
            "parameters": self.parameters,
            "folder": str(self.notebooks),
            "progress": False,
        }
        log = self.copies / f"{name}.log"
        answer = self._execute(f"notebooks/{name}.ipynb", request, log)
        seconds = time.perf_counter() - started
        if "error" not in answer:
            drawn = not not_drawn(self.report(name))
            write_json(self._stamp(name), {"digest": self._digest(name), "pictures": drawn})
            _say(f"{name}: {seconds:.1f} s")
            return ""
        where = f"cell {answer['cell']}: " if "cell" in answer else ""
        error = where + " ".join(answer["error"].split())
        _say(f"{name}: failed after {seconds:.1f} s, {error} (log: {log})")
        return error

    def _execute(self, name: str, request: dict[str, Any], log: Path) -> dict[str, Any]:
        """Run `reproduce.execute` on the request. Its stdin is its lifeline: closed, it interrupts papermill."""
        told = {"JUPYTER_PREFER_ENV_PATH": "1", NOTEBOOK: name, REPORT: str(log.with_suffix(".report.jsonl"))}
        if why := self.why_not.get(""):
            told[NO_PICTURES] = why
        with log.open("wb") as errors:
            process = subprocess.Popen(
                python_command("sparsepipe.reproduce.execute", options=("-W", "ignore")),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=python_environment(**told),
                start_new_session=True,  # Ctrl-C reaches this process alone, which then ends that one in order
            )
        self.processes.append(process)
        assert process.stdin and process.stdout
        try:
            process.stdin.write((json.dumps(request) + "\n").encode())
            process.stdin.flush()
            lines = process.stdout.read().decode().splitlines()
            code = process.wait()
        except BaseException:
            self.end()
            raise
        finally:
            if not process.stdin.closed:
                process.stdin.close()
            process.stdout.close()
        self.processes.remove(process)
        if lines and lines[-1].startswith("{"):
            return json.loads(lines[-1])
        return {"error": f"ended with code {code} before its last cell"}

    def end(self) -> None:
        """Interrupt the notebooks at work and wait until their kernels are gone."""
        for process in self.processes:
            if process.stdin and not process.stdin.closed:
                process.stdin.close()
        for process in self.processes:
            try:
                process.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)

    def is_done(self, name: str) -> bool:
        """Whether nothing would change: the same inputs, and each figure's files are there, pictures where asked."""
        if not self._stamp(name).exists():
            return False
        stamp, there = read_json(self._stamp(name)), {path.name for path in self.files(name)}
        suffixes = ("csv", "json", *(("pdf", "svg", "png") if self.pictures else ()))
        expected = {f"{figure}.{suffix}" for figure in self.exports[name] for suffix in suffixes}
        drawn = stamp.get("pictures", True) or not self.pictures
        return drawn and there >= expected and stamp["digest"] == self._digest(name)

    def _stamp(self, name: str) -> Path:
        return self.copies / f"{name}.done.json"

    def _digest(self, name: str) -> str:
        """The notebook, what it is told, the data it is pointed at, and all code that it can call."""
        told = [
            self.parameters,
            [os.environ.get(variable) for variable in _LOOKED_AT],
            _contents(self.parameters["data"]),
        ]
        whole = hashlib.sha256(json.dumps(told, sort_keys=True).encode())
        for path in (self.notebooks / f"{name}.ipynb", *sorted(_PACKAGE.rglob("*.py"))):
            whole.update(path.read_bytes())
        return whole.hexdigest()


def _waves(names: Sequence[str]) -> list[list[str]]:
    """Notebooks that may run side by side. One that measures, or starts from one of a wave, begins a new wave."""
    waves: list[list[str]] = []
    for name in names:
        last = waves[-1] if waves else []
        apart = not last or name in ALONE or last[0] in ALONE or any(needed in last for needed in NOTEBOOKS[name])
        if apart:
            waves.append([name])
        else:
            last.append(name)
    return waves


def _side_by_side(job: _Job, names: Sequence[str], jobs: int) -> dict[str, str]:
    if jobs == 1 or len(names) < 2:
        return {name: job.run(name) for name in names}
    with ThreadPoolExecutor(jobs) as pool:
        try:
            return dict(zip(names, pool.map(job.run, names), strict=True))
        except BaseException:
            job.end()
            raise


def _exported(path: Path) -> tuple[str, ...]:
    """The figures that a notebook exports, as its cells name them: place.export("name", …)."""
    cells = read_json(path, what="notebook").get("cells", [])
    text = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    return tuple(dict.fromkeys(re.findall(r"\.export\(\s*\"(\w+)\"", text)))


def _contents(data: str) -> list[list[Any]]:
    """Names, sizes and times of the files of a data folder; nothing for a name."""
    if not data or not Path(data).is_dir():
        return []
    files = sorted(path for path in Path(data).rglob("*") if path.is_file())
    return [[str(path), path.stat().st_size, path.stat().st_mtime_ns] for path in files]


def _notebooks_folder() -> Path:
    return _PACKAGE.parent / "notebooks"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
