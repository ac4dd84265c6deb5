"""Tall pictures in columns side by side, small ones in rows: sheets that a screen shows whole."""

from collections.abc import Sequence
from pathlib import Path

from PIL import Image

COLUMN, TALL, GAP = 770, 1540, 10  # pixels: of a column, of a sheet, between columns
GROUND = "#7a7a7a"


def columns(picture: Path, stem: Path, *, per_sheet: int = 2) -> list[Path]:
    """Write a tall picture as sheets of columns, read from left to right; returns their paths."""
    with Image.open(picture) as whole:
        scale = min(1.0, COLUMN / whole.width)
        small = whole.convert("RGB").resize((round(whole.width * scale), max(1, round(whole.height * scale))))
    pieces = [small.crop((0, top, small.width, min(top + TALL, small.height))) for top in range(0, small.height, TALL)]
    written = []
    for k in range(0, len(pieces), per_sheet):
        own = pieces[k : k + per_sheet]
        sheet = Image.new("RGB", (len(own) * (small.width + GAP) - GAP, max(piece.height for piece in own)), GROUND)
        for place, piece in enumerate(own):
            sheet.paste(piece, (place * (small.width + GAP), 0))
        written.append(_save(sheet, stem, k // per_sheet))
    return written


def rows(pictures: Sequence[Path], stem: Path, *, across: int = 2) -> list[Path]:
    """Write small pictures side by side and below each other, as many as go on a sheet; returns their paths."""
    written, sheet, x, y, low = [], Image.new("RGB", (across * (COLUMN + GAP), TALL), GROUND), 0, 0, 0
    for path in pictures:
        with Image.open(path) as one:
            picture = one.convert("RGB")
            picture.thumbnail((COLUMN, TALL))
        if x + picture.width > sheet.width:
            x, y = 0, low + GAP
        if y + picture.height > TALL:
            written.append(_save(sheet, stem, len(written)))
            sheet, x, y, low = Image.new("RGB", sheet.size, GROUND), 0, 0, 0
        sheet.paste(picture, (x, y))
        x, low = x + picture.width + GAP, max(low, y + picture.height)
    if pictures:
        written.append(_save(sheet, stem, len(written)))
    return written


def _save(sheet: Image.Image, stem: Path, number: int) -> Path:
    path = stem.with_name(f"{stem.name}-{number}.png")
    sheet.save(path)
    return path
