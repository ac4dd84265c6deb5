"""How values are shown to people: text for terminals, HTML for notebooks, both safe against foreign names."""

from .tables import Table, table_html, table_markdown, table_text
from .values import html, show_in, text

__all__ = ["Table", "html", "show_in", "table_html", "table_markdown", "table_text", "text"]
