import pytest
from coded import mentions

from sparsepipe.util.text.numbers import sizes_spread, spread_text


def test_sizes_are_told_by_quantiles_and_bars():
    found = sizes_spread([1000] * 50 + [2000] * 40 + [50_000] * 10)
    assert (found["samples"], found["least"], found["median"], found["most"]) == (100, 1000, 1500, 50_000)
    assert sum(found["histogram"]) == 100 and found["histogram"][0] == 50 and found["histogram"][-1] == 10
    text = spread_text(found, "voxels")
    assert mentions(text, "1,000") and "median 1,500" in text and "█" in text


@pytest.mark.parametrize("sizes", [[7], [7, 7, 7], [0, 0], [0, 10**12]])
def test_samples_of_one_size_and_of_none_have_a_histogram_too(sizes):
    found = sizes_spread(sizes)
    assert sum(found["histogram"]) == len(sizes) and spread_text(found, "tokens").count("|") == 2


def test_nothing_has_no_sizes():
    with pytest.raises((ValueError, IndexError)):
        sizes_spread([])
