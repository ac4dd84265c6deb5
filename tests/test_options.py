"""Options as they are typed: split, understood, made a value of, written again."""

from argparse import ArgumentParser
from dataclasses import dataclass

import pytest
from coded import raises

from sparsepipe.cli.options import setting_options
from sparsepipe.errors import InputError
from sparsepipe.util.io.options import option_values, split_options, typed, with_options, written_options
from sparsepipe.util.io.settings import Choice, Flag, Number, Settings, WholeNumber, listed, rows, setting


@dataclass(frozen=True)
class Walk:
    steps: int
    pace: float = 1.5
    name: str = "stroll"
    from_: int | None = None
    uphill: bool = False


def read(given):
    _, options = split_options(given, "walk", first={"walk": "steps"})
    return with_options(Walk, {key: typed(value) for key, value in options.items()}, "walk")


@pytest.mark.parametrize(
    ("given", "value", "written"),
    [
        ("walk:steps=3", Walk(3), "walk:3"),
        ("walk: 3 , pace = 2", Walk(3, 2.0), "walk:3,pace=2"),
        ("walk:3,pace=1e-7,uphill=TRUE", Walk(3, 1e-7, uphill=True), "walk:3,pace=1e-07,uphill=true"),
        ("walk:3,name=a:b,from=0,", Walk(3, name="a:b", from_=0), "walk:3,name=a:b,from=0"),
        ("walk:3,from=none,pace=0.1234567890123", Walk(3, 0.1234567890123), "walk:3,pace=0.1234567890123"),
    ],
)
def test_what_is_typed_becomes_a_value_and_is_written_as_it_is_typed(given, value, written):
    assert read(given) == value
    assert written_options("walk", value, first="steps") == written
    assert read(written) == value
    assert with_options(Walk, option_values(value), "walk") == value
    assert option_values(value).keys() == {"steps", "pace", "name", "from", "uphill"}


def test_a_float_s_whole_number_is_a_float():
    assert repr(read("walk:3,pace=2").pace) == "2.0"
    assert repr(read("walk:3").steps) == "3"


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ("walk:3,fast", ("option.malformed", "walk", "walk:3,fast", "fast")),
        ("walk:3,=2", ("option.malformed", "=2")),
        ("walk:3,pace=", ("option.malformed", "pace=")),
        ("walk:3,steps=4", ("option.twice", "steps")),
        ("walk:3,from_=4", ("option.unknown", "walk", "from_", "expected one of steps, pace, name, from, uphill")),
        ("walk", ("option.missing", "walk", "steps", "steps")),
    ],
)
def test_what_is_no_option_is_refused_in_one_line(given, error):
    with raises(*error) as caught:
        read(given)
    assert "\n" not in str(caught.value)


@dataclass(frozen=True, repr=False)
class Warmup(Settings):
    minibatches: int = setting(0, WholeNumber(0), "minibatches of the warm-up")
    scale: float | None = setting(None, Number(0, 1), "first factor", unit="F")
    shape: str = setting("linear", Choice(("linear", "cosine")), "curve")
    restart: bool = setting(True, Flag(), "warm-up after a restart")


def test_a_row_is_all_that_a_new_setting_needs():
    parser = ArgumentParser()
    setting_options(parser, rows(Warmup).values())
    told = parser.format_help()
    assert "--scale F" in told and "--shape {linear,cosine}" in told and "--no-restart" in told
    given = parser.parse_args(["--scale", "0.5", "--minibatches", "1e2", "--no-restart"])
    asked = Warmup(**{name: value for name, value in vars(given).items() if value is not None})
    assert asked == Warmup(100, 0.5, restart=False)
    with pytest.raises(InputError) as caught:
        Warmup(shape="square")
    assert caught.value.settings == {"shape": None}
    assert listed(Warmup).count("    - `") == 4
