"""Run claims on this machine, resume after an interruption, and give a verdict on each.

DIR/jobs/JOB/job.json       command, seconds, load, seed, versions, machine: written last, when the job has ended.
DIR/jobs/JOB/answer.json    what a command printed.
DIR/jobs/JOB/TABLE.csv      tables of a notebook, each with its provenance, TABLE.json.
DIR/notebooks/PARAMETERS/   work, runs, executed copies and figures of notebooks with equal parameters.
DIR/verdicts.json           the last answer of `verify`.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import InputError, RunFailed
from ..records import Origin
from ..util.derived import digest
from ..util.host.background_load import BackgroundLoad, Usage, load_between
from ..util.host.imports import python_command, python_environment
from ..util.io.fields import complaint
from ..util.io.files import expanded, read_json, read_text, write_json
from . import catalogue
from .claims import NOT_RUN, Claim, read_claims
from .driver import reproduce

KICK_MINUTES = 5.0
_PATIENCE = 20  # times the stated minutes, until a command is ended
_LEAST_PATIENCE = 120.0  # seconds


@dataclass(frozen=True)
class Study:
    """The claims of a file, and the folder of their results on this machine.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> import sparsepipe as sp
    >>> folder = Path(TemporaryDirectory().name)
    >>> study = sp.study.Study.open(out=folder)
    >>> study.verdicts()[0]["verdict"]
    'not run'

    See also: notebooks/guides/claims.md.
    """

    path: Path
    out: Path
    claims: tuple[Claim, ...]
    faults: tuple[InputError, ...]

    @classmethod
    def open(cls, path: Path | str | None = None, out: Path | str = "work/study") -> "Study":
        """Read a claims file (default: that of this repository). Raises InputError if it has no claims.

        `faults` has an error for each claim that cannot be checked; the others can be run.
        """
        path = expanded(path or catalogue.notebooks_folder() / "claims.toml")
        out = expanded(out).resolve()
        if out.exists() and not out.is_dir():
            raise InputError("out.is_file", f"{out}: is a file, expected a folder for the results")
        claims, faults = read_claims(path)
        return cls(path.resolve(), out, tuple(claims), tuple(faults))

    def chosen(self, names: Sequence[str]) -> list[Claim]:
        """Return the claims of these names; all without names. Raises InputError for an unknown name."""
        known = {claim.name: claim for claim in self.claims}
        for name in names:
            if name not in known:
                raise InputError("claims.unknown", f"unknown claim {name!r}, expected one of {', '.join(known)}")
        return [known[name] for name in dict.fromkeys(names)] if names else list(self.claims)

    def cheap(self, minutes: float = KICK_MINUTES) -> list[Claim]:
        """Return the claims of the cheapest jobs that take at most `minutes` together."""
        jobs: dict[str, float] = {}
        for claim in self.claims:
            jobs[claim.job] = max(claim.minutes, jobs.get(claim.job, 0.0))
        taken, used = set(), 0.0
        for job, needed in sorted(jobs.items(), key=lambda item: item[1]):
            used += needed
            if used <= minutes:
                taken.add(job)
        return [claim for claim in self.claims if claim.job in taken]

    def run(
        self,
        claims: Sequence[Claim],
        *,
        force: bool = False,
        pictures: bool = False,
        say: Callable[[str], None] = lambda line: None,
    ) -> list[str]:
        """Run the jobs of these claims, cheapest first. Returns a line for each failed job.

        A job that has ended is not repeated, unless `force`. With `pictures`, notebooks export their figures, too.
        `say` receives progress: all command lines before the first one runs, then the start and end of each.
        """
        jobs: dict[str, list[Claim]] = {}
        for claim in sorted(claims, key=lambda claim: claim.minutes):
            jobs.setdefault(claim.job, []).append(claim)
        if ready := [job for job in jobs if force or not self._has_ended(jobs[job])]:
            minutes = sum(max(claim.minutes for claim in jobs[job]) for job in ready)
            say(f"{len(ready)} of {len(jobs)} commands to run, about {minutes:.0f} min:")
        for job in ready:
            say(f"  {jobs[job][0].command_line}")
        failed = []
        for number, job in enumerate(ready, start=1):
            first = jobs[job][0]
            say(f"[{number}/{len(ready)}] {first.command_line}: begins ({', '.join(c.name for c in jobs[job])})")
            began = time.monotonic()
            try:
                # Tables of claims that were not asked for, too: a later call would record its own load with them.
                self._run([claim for claim in self.claims if claim.job == job], force, pictures)
            except (InputError, RunFailed) as error:
                failed.append(f"{first.name}: {error} [{error.code}]")
                say(f"[{number}/{len(ready)}] failed after {time.monotonic() - began:.0f} s: {error}")
            else:
                say(f"[{number}/{len(ready)}] ended after {time.monotonic() - began:.0f} s")
        return failed

    def verdicts(self, claims: Sequence[Claim] | None = None) -> list[dict[str, Any]]:
        """Return a row for each claim: number, verdict, load, versions and seed; an error if it has no number.

        Nothing is run.
        """
        return [self._verdict(claim) for claim in (self.claims if claims is None else claims)]

    def document(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return verdicts and the errors of claims that cannot be checked, as `verdicts.json` has them."""
        return {"claims": rows, "faults": [{"code": fault.code, "fault": str(fault)} for fault in self.faults]}

    def folder(self, claim: Claim) -> Path:
        """Return the folder of the results of a claim's job."""
        return self.out / "jobs" / claim.job

    def _verdict(self, claim: Claim) -> dict[str, Any]:
        row = {name: getattr(claim, name) for name in ("name", "figure", "sentence", "expected", "tolerance")}
        row |= {name: getattr(claim, name) for name in ("elsewhere", "hardware", "minutes")}
        row["command"] = claim.command_line
        if not self._has_ended([claim]):
            return row | {"verdict": NOT_RUN, "value": None}
        facts = read_json(self.folder(claim) / "job.json")
        load = BackgroundLoad.from_json(facts.get("load"))
        row |= {name: facts.get(name) for name in ("seconds", "load", "seed", "versions", "commit", "machine")}
        row["doubts"] = list(load.doubts())
        try:
            value = claim.place.read_number(read_text(self.folder(claim) / _file(claim), what="result"), claim.name)
        except InputError as error:
            return row | {"verdict": NOT_RUN, "value": None, "fault": f"{error} [{error.code}]"}
        return row | {"verdict": claim.verdict(value), "value": value}

    def _has_ended(self, claims: Sequence[Claim]) -> bool:
        return all((self.folder(claim) / name).exists() for claim in claims for name in ("job.json", _file(claim)))

    def _run(self, claims: Sequence[Claim], force: bool, pictures: bool) -> None:
        claim, folder = claims[0], self.folder(claims[0])
        (folder / "job.json").unlink(missing_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        began, start, children = time.time(), Usage.now(), _children_seconds()
        if claim.command:
            self._run_command(claim, folder)
        else:
            self._run_notebook(claims, folder, force, pictures)
        end = Usage.now()
        load = load_between(start, end, ours=end.own - start.own + _children_seconds() - children)
        load = replace(load, run_queue_wait_share=None)  # this process only waits for the command
        origin = Origin.here().to_json()
        facts = {name: origin.get(name) for name in ("commit", "versions", "machine")}
        facts |= {"command": claim.command_line, "began": began, "seconds": end.at - start.at}
        write_json(folder / "job.json", facts | {"load": load.to_json(), "seed": _seed(claim, folder)})

    def _run_command(self, claim: Claim, folder: Path) -> None:
        """Run a sparsepipe command as an argument list, never by a shell."""
        words = python_command("sparsepipe", *claim.command, "--json")
        patience = max(_LEAST_PATIENCE, _PATIENCE * 60 * claim.minutes)
        answer = folder / "answer.part"
        try:
            with answer.open("wb") as file, (folder / "log").open("wb") as log:
                done = subprocess.run(
                    words,
                    cwd=self.path.parent,
                    env=python_environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=log,
                    timeout=patience,
                    check=False,
                )
        except subprocess.TimeoutExpired:
            raise RunFailed("claims.command_failed", f"no answer in {patience:.0f} s; see {folder / 'log'}") from None
        if done.returncode:
            lines = (folder / "log").read_text(errors="replace").splitlines() or [""]
            raise RunFailed("claims.command_failed", f"exit code {done.returncode}, {complaint(ValueError(lines[-1]))}")
        answer.replace(folder / "answer.json")

    def _run_notebook(self, claims: Sequence[Claim], folder: Path, force: bool, pictures: bool) -> None:
        name, parameters = claims[0].notebook, dict(claims[0].parameters)
        figures = self.out / "notebooks" / digest(parameters) / "figures"
        needed = [*catalogue.NOTEBOOKS[name], name]
        reproduce(needed, out=figures, parameters=parameters, pictures=pictures, resume=not force)
        for table in dict.fromkeys(claim.place.table for claim in claims):
            for suffix in ("csv", "json"):
                if (path := figures / f"{table}.{suffix}").exists():
                    shutil.copyfile(path, folder / path.name)


def _file(claim: Claim) -> str:
    return "answer.json" if claim.command else f"{claim.place.table}.csv"


def _seed(claim: Claim, folder: Path) -> object:
    """The seed of a claim's command or notebook; None if it draws nothing, or does not say."""
    if "--seed" in claim.command[:-1]:
        return claim.command[claim.command.index("--seed") + 1]
    if "seed" in claim.parameters:
        return claim.parameters["seed"]
    with suppress(InputError):
        facts = read_json(folder / f"{claim.place.table}.json") if claim.place.table else {}
        settings = (facts.get("provenance") or {}).get("settings")
        return settings.get("seed") if isinstance(settings, Mapping) else None
    return None


def _children_seconds() -> float:
    times = os.times()
    return times.children_user + times.children_system
