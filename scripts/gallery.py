"""The gallery to be seen before installing: every figure small, in figures/gallery, and its page figures/README.md.

python scripts/gallery.py [FIGURES] [--only NOTEBOOK…]

FIGURES: where `sparsepipe reproduce` exported to (default: figures)

A batch that lacked the data of a figure, as one without SPARSEPIPE_DATA does, is refused.
"""

import argparse
import re
import shlex
import sys
from pathlib import Path

from PIL import Image

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))

from sparsepipe.study import NOTEBOOKS, catalogue  # noqa: E402
from sparsepipe.study.executed import Executed  # noqa: E402
from sparsepipe.util.io.files import read_json  # noqa: E402
from sparsepipe.views.plots.marks import NOT_HERE  # noqa: E402

BEGIN, END = "<!-- gallery: scripts/gallery.py writes what stands between -->", "<!-- end of the gallery -->"
WIDEST, QUALITY = 560, 72  # pixels; of WebP: some 12 kB a picture
SHOWN = 270  # pixels on the page
LACKED = re.compile(r"(?:is|are) not here: sparsepipe data fetch")  # what a notebook says that goes on without data
OF_EVERY_BATCH = {"root", "figures", "data", "headless"}  # parameters that say where, not what


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("figures", type=Path, nargs="?", default=REPOSITORY / "figures")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "figures", help="where README.md and gallery/ are")
    told = "renew pictures and results of these alone, such as figures/12_gaps; the others stay"
    parser.add_argument("--only", nargs="+", choices=NOTEBOOKS, default=NOTEBOOKS, metavar="NOTEBOOK", help=told)
    options = parser.parse_args()
    names = {name: catalogue.exported(REPOSITORY / "notebooks" / f"{name}.ipynb") for name in options.only}
    wanted = [figure for figures in names.values() for figure in figures]
    if missing := [figure for figure in wanted if not (options.figures / f"{figure}.png").exists()]:
        print(f"{options.figures}: no {', '.join(missing)}; run `sparsepipe reproduce` first", file=sys.stderr)
        return 2
    told = "name the folder that has them in SPARSEPIPE_DATA and run `sparsepipe reproduce --only-changed`"
    if empty := [figure for figure in wanted if NOT_HERE in words(options.figures / f"{figure}.svg")]:
        print(f"{options.figures}: the data of {', '.join(empty)} were not here; {told}", file=sys.stderr)
        return 2
    copies = options.figures.resolve().parent / "runs" / "notebooks"
    if lacking := [name for name in names if LACKED.search(told_in(copies / f"{name}.ipynb"))]:
        print(
            f"{options.figures}: {', '.join(lacking)} went on without data that were not here; {told}", file=sys.stderr
        )
        return 2
    gallery = options.out / "gallery"
    gallery.mkdir(exist_ok=True)
    every = {figure for name in NOTEBOOKS for figure in catalogue.exported(REPOSITORY / "notebooks" / f"{name}.ipynb")}
    for old in gallery.glob("*.webp"):
        if old.stem not in every:
            old.unlink()
    for figure in wanted:
        shrink(options.figures / f"{figure}.png", gallery / f"{figure}.webp")
    page = options.out / "README.md"
    head, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    before, _, tail = rest.partition(END)
    sections = []
    for name in NOTEBOOKS:
        link = f"(../notebooks/{name}.ipynb)"
        stays = (f"### {part}" for part in before.split("### ")[1:] if link in part)
        sections.append(section(name, names[name], copies / f"{name}.ipynb") if name in names else next(stays, ""))
    page.write_text(f"{head}{BEGIN}\n\n{''.join(filter(None, sections))}{END}{tail}", encoding="utf-8")
    print(f"{len(wanted)} pictures, {sum(path.stat().st_size for path in gallery.iterdir()) / 1e3:.0f} kB in {gallery}")
    return 0


def words(picture: Path) -> str:
    """What an exported picture says: its vectors keep text as text."""
    return picture.read_text(encoding="utf-8") if picture.exists() else ""


def told_in(copy: Path) -> str:
    """What the cells of an executed notebook printed."""
    cells = read_json(copy, what="notebook")["cells"] if copy.exists() else []
    return "".join("".join(output.get("text", ())) for cell in cells for output in cell.get("outputs", ()))


def section(name: str, figures: tuple[str, ...], copy: Path) -> str:
    """A notebook's question, its answer on the machine that made the pictures, and those; nothing without pictures.

    `copy`: as it was executed, where it was.
    """
    if not figures:
        return ""
    title = catalogue.title(REPOSITORY / "notebooks" / f"{name}.ipynb")
    pictures = " ".join(
        f'<a href="gallery/{figure}.webp"><img src="gallery/{figure}.webp" width="{SHOWN}" alt="{figure}"></a>'
        for figure in figures
    )
    named = ", ".join(f"`{figure}`" for figure in figures)
    executed, asked = Executed.read(name, copy), parameters(copy)
    named += f", made with `{asked}`" if asked else ""
    answer = re.sub(r"([*_|<>\[\]`])", r"\\\1", executed.sentence) if executed else ""
    told = f"{answer}\n\n" if answer else ""
    return f"### [{title}](../notebooks/{name}.ipynb)\n\n{told}{pictures}\n\n{named}\n\n"


def parameters(copy: Path) -> str:
    """What `reproduce` was asked for beside the defaults, as it takes them; "" where nothing was."""
    found = read_json(copy, what="notebook")["metadata"]["papermill"]["parameters"] if copy.exists() else {}
    return " ".join(f"-p {key} {shlex.quote(str(value))}" for key, value in found.items() if key not in OF_EVERY_BATCH)


def shrink(source: Path, target: Path) -> None:
    with Image.open(source) as picture:
        small = picture.convert("RGB")
        small.thumbnail((WIDEST, 2 * WIDEST), Image.Resampling.LANCZOS)
        small.save(target, "WEBP", quality=QUALITY, method=6)


if __name__ == "__main__":
    sys.exit(main())
