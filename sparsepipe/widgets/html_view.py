"""A widget for HTML that escapes every string that is not `Html`."""

from typing import Any

import ipywidgets
import traitlets

from ..display.markup import Html


class HtmlView(ipywidgets.HTML):
    """Shows markup as such and any other string as the text that it is. The package's only use of ipywidgets.HTML."""

    @traitlets.validate("value")
    def _as_markup(self, proposal: dict[str, Any]) -> Html:
        return Html.escape(proposal["value"])
