"""Stages by hand: which devices each has, how many stages there are."""

from collections.abc import Callable, Mapping, Sequence

import ipywidgets

from ..display.counting import number_of
from ..errors import InputError
from . import looks

Group = Mapping[str, int]  # device type → how many

_WIDEST = 280  # pixels of a device type's name


class StageEditor:
    """A row of numbers for each stage, a column for each device type, and buttons for one stage more or less.

    `groups` is what they say; `changed` is called after each change by hand.
    """

    def __init__(self, types: Sequence[str], changed: Callable[[], None]) -> None:
        self.types, self._changed, self._quiet = tuple(types), changed, False
        self.more = looks.Button(icon="plus", tooltip="one stage more", layout={"width": "38px"})
        self.less = looks.Button(icon="minus", tooltip="one stage less", layout={"width": "38px"})
        self.number = looks.Label()
        self.rows = looks.VBox([])
        self.widget = looks.VBox([looks.HBox([self.number, self.less, self.more]), self.rows])
        self.groups: list[dict[str, int]] = []

    def show(self, groups: Sequence[Group], *, devices: bool) -> None:
        """Show these groups; with `devices` their numbers can be changed."""
        self._quiet = True
        self.groups = [{name: int(group.get(name, 0)) for name in self.types} for group in groups]
        self.number.value = number_of(len(groups), "stage")
        self.less.disabled = len(groups) < 2
        shown = len(self.rows.children) if devices else 0
        if not devices:
            self.rows.children = ()
        elif shown != len(groups):
            self.rows.children = tuple(self._row(k) for k in range(len(groups)))
        for row, group in zip(self.rows.children, self.groups, strict=False):
            for box in row.children[1:]:
                box.value = group[box.description]
        self._quiet = False

    def _row(self, k: int) -> ipywidgets.HBox:
        boxes, wide = [], max(82, min(_WIDEST, 8 + 7 * max(map(len, self.types))))  # names whole, up to a line of them
        for name in self.types:
            layout, style = {"width": f"{wide + 54}px"}, {"description_width": f"{wide}px"}
            box = looks.BoundedIntText(min=0, max=99, description=name, layout=layout, style=style)
            box.add_class(f"sp-of-stage-{k}")  # by which tips.js calls it, as there are as many of its name as stages
            box.observe(lambda change, name=name: self._set(k, name, change["new"]), names="value")
            boxes.append(box)
        label = looks.Label(f"stage {k}", layout={"width": "52px"})
        return looks.HBox([label, *boxes], layout={"flex_flow": "row wrap"})  # of many types in several lines

    def _set(self, k: int, name: str, value: int) -> None:
        if not self._quiet:
            self.groups[k] = self.groups[k] | {name: value}
            self._changed()


def one_more(
    ends: Sequence[int], groups: Sequence[Group], *, num_layers: int, counts: Mapping[str, int]
) -> tuple[list[int], list[dict[str, int]]]:
    """Return cuts and devices with one stage more: half of the layers of the one that has most, on a device to spare.

    `counts`: how many devices there are of each type. Raises InputError where there is no layer or no device for it.
    """
    bounds = [0, *ends, num_layers]
    sizes = [b - a for a, b in zip(bounds, bounds[1:], strict=False)]
    k = sizes.index(max(sizes))
    if sizes[k] < 2:
        raise InputError("explorer.too_many_stages", "every stage has one layer: there is no place for one stage more")
    spare = {name: number - sum(group.get(name, 0) for group in groups) for name, number in counts.items()}
    free = next((name for name, number in spare.items() if number > 0), None)
    if free is None:
        raise InputError(
            "explorer.no_free_device", "every device has a stage: move a device slider up, or take one from a stage"
        )
    own = [dict(group) for group in groups]
    return [*ends[:k], bounds[k] + sizes[k] // 2, *ends[k:]], [*own[: k + 1], {free: 1}, *own[k + 1 :]]


def one_less(ends: Sequence[int], groups: Sequence[Group]) -> tuple[list[int], list[dict[str, int]]]:
    """Return them with one stage less: the last joins its neighbour. Raises InputError where there is one stage."""
    if len(groups) < 2:
        raise InputError("explorer.one_stage", "there is one stage: no plan has less")
    return list(ends[:-1]), [dict(group) for group in groups[:-1]]
