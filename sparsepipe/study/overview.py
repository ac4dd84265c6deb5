"""What is there already, for a notebook to begin with: data, profiles, runs, figures, and the loop in one picture."""

import base64
import io
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ..data.folder import open_folder
from ..errors import InputError
from ..records import RunRecord
from ..util.io.fields import integer
from ..util.io.files import expanded
from ..util.text.numbers import as_given, as_measured, number_of, voxel_size_text
from ..values.profile import Profile
from ..views import Table, table_html
from ..views.colors import STAGE_COLORS, work_color
from ..views.markup import Html, joined, markdown_text
from ..views.plots.dark import GROUND, LIT, LIT_POINTS, LIT_TEXT
from ..views.plots.table import strategy
from ..views.plots.theme import RUN_COLORS
from . import catalogue
from .page import PAGE
from .workplace import checkout

_SIZE = (360, 240)  # pixels
_STYLE = 20_000  # letters in which an SVG's style ends
_WHITE = np.ones(3)
_SAME = 0.02  # of each part of a colour
_CLOSE = 0.06  # of colours from 0 to 1: a pixel that is farther from a colour on white is of a scale, and stays
# JupyterLab's theme decides, also one that is chosen after the cell has run. Where the style is taken away, as from a
# notebook that is not trusted, what the second picture says itself hides it.
STYLE = Html(
    "<style>[data-jp-theme-light=false] .sp-thumbnail .sp-on-white {display: none}"
    "[data-jp-theme-light=false] .sp-thumbnail .sp-on-black {display: inline !important}</style>"
)
# The second in other quotes: exported pages put the figure's SVG in place of the first alone (page.py).
_PICTURES = Html(
    "<img class='sp-on-white' src='{}' alt='{}' width='200' style='border-radius:4px'>"
    '<img class="sp-on-black" src="{}" alt="{}" width="200" style="border-radius:4px;display:none">'
)
# Of stages that are not grey: edges of ink are.
_LIGHT = [work_color(k, kind) for k in range(len(STAGE_COLORS)) for kind in ("forward", "weights")]
_STAY = {color: color for color in (*STAGE_COLORS, *RUN_COLORS) if color not in LIT}

_LOOP = (  # what happens, what it leaves, and the notebook that does it
    ("idea", "a pipeline in five pictures", "01_pipelines"),
    ("data", "point clouds, images, texts", "02_data"),
    ("profile", "seconds and bytes of each layer", "03_profile"),
    ("layer graph", "where it can be cut", "04_layer_graph"),
    ("plan, simulate", "which stage on which device", "05_partition"),
    ("launch, compare", "real processes, a record", "06_launch"),
)
_NEWEST = 10  # rows of a table, unless asked for others
_BOX = "border:1px solid currentColor;border-radius:6px;padding:8px 12px;margin:4px 0;min-width:8em"


