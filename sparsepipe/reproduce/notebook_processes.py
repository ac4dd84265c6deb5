"""The processes that execute notebooks (execute.py): one for each notebook at work, kept for the next one."""

import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..host.python_path import python_command, python_environment

_PATIENCE = 20  # seconds that an interrupted notebook has to end its kernel


@dataclass(eq=False)
class _Process:
    """One that executes notebooks, one after the other; `code` is what it has imported (a digest)."""

    code: str
    popen: subprocess.Popen

    def execute(self, request: Mapping[str, Any], on_cell: Callable[[str], None]) -> tuple[dict | None, int]:
        """Return what is told of the notebook at its end, None for nothing, and its process's exit code."""
        assert self.popen.stdin and self.popen.stdout
        self.popen.stdin.write((json.dumps(request) + "\n").encode())
        self.popen.stdin.flush()
        answer = None
        for line in self.popen.stdout:  # rows of JSON, and what a kernel prints past its notebook
            row = json.loads(line) if line.startswith(b"{") else None
            if row is not None and "ended" in row:
                return answer, int(row["ended"])
            if row is not None and "at" in row:
                on_cell(str(row["at"]))
            elif row is not None:
                answer = row
        return answer, self.popen.wait()

    def interrupt(self) -> None:
        """Close its input: the notebook at work is interrupted, and it ends."""
        if self.popen.stdin and not self.popen.stdin.closed:
            self.popen.stdin.close()

    def await_end(self) -> None:
        try:
            self.popen.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(self.popen.pid, signal.SIGKILL)
            self.popen.wait()


@dataclass(eq=False)
class NotebookProcesses:
    """Those of one batch, whose notebooks may run side by side."""

    _at_work: list[_Process] = field(default_factory=list)
    _idle: list[_Process] = field(default_factory=list)
    _lock: Any = field(default_factory=threading.Lock)

    def execute(
        self,
        request: Mapping[str, Any],
        told: Mapping[str, str],
        *,
        log: Path,
        code: str,
        on_cell: Callable[[str], None] = lambda text: None,
    ) -> dict[str, Any]:
        """Execute a notebook with `told` in its environment. Returns execute.py's answer, {"error"} without one.

        `log`: where its process says what troubles it; `code`: a digest of all code that it may import.
        """
        log.write_bytes(b"")
        process = self._take(log, code)
        try:
            more = {"log": str(log), "environment": python_environment(**told)}
            answer, ended = process.execute({**request, **more}, on_cell)
        except BaseException:
            self.end()
            _close(process)
            raise
        with self._lock:
            is_left = process in self._at_work and process.popen.poll() is None
            if process in self._at_work:
                self._at_work.remove(process)
            if is_left:
                self._idle.append(process)
        if not is_left:
            _end([process])
        return {"error": f"ended with code {ended} before its last cell"} if answer is None else answer

    def _take(self, log: Path, code: str) -> _Process:
        """Take one that is idle and has imported this very code, else start one."""
        with self._lock:
            fitting = [one for one in self._idle if one.code == code and one.popen.poll() is None]
            others = [one for one in self._idle if one not in fitting]
            process = fitting.pop() if fitting else _Process(code, _begin(log))
            self._idle = fitting
            self._at_work.append(process)
        _end(others)
        return process

    def end(self) -> None:
        """Interrupt the notebooks at work, and wait until all processes and their kernels are gone."""
        with self._lock:
            at_work, idle = list(self._at_work), list(self._idle)
            self._at_work.clear()
            self._idle.clear()
        for process in at_work:
            process.interrupt()
        _end(idle)
        for process in at_work:
            process.await_end()


def _begin(log: Path) -> subprocess.Popen:
    with log.open("ab") as errors:
        return subprocess.Popen(
            python_command("sparsepipe.reproduce.execute"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=python_environment(),
            start_new_session=True,  # Ctrl-C reaches this process alone, which then ends that one in order
        )


def _end(processes: list[_Process]) -> None:
    for process in processes:
        process.interrupt()
    for process in processes:
        process.await_end()
        _close(process)


def _close(process: _Process) -> None:
    process.interrupt()
    if process.popen.stdout:
        process.popen.stdout.close()
