"""Execute notebooks, one after the other, each in a process of its own: `python -m sparsepipe.reproduce.execute`.

    this process ─fork─► papermill ─fork─► kernel      of one notebook; the next one's are forked when it has ended

A request comes as one line of JSON on stdin, which then stays open. What the notebook imports of this package is
imported here first, for all that follow: with it papermill's process and the kernel begin. When stdin closes, as its
owner ended for whatever reason, papermill is interrupted, and the kernel and all it started end.
On stdout comes a line of JSON for each cell that is begun, {"at": "cell 7 of 16, The runs"}, then the answer, then the
exit code of papermill's process, {"ended": 0}.

The kernel is forked early, while there is no thread, and waits to be told what jupyter_client would start it with.
"""

import ast
import gc
import json
import os
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..host.forked import Forked
from ..host.left_out import ADDRESSES, HADOOP, left_out
from ..host.python_path import this_python
from ..io.files import read_json

_PACKAGE = str(__package__).partition(".")[0]  # this file is also run as __main__

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
                provisioner: Any = self.provisioner  # whose class declares none of what is set here
                folder = options.get("cwd") or Path.cwd()
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

    from ..views import show_in

    sys.argv = [f"{_MODULE}.py", *arguments]
    app = kernelapp.IPKernelApp.instance()
    app.initialize()
    show_in(app.shell)  # sparsepipe may have been imported before there was a shell
    app.start()
    return 0


_INTERRUPTED = 130  # what a shell says of a process ended by SIGINT
_PATIENCE = 120  # seconds for a kernel to begin, and for a cell's outputs once it has ended: else they would be lost


def main() -> int:
    """Serve requests to the end of stdin; in a process that was forked for one, be that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell script puts in the background
    _bring_in_papermill()
    for line in iter(sys.stdin.readline, ""):
        request = json.loads(line)
        _bring_in_of(request["source"])
        process = os.fork()  # and no more: in the child Python ends as it does anywhere
        if process == 0:
            return _execute_one(**request)
        _, status = os.waitpid(process, 0)
        with suppress(BrokenPipeError):  # nobody is there any more
            _say({"ended": os.waitstatus_to_exitcode(status)})
    return 0


def _bring_in_papermill() -> None:
    gc.disable()  # what imports make stays: to search it for garbage takes a fifth of the start
    with warnings.catch_warnings(), left_out(ADDRESSES), left_out(HADOOP):  # no notebook has any, or is there
        warnings.simplefilter("ignore")  # papermill's own imports
        import papermill  # noqa: F401
    bring_in_kernel()


def _bring_in_of(source: str) -> None:
    gc.disable()
    bring_in(source)
    gc.freeze()  # nor is it written to in the forked processes, which have the memory in common
    gc.enable()


def _execute_one(*, environment: dict[str, str], log: str, **request: Any) -> int:
    """Execute a notebook with this environment, and complain in `log`. Returns the exit code."""
    os.environ.clear()
    os.environ.update(environment)
    errors = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.dup2(errors, 2)
    os.close(errors)
    kernel = WaitingKernel()  # forked now, as long as there is no thread
    warnings.simplefilter("ignore")
    threading.Thread(target=_end_with_owner, name="owner", daemon=True).start()
    try:
        answer = execute(**request, kernel=kernel)
    except KeyboardInterrupt:
        return _INTERRUPTED
    _say(answer)
    os._exit(1 if "error" in answer else 0)  # to take down all that was imported takes half a second


def _say(row: dict[str, Any]) -> None:
    print("\n" + json.dumps(row), flush=True)  # in a line of its own, whatever a kernel has left in one


def execute(
    source: str, target: str, *, parameters: dict[str, Any], folder: str, progress: bool, kernel: WaitingKernel
) -> dict[str, Any]:
    """Run the notebook `source` with `parameters` in `folder`, and keep the executed copy as `target`.

    All notebooks get the same parameters: one that this notebook does not have is left out. Returns {} or, where a cell
    failed, its number (from 1, as the notebook stands) and its error's one line.
    """
    import papermill

    known = papermill.inspect_notebook(source)
    given = {name: value for name, value in parameters.items() if name in known}
    try:
        papermill.execute_notebook(
            source,
            target,
            given,
            cwd=folder,
            kernel_name="python3",
            progress_bar=progress,
            log_output=False,
            start_timeout=_PATIENCE,
            iopub_timeout=_PATIENCE,  # this and what follows is handed on to nbclient
            on_cell_start=_Teller(source),
            kernel_manager_class=kernel.manager,
        )
    except papermill.PapermillExecutionError as error:
        injected = given and error.cell_index > _first_code_cell_after_parameters(source)
        return {"cell": error.cell_index + (0 if injected else 1), "error": f"{error.ename}: {error.evalue}"}
    return {}


class _Teller:
    """Prints which cell of a notebook begins, counted among those of code, and under which heading it stands."""

    def __init__(self, source: str) -> None:
        import nbformat

        cells = nbformat.read(source, as_version=4).cells
        self._number, self._of = 0, sum(cell.cell_type == "code" for cell in cells)
        self._heading = ""

    def __call__(self, cell: Any, cell_index: int) -> None:  # noqa: ANN401 - nbformat has no types
        if cell.cell_type == "markdown":
            heads = [line.lstrip("# ") for line in cell.source.splitlines() if line.startswith("## ")]
            self._heading = heads[-1] if heads else self._heading
        elif "injected-parameters" not in cell.metadata.get("tags", []):
            self._number += 1
            told = f"cell {self._number} of {self._of}"
            _say({"at": f"{told}, {self._heading}" if self._heading else told})


def _first_code_cell_after_parameters(source: str) -> int:
    """Where papermill puts the given parameters: behind the cell tagged so."""
    import nbformat

    tags = [cell.metadata.get("tags", []) for cell in nbformat.read(source, as_version=4).cells]
    return next((k + 1 for k, names in enumerate(tags) if "parameters" in names), 0)


def _end_with_owner() -> None:
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGINT)


def bring_in(source: str) -> None:
    """Import what the cells of a notebook name of this package; what cannot be imported its own cell will tell.

    What is not this package's is left to the notebook: a reader's own files may change between two notebooks.
    """
    for module, name in imports(source):
        with suppress(Exception):
            __import__(module, fromlist=[name] if name else [])


def imports(source: str) -> Iterator[tuple[str, str]]:
    """Yield modules of this package and names in them, "" for none, that a notebook's cells import or use."""
    short: dict[str, str] = {}  # what modules are called in the notebook
    for tree in _cells(source):
        for node in ast.walk(tree):
            match node:
                case ast.Import(names=names):
                    for each in names:
                        if _is_ours(each.name):
                            short[each.asname or each.name] = each.name
                            yield each.name, ""
                case ast.ImportFrom(module=str(module), names=names, level=0) if _is_ours(module):
                    yield from ((module, each.name) for each in names)
                case ast.Attribute(value=ast.Name(id=name), attr=attribute) if name in short:
                    yield short[name], attribute


def _cells(source: str) -> Iterator[ast.Module]:
    for cell in read_json(Path(source), what="notebook").get("cells", []):
        if cell["cell_type"] == "code":
            with suppress(SyntaxError):  # a cell of a magic
                yield ast.parse("".join(cell["source"]))


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == _PACKAGE


if __name__ == "__main__":
    sys.exit(main())
