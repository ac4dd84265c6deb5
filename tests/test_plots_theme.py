"""Titles, colours and tones of figures: they fit, can be read and are told apart, on light and dark pages."""

import numpy as np
import plotly.io
import pytest

from sparsepipe.views.colors import STAGE_COLORS
from sparsepipe.views.plots import theme


def test_no_button_uploads_the_data():
    for name in ("plotly_mimetype", "notebook"):
        assert plotly.io.renderers[name].config["showSendToCloud"] is False


def test_stage_colours_are_told_apart_by_colour_blind_eyes():
    """Machado et al. 2009: how the palette looks without red, green or blue cones; neighbours still differ."""
    views = {
        "normal": np.eye(3),
        "protanopia": np.array(
            [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
        ),
        "deuteranopia": np.array(
            [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
        ),
        "tritanopia": np.array(
            [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
        ),
    }
    colors = np.array([[int(c[k : k + 2], 16) / 255 for k in (1, 3, 5)] for c in STAGE_COLORS])
    for name, view in views.items():
        seen = np.clip(np.where(colors <= 0.04045, colors / 12.92, ((colors + 0.055) / 1.055) ** 2.4) @ view.T, 0, 1)
        for a, b in zip(seen, seen[1:], strict=False):
            assert np.linalg.norm(a - b) > 0.15, name
    apart = [np.linalg.norm(a - b) for k, a in enumerate(colors) for b in colors[:k]]
    assert len(colors) == 14 and min(apart) > 0.15, "no two of fourteen stages look alike, with all cones at least"


@pytest.mark.parametrize("stage", [0, 6, 13])
def test_text_on_a_stages_colour_can_be_read(stage):
    """White on orange was 2 : 1; WCAG 2.1 asks for 4.5 of small text, and 3 of graphics."""
    for kind in ("forward", "backward", "weights", "update", "average"):
        color = theme.stage_color(stage, kind)
        ink = theme.INK_ON if theme.ink_on(color) == theme.INK_ON else "#FFFFFF"
        assert _contrast(color, ink) >= 4.5


def test_what_is_predicted_has_a_lighter_tone_and_the_outline_of_its_colour():
    for color in (*theme.RUN_COLORS, theme.GREY):
        light, between, full = (theme.bar_marker(source, color) for source in ("simulated", "emulated", "measured"))
        assert _luminance(light["color"]) > _luminance(between["color"]) > _luminance(full["color"])
        assert full["color"] == light["line"]["color"] == color and full["line"]["width"] == 0
        assert _contrast(light["color"], color) > 1.5
    many = theme.bar_marker(["simulated", "measured"], "#000000")
    assert many == {"color": ["#999999", "#000000"], "line": {"color": ["#000000"] * 2, "width": [1.5, 0.0]}}


def _contrast(one, other):
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(color):
    parts = np.array([int(color[k : k + 2], 16) / 255 for k in (1, 3, 5)])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])
