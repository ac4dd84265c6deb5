"""Sliders whose values are what was given or typed, and not what a grid makes of it."""

import pytest
from coded import mentions

from sparsepipe import InputError
from sparsepipe.views.widgets.controls import (
    bandwidth_slider,
    choice_slider,
    count_slider,
    latency_slider,
    memory_slider,
)


@pytest.fixture
def bandwidth():
    return bandwidth_slider("between nodes", [12e9], "bandwidth")


def page_sends(slider, **state):
    """What a browser sends when the slider is moved."""
    slider.set_state(state)


def page_types(slider, text):
    """What a browser sends when a readout is changed."""
    slider._asked(slider, {"typed": text}, [])


def texts(slider):
    return [text for _, text in slider.stops]


@pytest.mark.parametrize("value", [12e9, 1.25e9, 123456789.123, 1.0, 5e15, float("inf")])
def test_the_value_given_is_a_stop_and_stays_as_it_is(value):
    """ipywidgets' slider made 12.589e9 of 12e9 as soon as a browser displayed it."""
    slider = bandwidth_slider("between nodes", [value], "bandwidth")
    assert slider.value == value and slider.given == slider.key(value)
    (text,) = (text for key, text in slider.stops if key == slider.key(value))
    assert text == slider.text
    page_sends(slider, value=slider.key(value))  # a browser that sends back what it was sent
    assert slider.value == value


def test_every_stop_is_shown_as_what_it_is(bandwidth):
    for key, text in bandwidth.stops:
        assert bandwidth.reading.read(text) == bandwidth.of_key(key)
    assert len(set(texts(bandwidth))) == len(bandwidth.stops)


def test_links_that_differ_are_as_given_until_the_slider_is_moved():
    slider = bandwidth_slider("within a node", [1e9, 12e9], "bandwidth")
    assert slider.value is None and slider.text == "as given" and mentions(slider.tooltip, "1 GB/s", "12 GB/s")
    page_sends(slider, value=slider.key(2e9))
    assert slider.value == 2e9
    page_types(slider, "as given")
    assert slider.value is None and slider.refusal == ""


@pytest.mark.parametrize("text", ["10G", "10 GB/s", "10GB/s", "80 Gbit/s", "1e10"])
def test_what_is_typed_is_read_with_its_unit(bandwidth, text):
    page_types(bandwidth, text)
    assert bandwidth.value == 1e10 and bandwidth.text == "10 GB/s" and bandwidth.refusal == ""


def test_what_cannot_be_read_is_refused_in_one_line_and_the_value_stays(bandwidth):
    heard = []
    bandwidth.observe(heard.append, names="value")
    page_types(bandwidth, "10 Gb/s")
    assert mentions(bandwidth.refusal, "GB/s", "Gbit/s")
    assert bandwidth.value == 12e9 and not heard
    page_types(bandwidth, "13G")
    assert bandwidth.value == 13e9 and bandwidth.refusal == ""


def test_a_typed_value_beyond_the_slider_widens_it(bandwidth):
    page_types(bandwidth, "5 PB/s")
    assert bandwidth.value == 5e15 == bandwidth.max and texts(bandwidth)[-1] == "5 PB/s"
    page_types(bandwidth, "10 B/s")
    assert bandwidth.value == 10 and texts(bandwidth)[0] == "10 B/s"


def test_a_readout_that_was_not_changed_does_not_round_the_value():
    slider = bandwidth_slider("between nodes", [12.589254e9], "bandwidth")
    page_types(slider, slider.text)
    assert slider.text == "12.59 GB/s" and slider.value == 12.589254e9


def test_latencies_are_typed_in_microseconds():
    slider = latency_slider("their latency", [5e-5], "latency")
    assert slider.text == "50 µs"
    page_types(slider, "1 ms")
    assert slider.value == 1e-3 and slider.text == "1 ms"
    page_types(slider, "0")
    assert slider.value == 0 and slider.text == "0 s"


def test_memory_is_typed_in_binary_units_too():
    slider = memory_slider("limit", "limit of each device")
    assert slider.text == "as given" and slider.value == 0
    page_types(slider, "24 GiB")
    assert slider.value == 24 * 2**30
    page_types(slider, "0")
    assert "more than 0" in slider.refusal and slider.value == 24 * 2**30


def test_counts_beyond_the_slider_widen_it_up_to_a_limit_that_is_told():
    """ipywidgets' slider took a typed 12 for its maximum, 8."""
    slider = count_slider("gpu", 2, low=0, high=8, most=64, tip="how many")
    page_types(slider, "12")
    assert slider.value == 12 and texts(slider) == [str(k) for k in range(13)]
    for text in ("65", "-1", "2.5", "two", ""):
        page_types(slider, text)
        assert "gpu, 0 to 64" in slider.refusal and slider.value == 12


def test_other_numbers_than_those_offered_may_be_typed():
    slider = choice_slider("batch size", 16, [1, 16, 32], most=1000, tip="")
    page_types(slider, "48")
    assert slider.value == 48 and texts(slider) == ["1", "16", "32", "48"]


def test_assigned_values_are_checked_as_typed_ones_are(bandwidth):
    for value in (0, -1.0, float("nan"), "10G", True):
        with pytest.raises(InputError):
            bandwidth.value = value
    assert bandwidth.value == 12e9
    bandwidth.value = 10**10
    assert bandwidth.value == 1e10 and bandwidth.text == "10 GB/s"


def test_a_page_that_asks_for_a_value_there_is_not_changes_nothing(bandwidth):
    page_sends(bandwidth, value="7.0")
    page_sends(bandwidth, value=None)
    bandwidth._asked(bandwidth, {"typed": 3}, [])
    bandwidth._asked(bandwidth, None, [])
    assert bandwidth.value == 12e9