@dataclass(frozen=True)
class Overview:
    """Show the contents of `root` (`work/`, `runs/`) and of `figures`. Each table shows itself in a notebook."""

    root: Path
    figures: Path
    rows: int = _NEWEST  # of a table at most, the newest; 0: all

    @classmethod
    def open(cls, root: str | Path = "", *, figures: str | Path = "", rows: int = _NEWEST) -> "Overview":
        """Read a folder. Default: that of the checkout, or the current one. Nothing is written.

        `rows` is the maximum length of each table, with the newest rows; 0: all. Raises InputError for a negative
        number.
        """
        integer(rows, "rows", least=0)
        root_path = (expanded(root) if root else checkout() or Path.cwd()).resolve()
        return cls(root_path, expanded(figures).resolve() if figures else root_path / "figures", rows)

    @property
    def loop(self) -> "ShownHtml":
        """Workflow in one picture. Each step links to its notebook."""
        arrow = Html("<div style='align-self:center' aria-hidden='true'>➜</div>")
        boxes = [
            Html("<div style='{}'><a href='{}.ipynb'><b>{}</b></a><br><small>{}</small></div>").format(
                _BOX, notebook, what, leaves
            )
            for what, leaves, notebook in _LOOP
        ]
        steps = arrow.join(boxes)
        text = "↻ 06 compares measurement and prediction; if they differ, profile and plan again"
        whole = Html("<div style='display:flex;flex-wrap:wrap;gap:4px 8px'>{}</div><div><small>{}</small></div>")
        return ShownHtml(whole.format(steps, text))

    @property
    def data(self) -> "ShownHtml":
        """Generated and prepared data sets, the newest first."""
        folders = (path for path in self.root.glob("work/data/*") if path.is_dir())
        head = ("data", "classes", "training samples", "folder")
        return self._table(head, folders, _of_data, "no data yet: 02_data makes some")

    @property
    def profiles(self) -> "ShownHtml":
        """Measured profiles, the newest first."""
        head = ("model", "device types", "measured with", "ms per minibatch", "measured", "doubtful")
        paths = self.root.glob("work/profiles/*.json")
        return self._table(head, paths, _of_profile, "no profile yet: 03_profile measures one", counted=" files")

    @property
    def runs(self) -> "ShownHtml":
        """Launched runs, the newest first."""
        folders = (path.parent for path in self.root.glob("runs/*/plan.json"))
        head = ("run", "state", "model", "strategy", "samples/s", "validation accuracy", "started")
        also = Html(", and so do <code>sparsepipe runs list</code> and the table of <a href='{}'>06</a>").format(
            "06_launch.ipynb"
        )
        return self._table(head, folders, _of_run, "no run yet: 06_launch trains three", also)

    @property
    def thumbnails(self) -> "ShownHtml":
        """Thumbnails of exported figures, which link to their notebooks."""
        cells = []
        for name in catalogue.by_number():
            path = catalogue.notebooks_folder() / f"{name}.ipynb"
            for figure in catalogue.exported(path):
                if pictures := thumbnail(self.figures / f"{figure}.png", figure):
                    cells.append(_CELL.format(name, pictures, *map(_breaking, (figure, name))))
        if not cells:
            return ShownHtml(Html("<i>no figure yet: <code>sparsepipe reproduce</code> makes all of them</i>"))
        whole = Html("{}<div class='sp-thumbnail' style='display:flex;flex-wrap:wrap;gap:10px'>{}</div>")
        return ShownHtml(whole.format(STYLE, joined(cells)))

    @property
    def notebooks(self) -> "ShownHtml":
        """All notebooks with their questions."""
        folder = catalogue.notebooks_folder()
        items = joined(
            Html("<li><a href='{0}.ipynb'>{1}</a></li>").format(name, catalogue.title(folder / f"{name}.ipynb"))
            for name in catalogue.by_number()
        )
        return ShownHtml(Html("<ul style='columns:2 24em;list-style:none;padding:0'>{}</ul>").format(items))

    @property
    def next_step(self) -> str:
        """A sentence on the existing results, and the next notebook, as Markdown."""
        profiles, runs = (len(list(self.root.glob(where))) for where in ("work/profiles/*.json", "runs/*/plan.json"))
        figures = len(list(self.figures.glob("*.csv")))
        if not profiles:
            text = "**Nothing has been measured yet**: begin with [02_data](02_data.ipynb)"
        elif not runs:
            text = f"**{number_of(profiles, 'profile')}, no run yet**: continue with [05_partition](05_partition.ipynb)"
        else:
            text = (
                f"**{number_of(profiles, 'profile')}, {number_of(runs, 'run')} and {number_of(figures, 'figure')}** "
                "are here: [06_launch](06_launch.ipynb)"
            )
            text += " trains, compares and draws"
        page = self.figures / PAGE
        all_of_it = f" All figures: [{PAGE}]({_relative(page)})." if page.exists() else ""
        return f"{text}; `sparsepipe reproduce` runs all of it.{all_of_it}"

    def _table(
        self,
        head: Sequence[str],
        paths: Iterable[Path],
        row_of: Callable[[Path], list[str] | None],
        otherwise: str,
        also: Html | str = "",
        counted: str = "",
    ) -> "ShownHtml":
        """A row for each of the newest `paths` that `row_of` tells something of; below it how many there are in all.

        `otherwise`: what is said instead of an empty table. `also`: what else lists all of them. `counted`:
        what `paths` are if some, not read yet, may have no row.
        """
        rows, left = list[list[str]](), sorted(paths, key=lambda path: path.stat().st_mtime)
        whole = len(left)
        while left and not 0 < self.rows <= len(rows):
            if row := row_of(left.pop()):
                rows.append(row)
        if not rows:
            return ShownHtml(Html("<i>{}</i>").format(otherwise))
        if not left:
            return ShownHtml(table_html(Table(head, rows)))
        return ShownHtml(table_html(Table(head, rows)) + _MORE.format(len(rows), whole, counted, also))


@dataclass(frozen=True)
class ShownHtml:
    """HTML that shows itself as the value of a cell."""

    html: Html

    def _repr_html_(self) -> str:
        return str(self.html)


_CELL = Html(
    "<figure style='margin:0;width:200px'><a href='{}.ipynb'>{}</a>"
    "<figcaption style='overflow-wrap:break-word'><small>{}<br>{}</small></figcaption></figure>"
)
_MORE = Html("<div><small>The newest {} of {}{}; <code>rows = 0</code> in the parameters lists all{}</small></div>")
_MAY_BREAK = re.compile(r"(?<=[_/])")  # long names of figures and notebooks, between their words


def _of_data(path: Path) -> list[str]:
    try:
        folder = open_folder(path)
        to_train = sum(file.split == "train" for file in folder.files)
        return [folder.name, str(len(folder.classes or folder.parts)), f"{to_train:,}", path.name]
    except InputError as error:
        return [path.name, "", "", str(error)]


def _of_profile(path: Path) -> list[str] | None:
    try:
        profile = Profile.load(path)
    except InputError:  # a layer graph, or what somebody else keeps there
        return None
    kind = profile.device_types[0]
    milliseconds = 1e3 * sum(profile.time(range(len(profile.graph.layers)), kind))
    count = len(profile.warnings)
    doubts = number_of(count, "warning") if count else ""
    named = str(profile.origin.get("model", path.stem))
    return [named, ", ".join(profile.device_types), _asked(profile.origin), f"{milliseconds:.0f}", _when(path), doubts]


