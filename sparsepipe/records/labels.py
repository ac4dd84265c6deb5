"""What a user writes about a run: tags and a note, in a file of their own alongside what the run wrote."""

from dataclasses import dataclass
from pathlib import Path

from ..errors import DamagedRecord, InputError
from ..util.io.fields import texts
from ..util.io.files import read_json, write_json

FILE = "labels.json"
_MOST = 10_000  # characters of a note


@dataclass(frozen=True)
class Labels:
    """Short words to find a run by, and a sentence on it."""

    tags: tuple[str, ...] = ()
    note: str = ""

    @classmethod
    def of(cls, folder: Path) -> "Labels":
        """Read those of a run's folder; none if nothing was written. Raises DamagedRecord for a damaged file."""
        path = folder / FILE
        if not path.exists():
            return cls()
        try:
            document = read_json(path, what="run's labels")
            if not isinstance(document, dict) or not isinstance(document.get("note", ""), str):
                raise InputError("labels.not_tags", f"{path}: expected an object with tags and a note")
            return cls(tuple(texts(document.get("tags", []), f"{path}: tags")), document.get("note", ""))
        except InputError as error:
            raise DamagedRecord(error.code, str(error), **error.fields) from None

    @classmethod
    def read(cls, tags: str, note: str) -> "Labels":
        """Take what was typed: tags with commas or spaces between. Raises InputError for a note that is too long."""
        if len(note) > _MOST:
            raise InputError("labels.note_too_long", f"the note has {len(note)} characters, expected at most {_MOST}")
        return cls(tuple(dict.fromkeys(tags.replace(",", " ").split())), " ".join(note.split()))

    def write(self, folder: Path) -> None:
        """Write them alongside what the run wrote."""
        write_json(folder / FILE, {"tags": list(self.tags), "note": self.note}, make_folder=False)
