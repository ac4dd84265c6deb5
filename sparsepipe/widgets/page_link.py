"""A link that opens a page of HTML in a tab of its own, which a file outside of Jupyter's root could not be."""

import gzip
from pathlib import Path

import anywidget
import traitlets

from . import looks


class PageLink(looks.Control, anywidget.AnyWidget):
    """Shows a link once there is a page: `show`; nothing before, and after `hide`."""

    _esm = Path(__file__).with_name("page_link.js")
    page = traitlets.Bytes(b"").tag(sync=True)  # gzip: a tenth, as Jupyter's server passes on 3 MB in 3 seconds
    label = traitlets.Unicode("").tag(sync=True)

    def show(self, page: str, *, label: str) -> None:
        """Link to the text of a page, which has all it needs in it."""
        with self.hold_sync():
            self.label, self.page = label, gzip.compress(page.encode(), mtime=0)

    def hide(self) -> None:
        self.page = b""
