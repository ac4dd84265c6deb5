"""The colours that stand for one thing on every page: a stage by its place, a type of devices by its name."""

import hashlib
from collections.abc import Iterable

# Okabe and Ito's colours, told apart with any common colour blindness ("Color Universal Design", 2008), without the
# black, which text has, and the yellow, which white paper swallows; then, for the eighth stage and later ones, Tol's
# "muted" colours ("Colour schemes", 2021), so that no two of fourteen stages look alike.
STAGE_COLORS = (
    *("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8C8C8C"),
    *("#332288", "#DDCC77", "#882255", "#44AA99", "#AA4499", "#117733", "#999933"),
)
_SALT = b"43747"  # with which all types of this package's profiles, clusters and manifests have colours of their own


def type_colors(names: Iterable[str]) -> dict[str, str]:
    """Return the colour of each type of devices, by name.

    A type's colour follows from its name alone, so that a profile of four types, a cluster of two of them and a table
    of one show it alike, in whatever order they name them. Of types that would share a colour all but the first, by
    name, take the next that is free; of more than fourteen types some share one.
    """
    found: dict[str, str] = {}
    for name in sorted(set(names)):
        first = hashlib.blake2b(name.encode(errors="surrogatepass"), key=_SALT, digest_size=4).digest()
        place = int.from_bytes(first) % len(STAGE_COLORS)
        turned = [*STAGE_COLORS[place:], *STAGE_COLORS[:place]]
        found[name] = next((color for color in turned if color not in found.values()), turned[0])
    return found
