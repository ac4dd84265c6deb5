"""Words that lie over others or are cut off, and pages that scroll sideways, as a browser has laid them out."""

from pathlib import Path
from typing import Any

FIND = Path(__file__).with_name("words.js").read_text()


def crowded(page: Any, root: str = "html") -> list[str]:
    """Return a line for each place below `root`, a CSS selector, where words are hard to read."""
    return list(page.evaluate(FIND, root))
