"""The colours that stand for one thing on every page: a stage by its place, a type of devices by its name."""

import hashlib
from collections.abc import Iterable
from functools import cache
from math import cbrt, dist

# Okabe and Ito's colours, told apart with any common colour blindness ("Color Universal Design", 2008), without the
# black, which text has, and the yellow, which white paper swallows; then, for the eighth stage and later ones, Tol's
# "muted" colours ("Colour schemes", 2021), so that no two of fourteen stages look alike.
STAGE_COLORS = (
    *("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8C8C8C"),
    *("#332288", "#DDCC77", "#882255", "#44AA99", "#AA4499", "#117733", "#999933"),
)
# Types of devices stand beside stages on a page: colours of their own, as far from each other and from the stages' as
# there are, also with red and green alike, that are seen on white and on black (found greedily in Oklab).
TYPE_COLORS = (
    *("#8C73F2", "#F299FF", "#66CC59", "#B32600", "#732699", "#73668C", "#4D4066"),
    *("#CCA6A6", "#B36666", "#4D9900", "#5959CC", "#80261A", "#9999CC", "#735940"),
)
# How a stage's colour tells the kinds of work apart: mixed with white (above 0) or black (below 0).
WORK_SHADES = {"forward": 0.45, "backward": 0.0, "weights": 0.2, "update": -0.35, "average": -0.75}
# What a picture may lie on, on light pages and on dark ones: JupyterLab's and those of `figures/`.
GROUNDS = ("#FFFFFF", "#111111", "#212121", "#1D232A")
SEEN = 3.0  # the least contrast of graphics with what they lie on (WCAG 2.1)
_SALT = b"43747"  # with which all types of this package's profiles, clusters and manifests have colours of their own


def type_colors(names: Iterable[str]) -> dict[str, str]:
    """Return the colour of each type of devices, by name: no stage has it.

    A type's colour follows from its name alone, so that a profile of four types, a cluster of two of them and a table
    of one show it in the same way, in whatever order they name them. Of types that would share a colour all but the
    first, by name, take the next that is free; of more than fourteen types some share one.
    """
    found: dict[str, str] = {}
    for name in sorted(set(names)):
        first = hashlib.blake2b(name.encode(errors="surrogatepass"), key=_SALT, digest_size=4).digest()
        place = int.from_bytes(first) % len(TYPE_COLORS)
        turned = [*TYPE_COLORS[place:], *TYPE_COLORS[:place]]
        found[name] = next((color for color in turned if color not in found.values()), turned[0])
    return found


def stage_color(stage: int) -> str:
    """The colour of a stage, the same in every picture."""
    return STAGE_COLORS[stage % len(STAGE_COLORS)]


def work_color(stage: int, kind: str) -> str:
    """The colour of a kind of work of a stage, the same in every picture: a forward is lighter, an update darker."""
    return mixed(stage_color(stage), WORK_SHADES[kind])


def mixed(color: str, share: float) -> str:
    """`color` ("#rrggbb") mixed with `share` of white, or of black where `share` is below 0."""
    return between(color, "#FFFFFF" if share > 0 else "#000000", abs(share))


def between(color: str, other: str, share: float) -> str:
    """`color` mixed with `share` of another."""
    parts = ((int(each[k : k + 2], 16) for each in (color, other)) for k in (1, 3, 5))
    return "#" + "".join(f"{round(part + (target - part) * share):02X}" for part, target in parts)


@cache
def edge_of(color: str) -> str:
    """The line around what is filled with a colour, so that it is seen both on light pages and on dark ones.

    It is the colour itself if that is seen on all of GROUNDS, else the shade of it that is nearest.
    """
    shades = (mixed(color, k / 20) for k in sorted(range(-19, 20), key=abs))
    return next(one for one in shades if min(contrast(one, ground) for ground in GROUNDS) >= SEEN)


def contrast(one: str, other: str) -> float:
    """The contrast ratio of two colours ("#rrggbb"), from 1 to 21 (WCAG 2.1)."""
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def difference(one: str, other: str) -> float:
    """Perceived difference of two colours ("#rrggbb"), from 0 to 1 of black and white: their distance in Oklab.

    B. Ottosson, "A perceptual color space for image processing", 2020.
    """
    return dist(_oklab(one), _oklab(other))


@cache
def _oklab(color: str) -> tuple[float, float, float]:
    """Lightness, green to red, blue to yellow."""
    red, green, blue = _linear(color)
    long = cbrt(0.4122214708 * red + 0.5363325363 * green + 0.0514459929 * blue)
    medium = cbrt(0.2119034982 * red + 0.6806995451 * green + 0.1073969566 * blue)
    short = cbrt(0.0883024619 * red + 0.2817188376 * green + 0.6299787005 * blue)
    return (
        0.2104542553 * long + 0.7936177850 * medium - 0.0040720468 * short,
        1.9779984951 * long - 2.4285922050 * medium + 0.4505937099 * short,
        0.0259040371 * long + 0.7827717662 * medium - 0.8086757660 * short,
    )


def _luminance(color: str) -> float:
    """The relative luminance of "#rrggbb", from 0 (black) to 1 (white)."""
    red, green, blue = _linear(color)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _linear(color: str) -> tuple[float, float, float]:
    """The red, green and blue light of "#rrggbb", from 0 to 1 each."""
    parts = (int(color[k : k + 2], 16) / 255 for k in (1, 3, 5))
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return red, green, blue
