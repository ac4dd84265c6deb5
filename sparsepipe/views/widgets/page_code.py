"""The code of a widget's page: files of this folder, read together as one module."""

from pathlib import Path


def page_code(*names: str) -> str:
    """Return the text of these files, one after the other."""
    return "".join(Path(__file__).with_name(f"{name}.js").read_text(encoding="utf-8") for name in names)
