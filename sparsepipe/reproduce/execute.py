"""Execute one notebook in a process of its own: `python -m sparsepipe.reproduce.execute`.

A request comes as one line of JSON on stdin, which then stays open. When it closes, as its owner ended for whatever
reason, papermill is interrupted, and the kernel and all it started end. On stdout comes a line of JSON for each cell
that is begun, {"at": "cell 7 of 16, The runs"}, and then the answer.
"""

import json
import os
import signal
import sys
import threading
import warnings
from typing import Any

from ..host.left_out import ADDRESSES, HADOOP, left_out

_INTERRUPTED = 130  # what a shell says of a process ended by SIGINT


def main() -> int:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell script puts in the background
    request = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_owner, name="owner", daemon=True).start()
    try:
        answer = execute(**request)
    except KeyboardInterrupt:
        return _INTERRUPTED
    print(json.dumps(answer), flush=True)
    return 1 if "error" in answer else 0


def execute(source: str, target: str, *, parameters: dict[str, Any], folder: str, progress: bool) -> dict[str, Any]:
    """Run the notebook `source` with `parameters` in `folder`, and keep the executed copy as `target`.

    All notebooks get the same parameters: one that this notebook does not have is left out. Returns {} or, where a cell
    failed, its number (from 1, as the notebook stands) and its error's one line.
    """
    with warnings.catch_warnings(), left_out(ADDRESSES), left_out(HADOOP):  # no notebook has any, or is there
        warnings.simplefilter("ignore")  # papermill's own imports
        import papermill

    known = papermill.inspect_notebook(source)
    given = {name: value for name, value in parameters.items() if name in known}
    options = {"kernel_name": "python3", "progress_bar": progress, "log_output": False}
    options["on_cell_start"] = _Teller(source)  # papermill hands it to nbclient
    try:
        papermill.execute_notebook(source, target, given, cwd=folder, **options)
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

    def __call__(self, cell: Any, cell_index: int) -> None:
        if cell.cell_type == "markdown":
            heads = [line.lstrip("# ") for line in cell.source.splitlines() if line.startswith("## ")]
            self._heading = heads[-1] if heads else self._heading
        elif "injected-parameters" not in cell.metadata.get("tags", []):
            self._number += 1
            told = f"cell {self._number} of {self._of}"
            print(json.dumps({"at": f"{told}, {self._heading}" if self._heading else told}), flush=True)


def _first_code_cell_after_parameters(source: str) -> int:
    """Where papermill puts the given parameters: behind the cell tagged so."""
    import nbformat

    tags = [cell.metadata.get("tags", []) for cell in nbformat.read(source, as_version=4).cells]
    return next((k + 1 for k, names in enumerate(tags) if "parameters" in names), 0)


def _end_with_owner() -> None:
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGINT)


if __name__ == "__main__":
    sys.exit(main())
