"""What each pipeline measured, put together: how busy the stages of all were in an epoch and in the run, and the load.

Stages and ranks come with their numbers among those of all pipelines, as in the plan's file and in the run's trace.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ...host.background_load import BackgroundLoad, worst


class Measured:
    """Rows of epochs that the record has not been told of yet, and the latest of the run so far, of each pipeline."""

    def __init__(self) -> None:
        self._epochs: dict[int, dict[int, dict[str, Any]]] = {}  # epoch → pipeline → of its longest part
        self._run: dict[int, Mapping[str, Any]] = {}  # pipeline → over all that it trained

    def add(self, pipeline: int, epoch: int, row: Mapping[str, Any]) -> None:
        """Take what a pipeline measured of a part of an epoch ("trained" minibatches), and of the run up to it.

        Of several parts of an epoch the longest tells of its stages; bytes are added up.
        """
        own = self._epochs.setdefault(epoch, {})
        before = own.get(pipeline, {"trained": -1, "sent_bytes": 0})
        kept = dict(row if row["trained"] >= before["trained"] else before)
        own[pipeline] = kept | {"sent_bytes": before["sent_bytes"] + row["sent_bytes"]}
        self._run[pipeline] = row["run"]

    def take_epoch(self, epoch: int) -> dict[str, Any]:
        """Return the fields of an epoch's row that all pipelines which trained on it measured, and forget them."""
        rows = _in_order(self._epochs.pop(epoch, {}))
        if not rows:
            return {"stages": []}
        return {**_together(rows), "sent_bytes": sum(row["sent_bytes"] for row in rows)}

    def of_run(self) -> dict[str, Any]:
        """Return the fields of the run's summary that all pipelines measured; none where nothing was trained."""
        rows = _in_order(self._run)
        engines = "+".join(dict.fromkeys(row["engine"] for row in rows))
        return {"engine": engines, **_together(rows)} if rows else {}


def _in_order(rows: Mapping[int, Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [rows[pipeline] for pipeline in sorted(rows)]


def _together(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "stages": [stage for row in rows for stage in row["stages"]],
        "load": worst(BackgroundLoad.from_json(row["load"]) for row in rows).to_json(),
    }
