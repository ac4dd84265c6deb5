"""How a figure is printed: as wide as a column, as high as its neighbours, in the page's font, with a title or not."""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import plotly.graph_objects as go

from ...errors import InputError
from ...records import PAPER
from ...util.io.fields import shown
from .marks import width_of
from .theme import FONT, FONT_SIZE, TEMPLATE, doubted, doubts_of, in_place, legend_is_above, title_of

# Inches of a column and of the text of common venues: what a PDF's width is chosen from.
COLUMN_WIDTHS = {"IEEE": (3.5, 7.16), "ACM": (3.33, 7.0), "ICML": (3.25, 6.75), "NeurIPS": (5.5,), "LNCS": (4.8,)}
INCHES = 7.0  # the text of a page with two columns, where nothing else is asked for
_CSS_INCH = 96  # pixels
_SMALLEST = 0.7  # a figure is drawn no smaller: its 13 pixels are then 6.8 points
_BESIDE_TITLE, _BOLD = 28, 1.12  # pixels left and right of a title; width of bold letters
_BARE, _BARE_ABOVE = 16, 44  # pixels over a plot without a title: alone, and with a legend or panels' titles there


@dataclass(frozen=True)
class Paper:
    """Describe how figures are printed: the same `Paper` for several figures gives them one size.

    Attributes:
        inches: Width of the PDF in inches, 2 to 20.
        height: Height of the PDF in inches, 1 to 20. Default: by the figure's shape.
        title: Whether the title is drawn. Captions may carry it; notes on unreliable measurements always stay.
        font: An installed font family, such as "Times New Roman" or "serif". Default: the figures' font.

    Raises:
        InputError: A width or height outside its range.

    Example:
        >>> column = sp.plots.Paper(inches=3.5, title=False)
        >>> column.inches
        3.5

    See also:
        guides/figures_for_a_paper, `plots.export`
    """

    inches: float = INCHES
    height: float | None = None
    title: bool = True
    font: str | None = None

    def __post_init__(self) -> None:
        if not 2 <= self.inches <= 20:
            told = ", ".join(f"{name} {' or '.join(map(str, widths))}" for name, widths in COLUMN_WIDTHS.items())
            raise InputError("paper.width", f"figure width {self.inches:g} inches: expected 2 to 20 ({told})")
        if self.height is not None and not 1 <= self.height <= 20:
            raise InputError("paper.height", f"figure height {self.height:g} inches: expected 1 to 20")

    @classmethod
    def asked(cls) -> "Paper":
        """Return the paper of the batch that runs this notebook; outside of a batch the default. Raises InputError."""
        given = os.environ.get(PAPER)
        try:
            return cls(**json.loads(given)) if given else cls()
        except (ValueError, TypeError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(
                "paper.malformed", f"{PAPER} is {shown(given)}: expected JSON such as {json.dumps(cls().to_json())}"
            ) from None

    def doubt(self) -> str:
        """Sentence about a font that is not installed, which is replaced by the figures' own.

        Empty if it is installed.
        """
        family = (self.font or "").split(",")[0].strip()
        generic = ("", "serif", "sans-serif", "monospace")
        if family in generic or (fonts := shutil.which("fc-list")) is None:
            return ""
        # A hyphen and a colon mean something in a pattern of fontconfig's.
        pattern = ":family=" + "".join(f"\\{letter}" if letter in "\\-:," else letter for letter in family)
        there = subprocess.run([fonts, "-q", pattern], capture_output=True, check=False).returncode == 0
        return "" if there else f"font {family!r} is not installed: the figures' default font is used"

    def to_json(self) -> Mapping[str, float | bool | str | None]:
        """Return the JSON that `asked` reads."""
        return asdict(self)

    def styled(self, figure: go.Figure) -> go.Figure:
        """Return the figure with this font, and without a title if `title` is false."""
        if self.font:
            figure = go.Figure(figure).update_layout(font={"family": f"{self.font}, {FONT}"})
        return figure if self.title else _untitled(figure)

    def printed(self, figure: go.Figure, doubts: Sequence[str] = ()) -> tuple[go.Figure, float]:
        """Return (the figure, the scale to draw it at) for this page, with a badge if it is doubtful.

        Text has at least about 7 points. A figure that is too wide for this is laid out narrower, with its legend
        below.
        """
        figure, scale = _fitted(figure, self.inches)
        title = title_of(figure).partition("<br>")[0].striptags()
        room = (figure.layout.width - _BESIDE_TITLE) / (_BOLD * width_of(title)) if title else FONT_SIZE
        if room < FONT_SIZE + 2:  # it stays in one line
            figure = go.Figure(figure).update_layout(title_font_size=room)
        if self.height is not None:
            badge = doubted(figure, doubts).layout.height - figure.layout.height  # it comes on top
            figure = go.Figure(figure).update_layout(height=self.height * _CSS_INCH / scale - badge)
        return doubted(figure, doubts), scale


def _fitted(figure: go.Figure, inches: float) -> tuple[go.Figure, float]:
    scale = inches * _CSS_INCH / figure.layout.width
    if scale >= _SMALLEST:
        return figure, scale
    below = {"orientation": "h", "x": 0, "xanchor": "left", "y": 0, "yref": "container", "yanchor": "bottom"}
    width = round(inches * _CSS_INCH / _SMALLEST)
    figure = in_place(figure, width)
    narrow = go.Figure(figure).update_layout(width=width, legend=below)
    rows = -(-sum(trace.showlegend is not False for trace in figure.data) // 2)
    margin = (figure.layout.margin.b or 56) + (18 * rows if figure.layout.showlegend is not False else 0)
    return narrow.update_layout(margin={"b": margin, "r": 24}, height=figure.layout.height + 18 * rows), _SMALLEST


def _untitled(figure: go.Figure) -> go.Figure:
    """The figure without its title and note, lower by what they took."""
    bare = go.Figure(figure)
    bare.layout.meta = None
    had = bare.layout.margin.t if bare.layout.margin.t is not None else TEMPLATE.layout.margin.t
    keeps = min(had, _BARE_ABOVE if legend_is_above(figure) else _BARE)
    meta = {"doubts": list(doubts_of(figure))}  # whose lines went with the title
    height = bare.layout.height - (had - keeps)
    return bare.update_layout(title={"text": ""}, margin={"t": keeps}, height=height, meta=meta, overwrite=False)
