"""Execute the notebooks in their order, one at a time or side by side, and return the files of their figures."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import RunFailed
from . import catalogue
from .executed import Executed
from .notebook_job import NotebookJob, Outcome
from .page import write_page
from .progress import Progress, clock
from .report import not_drawn, warnings_of

if TYPE_CHECKING:
    from ..plots import Paper


def reproduce(
    figures: Sequence[str] | None = None,
    *,
    jobs: int = 1,
    data: str | Path | None = None,
    out: Path | str = "figures",
    notebooks: Path | None = None,
    only_changed: bool = False,
    resume: bool = False,
    parameters: dict[str, Any] | None = None,
    pictures: bool = True,
    paper: "Paper | None" = None,
) -> list[Path]:
    """Execute the notebooks (those named, or that export the figures named) and return the figures' files.

    `work/`, `runs/` and the executed copies (`runs/notebooks/`) stand beside `out`. `jobs` notebooks run side by side,
    save those that measure. `parameters` are given to every notebook that has them.
    `only_changed` skips a notebook whose text, parameters and code are as they were when it last ran to its end, and
    whose figures are there, drawn. `resume` skips each that ran to its end under these parameters, changed since or
    not: a batch that failed goes on with the notebook that did. A notebook that fails stops only those that start from
    it. Without `pictures` tables and their provenance are written alone. `paper` says how all figures are exported:
    their width, height and font, with a title or not.
    Meanwhile stderr says what runs, n of N, its step, the time so far and expected. After each notebook
    `out/index.html` is written anew: a page of all figures, which opens from disk. The last lines give warnings, and
    each notebook's answer in a sentence.
    Raises InputError for an unknown name, and for a parameter that none of these notebooks has; RunFailed at the end
    with notebook, cell and error of every failure, and where pictures were asked for and none, or not all, could be
    drawn.
    """
    given = parameters or {}
    job = NotebookJob.prepare(out=out, notebooks=notebooks, data=data, parameters=given, pictures=pictures, paper=paper)
    chosen = job.chosen(figures)
    job.check_parameters(chosen, given)
    progress = Progress(chosen, job.expected_seconds(chosen))
    if paper and (doubt := paper.doubt()):
        progress.say(f"warning: {doubt}")
    batch = _Batch(job, chosen, progress, only_changed, resume)
    try:
        for wave in catalogue.waves(chosen):
            batch.run(wave, jobs)
    finally:
        job.end()
        progress.close()
    batch.summarise()
    batch.raise_failures()
    return [path for name in chosen for path in job.files(name)]


@dataclass
class _Batch:
    """One call of `reproduce`: what of it is done, what failed, what runs again."""

    job: NotebookJob
    chosen: list[str]
    progress: Progress
    only_changed: bool
    resume: bool
    done: list[str] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    again: set[str] = field(default_factory=set)

    def run(self, wave: Sequence[str], jobs: int) -> None:
        """Run those of a wave that have to; write the page anew after each."""
        ready = [name for name in wave if self._has_to_run(name)]
        if any(self.job.exports[name] for name in ready):
            self.job.look_for_a_browser(self.progress.say)
        self.again.update(ready)  # those that start from one of them are done again
        if jobs == 1 or len(ready) < 2:
            for name in ready:
                self._run(name)
            return
        with ThreadPoolExecutor(jobs) as pool:
            try:
                list(pool.map(self._run, ready))
            except BaseException:
                self.job.end()
                raise

    def _has_to_run(self, name: str) -> bool:
        needs = catalogue.NOTEBOOKS.get(name, ())
        if broken := [needed for needed in needs if needed in self.failures]:
            self.failures[name] = f"not run, as {broken[0]} failed"
            self.progress.end(name, self.failures[name])
            return False
        if self.again.intersection(needs) or (self.again and name == catalogue.LAST):
            return True
        if self.resume and self.job.has_ended_well(name):
            self.progress.end(name, "ran to its end before")
        elif self.only_changed and self.job.is_done(name):
            self.progress.end(name, "unchanged since it last ran")
        else:
            return True
        self.done.append(name)
        return False

    def _run(self, name: str) -> None:
        self.progress.begin(name, self.job.report(name))
        outcome: Outcome = self.job.run(name, on_cell=lambda text: self.progress.cell(name, text))
        warned = warnings_of(self.job.report(name))
        if outcome.error:
            self.failures[name] = outcome.error
            log = self.job.log(name)
            self.progress.end(name, f"failed after {outcome.seconds:.1f} s, {outcome.error} (log: {log})")
        else:
            self.done.append(name)
            told = f", {len(warned)} warning{'s' * (len(warned) > 1)}" if warned else ""
            self.progress.end(name, f"{outcome.seconds:.1f} s{told}")
        for text in warned:
            self.progress.say(f"  warning: {text}")
        write_page(self.job)

    def summarise(self) -> None:
        """Say what was done, which notebooks warn, and each one's answer."""
        say, job = self.progress.say, self.job
        write_page(job)
        say(f"{len(self.done)} of {len(self.chosen)} notebooks in {clock(self.progress.seconds)}; figures in {job.out}")
        warned = {name: found for name in self.chosen if (found := warnings_of(job.report(name)))}
        for name, found in warned.items():
            for text in found:
                say(f"{name}: warning: {text}")
        if warned:
            say(f"{len(warned)} of {len(self.chosen)} notebooks warn: {', '.join(warned)}")
        for name in self.done:
            executed = Executed.read(name, job.copy(name))
            if executed and executed.sentence:
                say(f"{name}: {executed.sentence}")

    def raise_failures(self) -> None:
        """Raise RunFailed where a notebook failed, or pictures are missing that were asked for."""
        told = [f"{name}.ipynb: {error}" for name, error in self.failures.items()]
        if told:
            told = [f"{'; '.join(told)} (executed copies: {self.job.copies}; --resume goes on from here)"]
        missing = [
            text for name in self.done if self.job.pictures for text in not_drawn(self.job.report(name)).values()
        ]
        if missing:
            of = sum(len(self.job.exports[name]) for name in self.chosen)
            told.append(f"{len(missing)} of {of} figures have no pictures: {missing[0]}")
        if told:
            raise RunFailed("; ".join(told))
