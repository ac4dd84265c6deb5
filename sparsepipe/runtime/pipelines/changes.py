"""What has changed in a run of several pipelines: how often, and the rows of its record that tell of it."""

from typing import Any

MINIBATCHES, MERGES, METRICS = "minibatches.jsonl", "merges.jsonl", "metrics.jsonl"
REPLAN = "replan"  # the event of a pipeline that goes on under another plan


class Changes:
    """Shared by all parts of a state. `now` is the time of what is asked, in seconds since the run began."""

    def __init__(self) -> None:
        self.version = 0
        self.now = 0.0
        self.rows: list[tuple[str, dict[str, Any]]] = []  # (file, row) since somebody took them out

    def note(self) -> None:
        """Something has changed."""
        self.version += 1

    def row(self, file: str, event: str, /, **facts: Any) -> None:
        """Something has changed that a file of the record describes, now."""
        self.version += 1
        facts = {key: value for key, value in facts.items() if key not in ("event", "seconds")}
        self.rows.append((file, {"event": event, "seconds": round(self.now, 6), **facts}))
