"""A notebook's kernel that is forked from a process which has imported what it needs, instead of starting anew.

The kernel is forked early, while there is no thread, and waits to be told what jupyter_client would start it with.
"""

import json
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..host.forked import Forked
from ..host.python_path import this_python

_MODULE = "ipykernel_launcher"
_MOST_BYTES = 2**20  # of a request: an environment, mostly


def bring_in_kernel() -> None:
    """Import what a kernel of Python is made of."""
    import ipykernel.kernelapp  # noqa: F401


class KernelProcess(Forked):
    """The kernel, as jupyter_client looks after a `subprocess.Popen`."""

    stdin = stdout = stderr = None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


class WaitingKernel:
    """A process that waits to become the kernel of the one notebook that this process executes."""

    def __init__(self) -> None:
        """Fork it. The child does not return from here: it ends with SystemExit, as a kernel does."""
        own, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._pid, self._end = os.fork(), own
        if self._pid == 0:
            os.setsid()  # with all that it will start
            own.close()
            with its:
                told = its.recv(_MOST_BYTES)
            raise SystemExit(_be_kernel(**json.loads(told)) if told else 0)  # without a word: nobody is there any more
        its.close()

    @property
    def manager(self) -> type:
        """The kernel manager that nbclient is to use."""
        from jupyter_client.manager import AsyncKernelManager

        waiting = self

        class Manager(AsyncKernelManager):
            async def _async_launch_kernel(self, kernel_cmd: list[str], **options: Any) -> None:
                """Have the waiting process be the kernel (the method that jupyter_client has overridden for that)."""
                if kernel_cmd[0] != this_python() or _MODULE not in kernel_cmd:  # another Python's, or language's
                    await super()._async_launch_kernel(kernel_cmd, **options)
                    return
                provisioner, folder = self.provisioner, options.get("cwd") or Path.cwd()
                process = waiting._begin(kernel_cmd, options["env"], folder)
                provisioner.process, provisioner.cwd = process, folder
                provisioner.pid = provisioner.pgid = process.pid
                self._reconcile_connection_info(provisioner.connection_info)

        return Manager

    def _begin(self, command: Sequence[str], environment: dict[str, str], folder: Path | str) -> KernelProcess:
        arguments = [*command[command.index(_MODULE) + 1 :], f"--IPKernelApp.parent_handle={os.getpid()}"]
        request = {"arguments": arguments, "environment": environment, "folder": str(folder)}
        with self._end:
            self._end.send(json.dumps(request).encode())
        return KernelProcess(self._pid)


def _be_kernel(arguments: list[str], environment: dict[str, str], folder: str) -> int:
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    from ipykernel import kernelapp

    sys.argv = [f"{_MODULE}.py", *arguments]
    kernelapp.launch_new_instance()
    return 0
