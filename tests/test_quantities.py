"""Sizes, bandwidths and times as people type them, and as they are shown."""

import pytest
from coded import raises
from hypothesis import given
from hypothesis import strategies as st

from sparsepipe import InputError
from sparsepipe.util.io.quantities import BANDWIDTH, SIZE, TIME


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10G", 1e10),
        ("10 GB/s", 1e10),
        (" 10GB/s ", 1e10),
        ("1.25e9", 1.25e9),
        ("1250000000", 1.25e9),
        ("200 Mbit/s", 25e6),
        ("10 Gbit/s", 1.25e9),
        ("10 Gbps", 1.25e9),
        ("10 GBps", 1e10),
        ("1 GiB/s", 2.0**30),
        ("12.8 kB/s", 12800.0),
        (".5 TB/s", 5e11),
    ],
)
def test_bandwidths_are_read_with_prefixes_and_units(text, expected):
    """A typed 10G was 10 bytes per second, and became 1.0M without a word."""
    assert BANDWIDTH.read(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"), [("24 GiB", 24 * 2.0**30), ("600 MB", 6e8), ("24G", 24e9), ("1.5e10", 1.5e10), ("3 B", 3.0)]
)
def test_sizes_are_read_with_prefixes_and_units(text, expected):
    assert SIZE.read(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("50 us", 5e-5), ("50 µs", 5e-5), ("50 μs", 5e-5), ("1 ms", 1e-3), ("1ms", 1e-3), ("0", 0.0), ("2", 2.0)]
    + [("1 min", 60.0), ("30 ns", 3e-8), ("50u", 5e-5)],
)
def test_times_are_read_with_prefixes_and_units(text, expected):
    assert TIME.read(text) == expected


@pytest.mark.parametrize("quantity", [BANDWIDTH, SIZE, TIME])
@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "fast",
        "-1",
        "nan",
        "inf",
        "1e999",
        "1e9999999999",
        "1,5 G",
        "1_000",
        "10 G B",
        "10 X",
        "0x10",
        "1e",
        "9" * 99,
    ]
    + ["10 G\nB/s;", "١٠", "5 m", "--5", "5e-999"],
)
def test_anything_else_is_refused_in_one_line(quantity, text):
    with pytest.raises(InputError) as refused:
        quantity.read(text)
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 250


@pytest.mark.parametrize(
    ("quantity", "text", "advice"),
    [
        (BANDWIDTH, "10 Gb/s", ("quantity.undecided", "GB/s for bytes or Gbit/s for bits")),
        (BANDWIDTH, "10 GB", ("quantity.undecided", "GB/s, if it is per second")),
        (BANDWIDTH, "10m", ("quantity.undecided", "M for mega")),
        (SIZE, "10 Gb", ("quantity.undecided", "GB for bytes or Gbit for bits")),
        (TIME, "5m", ("quantity.undecided", "ms for milliseconds or min for minutes")),
        (BANDWIDTH, "0", ("quantity.out_of_range", "more than 0")),
        (SIZE, "24 GB/s", ("quantity.unit_unknown", "size")),
    ],
)
def test_what_could_mean_two_things_is_not_guessed(quantity, text, advice):
    with raises(*advice):
        quantity.read(text)


@pytest.mark.parametrize(
    ("quantity", "value", "text"),
    [
        (BANDWIDTH, 12e9, "12 GB/s"),
        (BANDWIDTH, 12.589e9, "12.59 GB/s"),
        (BANDWIDTH, float("inf"), "no limit"),
        (SIZE, 24e9, "24 GB"),
        (SIZE, 999_999.0, "1 MB"),
        (SIZE, 0.0, "0 B"),
        (SIZE, 1.5e12, "1.5 TB"),
        (SIZE, 1e30, "1,000,000,000,000,000 PB"),
        (TIME, 5e-5, "50 µs"),
        (TIME, 0.0, "0 s"),
        (TIME, 120.0, "120 s"),
    ],
)
def test_values_are_written_with_the_prefix_that_suits_them(quantity, value, text):
    assert quantity.shown(value) == text


@given(st.sampled_from([BANDWIDTH, SIZE, TIME]), st.floats(1e-9, 1e18))
def test_what_is_written_is_read_as_the_same_value_but_for_rounding(quantity, value):
    text = quantity.shown(value).replace(",", "")
    assert quantity.read(text) == pytest.approx(value, rel=6e-4, abs=1e-12)
    assert quantity.read(repr(value)) == value
