"""An actor of Ray that has an agent on its node: a process whose three pipes are read and written by calls.

Ray takes this class to its nodes by value, with the standard library alone, so that a node without this package says
so in the words of Python. Calls of one concurrency group are done in their order, and each group has its own thread.
"""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

GROUPS = {"input": 1, "output": 1, "errors": 1, "end": 1}
_PIECE = 2**16  # bytes: what a pipe holds, and what Ray sends with a call's answer
# Ray kills a worker's children with it. The agent is a grandchild: it ends by itself, and removes what it made.
_APART = '"$@"; exit $?'
_OF_OTHERS = ("RAY_", "SPARSEPIPE_LIFELINE")  # beginnings of variables that say nothing to the agent


class AgentActor:
    """Starts `python` with these words. When the actor's process ends, so does the agent's input, and the agent."""

    def __init__(self, words: Sequence[str], environment: Mapping[str, str], folder: str | None) -> None:
        """`folder`: the agent's current one; None is the actor's."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(_OF_OTHERS)}
        command = [sys.executable, "-P", *words]
        self._process = subprocess.Popen(
            ["sh", "-c", _APART, "sh", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
            cwd=folder,
            env={**inherited, **environment},
        )

    def write(self, data: bytes) -> None:
        """Write all of it to the agent's input. Raises OSError if the agent has gone."""
        assert self._process.stdin is not None
        while data:
            data = data[os.write(self._process.stdin.fileno(), data) :]

    def close_input(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    def read(self) -> bytes:
        """Return what the agent says next, b"" at the end."""
        assert self._process.stdout is not None
        return os.read(self._process.stdout.fileno(), _PIECE)

    def read_errors(self) -> bytes:
        assert self._process.stderr is not None
        return os.read(self._process.stderr.fileno(), _PIECE)

    def wait(self) -> int:
        """Wait for the agent's end; return its exit code."""
        return self._process.wait()


def answer() -> None:
    """Say by returning that tasks are done on the node."""


def own_gpu() -> str:
    """Return the GPU that Ray has given to the task that this is."""
    return os.environ["CUDA_VISIBLE_DEVICES"]
