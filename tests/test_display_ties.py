"""Several that are as good as the best are named with it."""

import pytest

from sparsepipe.display.ties import TIE, ties, ties_text


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


def test_a_tie_is_told_as_one():
    assert ties_text(["a"], "trains most", "train most") == "**a** trains most"
    told = ties_text(["a", "<b>", "c"], "trains most", "train most")
    assert told == "**a**, **&lt;b&gt;** and **c** train most, within 2% of each other"
