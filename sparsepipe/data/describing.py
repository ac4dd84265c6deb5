"""Describe and check a data set, whatever its samples are: clouds, or examples (images, texts, one's own)."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..util.text.counting import number_of
from . import folder
from .examples import is_examples
from .layouts.base import COMPANION_SUFFIXES, UNREAD, DataFolder
from .sources import find

if TYPE_CHECKING:
    from .examples.inspection import ExampleReport
    from .inspection import Report


def info(source: Path | str, **options: Any) -> dict[str, Any]:
    """Describe a data set by its folder, its manifest's name or a function of one's own, ready for JSON.

    Of clouds: see `folder.info`, nothing is read. Of examples: see `examples.inspection.info`, which has `options`.
    """
    if is_examples(source):
        from .examples import inspection  # here: it waits for torch

        return inspection.info(source, **options)
    return folder.info(find(source), **options)


def check(
    source: Path | str, *, progress: Callable[[str], None] | None = None, **options: Any
) -> "Report | ExampleReport":
    """Read every sample of a data set once and report what would stop a run.

    Of clouds: see `inspection.check`, of examples `examples.inspection.check`, for their `options`.
    """
    if is_examples(source):
        from .examples import inspection as of_examples  # here: it waits for torch

        return of_examples.check(source, progress=progress, **options)
    from . import inspection

    return inspection.check(find(source), progress=progress, **options)


def unread_files(source: Path | str, opened: Callable[[Path | str], DataFolder] = folder.open_folder) -> Iterator[str]:
    """Yield a line for files among the samples of a folder that are of no format that is read, and are no samples.

    `opened`: returns the folder's files, where somebody has listed them before.
    """
    if not Path(source).is_dir() or is_examples(source):
        return
    for entry in opened(source).left_out:
        if entry.why == UNREAD and Path(entry.path).suffix.lower() not in COMPANION_SUFFIXES:
            yield (
                f"{Path(source) / entry.path}: {number_of(entry.files, 'file')} {UNREAD}, skipped; `sparsepipe data "
                "info` lists the skipped files"
            )
