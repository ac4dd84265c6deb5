"""Execute notebooks with papermill, each in a kernel of its own, which ends with this process however that ends."""

import os
import signal
import subprocess
import threading
import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..host.left_out import ADDRESSES, HADOOP, left_out
from ..host.python_path import python_environment

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
        known = papermill.inspect_notebook(source)
        given = {name: value for name, value in parameters.items() if name in known}
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
    """Where papermill puts the given parameters: behind the cell tagged so."""
    import nbformat

    tags = [cell.metadata.get("tags", []) for cell in nbformat.read(source, as_version=4).cells]
    return next((k + 1 for k, names in enumerate(tags) if "parameters" in names), 0)
