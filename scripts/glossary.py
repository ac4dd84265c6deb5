"""Write the page of terms, from the glossary of widgets and help: `python scripts/glossary.py`."""

from pathlib import Path

from sparsepipe.views.glossary import glossary_text

PAGE = Path(__file__).resolve().parent.parent / "notebooks" / "background" / "glossary.md"

if __name__ == "__main__":
    PAGE.write_text(glossary_text())
    print(PAGE)
