"""Which of several pipelines died and trained again while the others went on, by what the run's record says of them."""

from collections.abc import Iterator
from pathlib import Path

from ..display.counting import number_of
from ..io.files import read_rows
from ..runtime.pipelines.changes import MINIBATCHES


def rejoined(folder: Path) -> Iterator[str]:
    """Yield a line for each time that a pipeline came back, since the run began or was last resumed."""
    path = folder / MINIBATCHES
    left: dict[int, float] = {}  # pipeline → when it died, until it has come back
    trained: dict[int, int] = {}  # minibatches that the others have done since
    told: list[str] = []
    for row in read_rows(path) if path.exists() else []:
        event, pipeline = row["event"], row.get("pipeline", -1)
        if event == "resume":
            left, trained, told = {}, {}, []
        elif event == "left":
            left.setdefault(pipeline, row["seconds"])
            trained.setdefault(pipeline, 0)
        elif event == "done":
            trained = {k: count + len(row["minibatches"]) for k, count in trained.items()}
        elif event == "joined" and pipeline in left:
            died, count = left.pop(pipeline), trained.pop(pipeline)
            told.append(
                f"pipeline {pipeline}: died {died:.1f} s after the run began and trained again from "
                f"{row['seconds']:.1f} s on; the others did {number_of(count, 'minibatch')} meanwhile"
            )
    yield from told
