"""Count the messages that each notebook sends a page (IOPub), with its panels shown as JupyterLab shows them.

    scripts/count_messages.py 05_partition 06_launch   # all of the walk, from an empty folder: a quarter of an hour

Notebooks run one after the other in a folder of their own. 200 messages a notebook are the aim.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from nbclient import NotebookClient  # noqa: E402
from nbclient.exceptions import CellExecutionError  # noqa: E402
from papermill.iorw import load_notebook_node  # noqa: E402
from papermill.parameterize import parameterize_notebook  # noqa: E402

from scripts.bench.scratch import scratch  # noqa: E402
from sparsepipe.study.catalogue import NOTEBOOKS, by_number, notebooks_folder, parameter_names  # noqa: E402


class Counting(NotebookClient):
    """Executes a notebook; `counts` are its kernel's messages by their kind."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.counts: Counter[str] = Counter()

    def process_message(self, msg: dict[str, Any], cell: Any, cell_index: int) -> Any:
        self.counts[msg["msg_type"]] += 1
        return super().process_message(msg, cell, cell_index)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebooks", nargs="*", help="all of the walk where none is named")
    names = parser.parse_args().notebooks or [name for name in by_number() if "/" not in name]
    if unknown := sorted(set(names) - set(NOTEBOOKS)):
        parser.error(f"{', '.join(unknown)}: no such notebook; there are {', '.join(by_number())}")
    ended = 0
    with scratch("count-messages") as root:
        for name in names:
            path = notebooks_folder() / f"{name}.ipynb"
            asked = {"root": str(root), "figures": str(root / "figures"), "headless": False}
            given = {name: value for name, value in asked.items() if name in parameter_names(path)}
            notebook = parameterize_notebook(load_notebook_node(str(path)), given)
            client = Counting(notebook, timeout=None, resources={"metadata": {"path": str(root)}})
            try:
                client.execute()
            except CellExecutionError as error:
                print(f"{name}: failed, and its messages are not all counted: {error}", file=sys.stderr)
                ended = 1
            kinds = ", ".join(f"{count} {kind}" for kind, count in client.counts.most_common())
            print(f"{name}: {sum(client.counts.values())} messages ({kinds})", flush=True)
    return ended


if __name__ == "__main__":
    sys.exit(main())
