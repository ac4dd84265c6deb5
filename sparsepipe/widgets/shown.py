"""What is made of widgets shows itself as the value of a cell, as a widget does."""

from typing import Any

import ipywidgets


class Shown:
    """Has `widget`, which is what is displayed; display(it.widget) shows the same."""

    widget: ipywidgets.Widget

    def _repr_mimebundle_(self, **given: Any) -> Any:
        return self.widget._repr_mimebundle_(**given)
