"""Whether the files of a split are all there: what a run asks before it begins."""

import os
from collections.abc import Iterable
from pathlib import Path

from ..errors import InputError
from ..util.text.counting import number_of


def look_at(files: Iterable[Path], split: str) -> None:
    """Raise InputError if a file is empty or cannot be read, without reading any."""
    bad = []
    for path in dict.fromkeys(files):
        try:
            problem = "" if path.stat().st_size else "is empty"
            problem = problem or ("" if os.access(path, os.R_OK) else "cannot be read (no permission)")
        except OSError as error:
            problem = f"cannot be read ({error.strerror})"
        if problem:
            bad.append(f"{path}: {problem}")
    if bad:
        more = (
            f" and {number_of(len(bad) - 1, 'more file')} {'is' if len(bad) == 2 else 'are'} so" if len(bad) > 1 else ""
        )
        raise InputError(
            "dataset.files_faulty",
            f"{bad[0]}{more}, in split {split}; repair or remove the files that `sparsepipe data check` lists",
            split=split,
        )
