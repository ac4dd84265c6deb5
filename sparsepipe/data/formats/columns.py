"""Guess what unnamed columns mean (labels, colours, normals …) where their numbers leave one possibility, else ask."""

from pathlib import Path

import numpy as np

from ...errors import InputError
from .base import COLOUR, INTENSITY, LABEL, NORMAL, POSITION, are_shares

_FEW_ROWS = 3  # below, any column of whole numbers may count upwards
_MOST_CLASSES = 64  # different labels in one file, where colours are told from them
_LAYOUTS = {  # by their number: what follows x, y and z
    4: ((INTENSITY,), (LABEL,)),
    6: (NORMAL, COLOUR),
    7: ((*NORMAL, LABEL), (*COLOUR, LABEL), (INTENSITY, *COLOUR)),
}


def guessed_columns(path: Path, rows: np.ndarray, *, counted: bool = False) -> tuple[str, ...]:
    """Return the names of the columns of `rows` [P, C], three of them coordinates, first.

    Normals have unit length, colours are whole numbers to 255 or shares of 1, labels are whole numbers, and a column
    that counts the rows is none of these. A file `counted`, whose first line is its number of points, is a PTS: an
    intensity stands before its colours. Raises InputError that asks for names if no reading fits, or several do.
    """
    width = rows.shape[1]
    if width == 3:
        return POSITION
    sound = rows[np.isfinite(rows).all(axis=1)]
    if width not in _LAYOUTS or not len(sound) or _begins_with_another(sound):
        raise ask(path, width, "of unknown meaning")
    fits = [further for further in _LAYOUTS[width] if _fits(further, sound[:, 3:])]
    if fits == [(INTENSITY, *COLOUR)] and not counted and _may_not_be_intensity(sound[:, 3:]):
        fits = []
    if len(fits) > 1:
        fits = _likelier(fits, sound[:, 3:], counted=counted)
    if len(fits) == 1:
        return (*POSITION, *fits[0])
    could = " or ".join(" ".join((*POSITION, *further)) for further in fits)
    if width == 6 and not fits:
        raise ask(path, width, "of which 4 to 6 are neither normals nor colours")
    raise ask(path, width, f"that could be {could}" if fits else "of unknown meaning")


def ask(path: Path, width: int, why: str) -> InputError:
    """Return the line that asks a user to name the columns of rows of `width` numbers."""
    example = {5: '"intensity", "_"', 6: '"red", "green", "blue"', 7: '"intensity", "red", "green", "blue"'}
    further = example.get(width, '"intensity"' if width < 5 else '"intensity", "_", …')
    return InputError(
        "cloud.columns_unnamed",
        f"{path}: rows of {width} numbers {why}; name them in dataset.json, such as "
        f'"columns": ["x", "y", "z", {further}] ("_": unused column), or in the first line',
        width=width,
    )


def are_colours(columns: np.ndarray) -> bool:
    """Return whether three columns [P, 3] are colours: whole numbers to 255 of which none is a class, or shares of 1
    each.
    """
    if ((columns >= 0) & (columns <= 1)).all():
        return all(are_shares(column) for column in columns.T) and not are_normals(columns)
    if not (_whole(columns) and columns.min() >= 0 and columns.max() <= 255):
        return False
    return not any(_is_class_beside(column, columns, times=4) for column in columns.T)


def are_normals(columns: np.ndarray) -> bool:
    """Return whether the rows of three columns [P, 3] have unit length; some may be 0, if a normal could not be
    found.
    """
    if np.abs(columns).max() > 1.02:
        return False
    lengths = np.linalg.norm(columns, axis=1)
    unit = np.abs(lengths - 1) < 0.02
    return bool((unit | (lengths == 0)).all() and 2 * unit.sum() >= len(lengths))


def _fits(further: tuple[str, ...], columns: np.ndarray) -> bool:
    """Return whether the columns after x, y and z can be these."""
    place = 0
    while place < len(further):
        name = further[place]
        if name == NORMAL[0]:
            fits, place = are_normals(columns[:, place : place + 3]), place + 3
        elif name == COLOUR[0]:
            fits, place = are_colours(columns[:, place : place + 3]), place + 3
        else:
            fits, place = _fits_alone(name, columns[:, place], further), place + 1
        if not fits:
            return False
    return True


def _fits_alone(name: str, column: np.ndarray, further: tuple[str, ...]) -> bool:
    """Return whether a column can be labels or intensities. What speaks for no label is said of the label, not of
    normals.
    """
    if NORMAL[0] in further:
        return True
    if _counts_rows(column):
        return False
    if name == LABEL:
        return _whole(column)  # below 0 too: such may be declared to be none
    return len(further) > 1 or column.min() >= 0 or _whole(column)


def _likelier(fits: list[tuple[str, ...]], columns: np.ndarray, *, counted: bool) -> list[tuple[str, ...]]:
    """Leave one of several readings where the numbers speak clearly for it."""
    if NORMAL[0] in fits[0]:
        return fits[:1]  # every row of unit length is no chance
    if fits[0] != (*COLOUR, LABEL):
        return fits
    classes = all(_is_class_beside(columns[:, 3], columns[:, [place]], times=2) for place in range(3))
    if counted != classes:  # one of the two speaks: few labels beside many colours, or the first line of a PTS
        return fits[:1] if classes else fits[1:]
    return fits


def _may_not_be_intensity(columns: np.ndarray) -> bool:
    """Return whether what stands before three colours may be a class, or all four red, green, blue and alpha."""
    shares = ((columns >= 0) & (columns <= 1)).all()
    return bool(shares) or _is_class_beside(columns[:, 0], columns[:, 1:], times=2)


def _is_class_beside(column: np.ndarray, others: np.ndarray, *, times: int) -> bool:
    """Return whether a column is rather a class: it has few different whole numbers, and the other column many more."""
    distinct = len(np.unique(column))
    few = distinct <= _MOST_CLASSES and len(column) >= 8 * distinct and _whole(column) and column.min() >= 0
    return bool(few) and max(len(np.unique(other)) for other in others.T) > times * distinct


def _begins_with_another(rows: np.ndarray) -> bool:
    """Return whether the first column is no coordinate: it counts the rows, or is alone of the three in being whole."""
    if len(rows) < _FEW_ROWS:
        return False
    others = not _whole(rows[:, 1]) and not _whole(rows[:, 2])
    return _counts_rows(rows[:, 0]) or (_whole(rows[:, 0]) and others)


def _counts_rows(column: np.ndarray) -> bool:
    return len(column) >= _FEW_ROWS and _whole(column) and bool((np.diff(column) == 1).all())


def _whole(column: np.ndarray) -> bool:
    return bool((column == np.floor(column)).all())
