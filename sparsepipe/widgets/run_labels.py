"""Tags and a note for the marked runs, typed and kept beside their records."""

from collections.abc import Callable, Sequence
from pathlib import Path

from ..errors import DamagedRecord, InputError
from ..record import RunRecord
from ..record.labels import Labels
from . import looks
from .messages import Messages


class RunLabels:
    """Two fields and a button, which writes them for `chosen`; then `changed` is called."""

    def __init__(
        self, messages: Messages, chosen: Callable[[], Sequence[RunRecord]], changed: Callable[[], None]
    ) -> None:
        self.chosen, self.changed = chosen, changed
        self.tags = looks.Text(
            description="tags", placeholder="words to find a run by", layout={"width": "240px"}, style=looks.OWN_WIDTH
        )
        self.tags.tooltip = "words with spaces or commas between, which the filter finds"
        self.note = looks.Text(
            description="note", placeholder="a sentence on it", layout={"width": "360px"}, style=looks.OWN_WIDTH
        )
        self.note.tooltip = "stands beside the run in the list, and is kept in its folder"
        self.button = looks.Button(
            description="write labels", icon="tag", tooltip="keep tags and note beside the marked runs"
        )
        self.button.on_click(messages.shown(lambda _: self.write()))
        self.widget = looks.HBox([self.tags, self.note, self.button], layout={"flex_flow": "row wrap"})

    def show(self, folders: Sequence[Path]) -> None:
        """Show what the marked runs have, where all have the same."""
        try:
            found = {Labels.of(folder) for folder in folders}
        except DamagedRecord:
            found = set()
        own = found.pop() if len(found) == 1 else Labels()
        self.tags.value, self.note.value = " ".join(own.tags), own.note

    def write(self) -> None:
        """Keep what is typed with every marked run. Raises InputError where none is marked, or it cannot be written."""
        labels = Labels.read(self.tags.value, self.note.value)
        for record in self.chosen():
            try:
                labels.write(record.folder)
            except OSError as error:
                raise InputError(f"{record.folder}: its labels cannot be written ({error.strerror})") from None
        self.changed()
