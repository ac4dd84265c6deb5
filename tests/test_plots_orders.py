"""Orders of minibatches, drawn: a bar for each simulated epoch, a marker for each real one, a dash at the bound."""

from sparsepipe import plots
from sparsepipe.views.plots import OrderedEpoch

EPOCHS = [
    OrderedEpoch("shuffle", "2 stages", 1.2, 1.0),
    OrderedEpoch("planned", "2 stages", 1.05, 1.0),
    OrderedEpoch("shuffle", "4 stages", 1.5, 0.99),
    OrderedEpoch("planned", "2 stages", 1.07, source="emulated"),
]


def test_every_epoch_is_drawn_once_and_every_bound():
    figure = plots.orders(EPOCHS)
    bars = {
        (bar.name, machine): y
        for bar in figure.data
        if bar.type == "bar" and bar.y[0] is not None
        for machine, y in zip(bar.customdata, bar.y, strict=True)
    }
    assert bars == {("shuffle", "2 stages"): 1.2, ("shuffle", "4 stages"): 1.5, ("planned", "2 stages"): 1.05}
    (marker,) = (one for one in figure.data if one.type == "scatter" and one.name == "planned")
    assert tuple(marker.y) == (1.07,)
    dashes = [y for one in figure.data if one.type == "scatter" and one.marker.symbol == "line-ew" for y in one.y if y]
    assert sorted(dashes) == sorted([1.0, 1.0, 0.99] * 2), "in white and in ink"
    table = plots.orders_table(EPOCHS)
    assert list(table.order) == ["shuffle", "planned", "shuffle", "planned"] and table.lower_bound.isna().sum() == 1


def test_nothing_to_draw_says_so():
    assert not any(one.name for one in plots.orders([]).data) and plots.orders_table([]).empty
