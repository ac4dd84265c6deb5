"""Sliders and pickers of one width, their names beside them."""

from typing import Any

import ipywidgets

_WIDE = {"width": "330px"}
_NAMES = {"description_width": "118px"}


def slider(name: str, value: int, *, low: int, high: int) -> ipywidgets.IntSlider:
    return ipywidgets.IntSlider(value=value, min=low, max=high, description=name, layout=_WIDE, style=_NAMES)


def log_slider(name: str, value: float, tip: str) -> ipywidgets.FloatLogSlider:
    start = min(max(value, 1e6), 1e12)
    looks = {"layout": _WIDE, "style": _NAMES, "readout_format": ".2s", "tooltip": tip}
    return ipywidgets.FloatLogSlider(value=start, base=10, min=6, max=12, step=0.05, description=name, **looks)


def choices(name: str, options: Any, value: Any, tip: str) -> ipywidgets.SelectionSlider:
    looks = {"layout": _WIDE, "style": _NAMES, "tooltip": tip}
    return ipywidgets.SelectionSlider(options=options, value=value, description=name, **looks)


def dropdown(name: str, options: Any, tip: str) -> ipywidgets.Dropdown:
    return ipywidgets.Dropdown(options=options, description=name, layout=_WIDE, style=_NAMES, tooltip=tip)


def toggle(name: str, tip: str) -> ipywidgets.ToggleButton:
    return ipywidgets.ToggleButton(description=name, tooltip=tip, layout={"width": "160px"})