def _asked(origin: Mapping[str, Any]) -> str:
    """Return the distinctive settings of a profile: "batch size 16, voxel size 0.03, 2 threads, alongside 1 other
    process".
    """
    data = origin.get("data")
    size = data.get("voxel_size") if isinstance(data, Mapping) else None
    values = {"batch size": (origin.get("batch_size"), as_given), "voxel size": (size, voxel_size_text)}
    texts = [f"{name} {form(it)}" for name, (it, form) in values.items() if isinstance(it, int | float) and it]
    threads, beside = origin.get("threads"), origin.get("beside")
    if isinstance(threads, int) and threads:
        texts.append(number_of(threads, "thread"))
    if isinstance(beside, int) and beside:
        texts.append(f"beside {number_of(beside, 'other process')}")
    return ", ".join(texts)


def _breaking(name: str) -> Html:
    """A name that a narrow page may break between its words."""
    return Html("<wbr>").join(_MAY_BREAK.split(name))


def _of_run(folder: Path) -> list[str]:
    record = RunRecord(folder)
    try:
        summary: dict[str, Any] = (record.metrics("summary") or [{}])[-1]
        speed, accuracy = summary.get("samples_per_second"), (summary.get("validation") or {}).get("accuracy")
        cells = [record.name, str(record.status["state"]), record.model or "", strategy(record.plan)]
        cells += ["" if speed is None else as_measured(speed), "" if accuracy is None else f"{accuracy:.1%}"]
        return [*cells, _when(record.folder / "plan.json")]
    except InputError as error:
        return [record.name, "damaged", "", "", "", "", str(error)]


def _when(path: Path) -> str:
    return datetime.fromtimestamp(path.stat().st_mtime, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _relative(path: Path) -> str:
    return markdown_text(Path(os.path.relpath(path)).as_posix())


def thumbnail(path: Path, name: str) -> Html | None:
    """Return the small copies of a picture that is drawn on white, as images in the page; None if there is none."""
    with suppress(OSError), Image.open(path) as picture:
        twice = picture.convert("RGB")
        twice.thumbnail((2 * _SIZE[0], 2 * _SIZE[1]))  # colours are told before neighbours are mixed
        dark = on_black(twice, points=_has_points(path.with_suffix(".svg")))
        return _PICTURES.format(_address(twice), name, _address(dark), name)
    return None


def _has_points(vector: Path) -> bool:
    """Return whether an exported SVG has all shades of a cloud's points, which its style then names for dark pages."""
    with suppress(OSError, UnicodeDecodeError), vector.open(encoding="utf-8") as file:
        style = file.read(_STYLE)
        return all(lit in style for lit in LIT_POINTS.values())
    return False


def on_black(picture: Image.Image, *, points: bool = False) -> Image.Image:
    """Return a figure's picture as a dark page shows the figure: see views/plots/dark.py.

    What is drawn on white is drawn on the dark ground instead: ink in the colour that stands for it there, stages in
    their own, also where white is mixed in it, as for a forward. A colour of a scale stays as it is; `points`: it is
    that of clouds, whose far points would be as dark as the ground.
    """
    pixels = np.asarray(picture, dtype=np.float32) / 255
    best, found = np.full(pixels.shape[:2], np.inf, np.float32), pixels.copy()
    for color, lit in (_PAINTS | (_POINTS if points else {})).items():
        down, paint = _WHITE - color, np.array(lit)
        share = np.clip((_WHITE - pixels) @ (down / (down @ down)).astype(np.float32), 0, 1)[..., None]
        away = np.linalg.norm(_WHITE - share * down - pixels, axis=-1)
        nearer = (away < best - 1e-4) & (away < _CLOSE)
        best[nearer] = away[nearer]
        found[nearer] = (_GROUND + share * (paint - _GROUND))[nearer]
    for shade in _SHADES:
        flat = np.abs(pixels - np.array(shade, np.float32)).max(axis=-1) < _SAME
        found[flat] = pixels[flat]
    return Image.fromarray(np.round(np.clip(found, 0, 1) * 255).astype(np.uint8))


def _rgb(color: str) -> tuple[float, float, float]:
    red, green, blue = (int(color[k : k + 2], 16) / 255 for k in (1, 3, 5))
    return red, green, blue


_GROUND = np.array(_rgb(GROUND))
_SHADES = [shade for shade in map(_rgb, _LIGHT) if max(shade) > min(shade)]
_PAINTS = {_rgb(color): _rgb(lit) for color, lit in (LIT | LIT_TEXT | _STAY).items()}  # ink first: it takes all greys
_POINTS = {_rgb(color): _rgb(lit) for color, lit in LIT_POINTS.items()}


def _address(picture: Image.Image) -> str:
    small, picture_copy = picture.copy(), io.BytesIO()
    small.thumbnail(_SIZE)
    small.save(picture_copy, "WEBP", quality=70)
    return f"data:image/webp;base64,{base64.b64encode(picture_copy.getvalue()).decode()}"
