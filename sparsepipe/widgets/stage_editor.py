"""Stages by hand: which devices each has, how many stages there are."""

from collections.abc import Callable, Mapping, Sequence

import ipywidgets

from .responsive import responsive

Group = Mapping[str, int]  # device type → how many


class StageEditor:
    """A row of numbers for each stage, a column for each device type, and buttons for one stage more or less.

    `groups` is what they say; `changed` is called after each change by hand.
    """

    def __init__(self, types: Sequence[str], changed: Callable[[], None]) -> None:
        self.types, self._changed, self._quiet = tuple(types), changed, False
        self.more = ipywidgets.Button(icon="plus", tooltip="one stage more", layout={"width": "38px"})
        self.less = ipywidgets.Button(icon="minus", tooltip="one stage less", layout={"width": "38px"})
        self.number = ipywidgets.Label()
        self.rows = ipywidgets.VBox([])
        self.widget = ipywidgets.VBox([ipywidgets.HBox([self.number, self.less, self.more]), self.rows])
        self.groups: list[dict[str, int]] = []

    def show(self, groups: Sequence[Group], *, devices: bool) -> None:
        """Show these groups; with `devices` their numbers can be changed."""
        self._quiet = True
        self.groups = [{name: int(group.get(name, 0)) for name in self.types} for group in groups]
        self.number.value = f"{len(groups)} stages" if len(groups) != 1 else "1 stage"
        self.less.disabled = len(groups) < 2
        shown = len(self.rows.children) if devices else 0
        if not devices:
            self.rows.children = ()
        elif shown != len(groups):
            self.rows.children = tuple(responsive(self._row(k)) for k in range(len(groups)))
        for row, group in zip(self.rows.children, self.groups, strict=False):
            for box in row.children[1:]:
                box.value = group[box.description]
        self._quiet = False

    def _row(self, k: int) -> ipywidgets.HBox:
        boxes = []
        for name in self.types:
            box = ipywidgets.BoundedIntText(
                min=0, max=99, description=name, layout={"width": "104px"}, style={"description_width": "48px"}
            )
            box.observe(lambda change, name=name: self._set(k, name, change["new"]), names="value")
            boxes.append(box)
        return ipywidgets.HBox([ipywidgets.Label(f"stage {k}", layout={"width": "52px"}), *boxes])

    def _set(self, k: int, name: str, value: int) -> None:
        if not self._quiet:
            self.groups[k] = self.groups[k] | {name: value}
            self._changed()
