"""Several that are as good as the best are named with it."""

import pytest

from sparsepipe.views.tables import EXACT, TIE, from_to, in_bold, ties


@pytest.mark.parametrize(
    ("values", "most", "least"),
    [
        ({"a": 1.0}, ["a"], ["a"]),
        ({"a": 10.0, "b": 10 * (1 - TIE), "c": 9.7, "d": 0.0}, ["a", "b"], ["d"]),
        ({"a": 5.0, "b": 5.0, "c": 5.0}, ["a", "b", "c"], ["a", "b", "c"]),
        ({"a": 0.3, "b": 0.305, "c": 0.98}, ["c"], ["a", "b"]),
    ],
)
def test_ties_are_within_a_share_of_the_best(values, most, least):
    assert ties(values) == most and ties(values, least=True) == least


def test_numbers_that_are_told_exactly_tie_where_tables_show_the_same():
    """`optimal` had the shortest time in a sentence, and two planners in the table below it had the same."""
    values = {"a": 16.88, "b": 16.8801, "c": 17.0, "d": float("nan")}
    assert ties(values, least=True, within=EXACT) == ["a", "b"] and ties(values, least=True) == ["a", "b", "c"]
    assert ties({"d": float("nan")}) == []
    assert in_bold(["a", "b", "c_d"]) == "**a**, **b** and **c&#95;d**" and in_bold(["a"]) == "**a**"


def test_a_range_of_one_value_is_one_value():
    assert from_to(0.0, 0.04, ".1f") == "0.0" and from_to(0.221, 0.514, ".0%") == "22% to 51%"
