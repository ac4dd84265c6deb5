"""An agent on a node of Ray, as a process with three pipes here: threads carry bytes between them and its actor."""

import os
import subprocess
import threading
from collections.abc import Callable
from typing import IO, Any

import ray

_PIECE = 2**16
_KILLED = -9


class ActorProcess:
    """Has the pipes and the end of the agent that an `AgentActor` started, as `subprocess.Popen` has a process's."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self.lost: str | None = None  # why the actor can be reached no more, once it cannot
        taken, giving = os.pipe()
        self.stdin: IO[bytes] | None = os.fdopen(giving, "wb", 0)
        self.stdout: IO[bytes] | None = self._carried("output", actor.read)
        self.stderr: IO[bytes] | None = self._carried("errors", actor.read_errors)
        threading.Thread(target=self._write, args=(taken,), name="input", daemon=True).start()
        self._ended = actor.wait.options(concurrency_group="end").remote()

    def wait(self, timeout: float | None = None) -> int:
        """Return the agent's exit code, -9 where its actor is lost. Raises subprocess.TimeoutExpired."""
        try:
            return int(ray.get(self._ended, timeout=timeout))
        except ray.exceptions.GetTimeoutError:
            raise subprocess.TimeoutExpired("agent", timeout or 0.0) from None
        except ray.exceptions.RayError as error:
            self._lose(error)
            return _KILLED

    def kill(self) -> None:
        """End the actor's process, and the agent with it."""
        ray.kill(self._actor)

    def _carried(self, group: str, read: Any) -> IO[bytes]:
        """Return the reading end of a pipe that has what calls of `read` return."""
        reading, writing = os.pipe()
        again = read.options(concurrency_group=group)
        carry = (writing, lambda: ray.get(again.remote()))
        threading.Thread(target=self._read, args=carry, name=group, daemon=True).start()
        return os.fdopen(reading, "rb", 0 if group == "output" else -1)

    def _read(self, writing: int, following: Callable[[], bytes]) -> None:
        try:
            while data := following():
                while data:
                    data = data[os.write(writing, data) :]
        except ray.exceptions.RayError as error:
            self._lose(error)
        except OSError:
            pass  # nobody reads any more
        finally:
            os.close(writing)

    def _write(self, taken: int) -> None:
        options = {"concurrency_group": "input"}
        try:
            while data := os.read(taken, _PIECE):
                ray.get(self._actor.write.options(**options).remote(data))
            ray.get(self._actor.close_input.options(**options).remote())
        except ray.exceptions.RayActorError as error:
            self._lose(error)
        except (OSError, ray.exceptions.RayError):
            pass  # the agent has gone: how, its exit code says
        finally:
            os.close(taken)

    def _lose(self, error: BaseException) -> None:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        self.lost = self.lost or (lines[0] if lines else type(error).__name__)
