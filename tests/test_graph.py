import random

import pytest
from coded import raises
from hypothesis import given
from hypothesis import strategies as st

from sparsepipe import Layer, LayerGraph


def diamond() -> LayerGraph:
    return LayerGraph(tuple(map(Layer, "abcd")), ((0, 1), (0, 2), (1, 3), (2, 3)))


def test_a_cut_counts_each_producer_once():
    graph = LayerGraph.chain(map(Layer, "abcde"), skips=[(0, 3), (0, 4)])
    assert [graph.producers_across(cut) for cut in range(1, 5)] == [(0,), (0, 1), (0, 2), (0, 3)]


def test_a_cut_may_be_any_down_set():
    assert diamond().alive({0, 2}) == (0, 2)
    assert diamond().alive({0, 1, 2, 3}) == ()


@given(st.integers(0, 10_000), st.integers(2, 12))
def test_layers_in_any_order_come_out_topological(seed, count):
    dice = random.Random(seed)
    ids = [f"n{k}" for k in range(count)]
    edges = [(ids[i], ids[j]) for i in range(count) for j in range(i + 1, count) if dice.random() < 0.3]
    shuffled = dice.sample(ids, count)
    graph = LayerGraph.from_ids(map(Layer, shuffled), edges)
    assert {layer.id for layer in graph.layers} == set(ids)
    assert {(graph.layers[i].id, graph.layers[j].id) for i, j in graph.edges} == set(edges)


def test_input_layers_are_the_sources_that_load_data():
    graph = LayerGraph.chain([Layer("node1", "Input0"), Layer("node2", "Conv")])
    assert graph.input_layers == {0}


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: LayerGraph((), ()), ("graph.empty",)),
        (lambda: LayerGraph((Layer("a"), Layer("a")), ()), ("graph.layer_twice", "a")),
        (lambda: LayerGraph((Layer("a"), Layer("b")), ((1, 0),)), ("graph.edge_backward", "1, 0")),
        (lambda: LayerGraph((Layer("a", "", -1.0),), ()), ("graph.parameter_bytes", "-1.0")),
        (lambda: LayerGraph.from_ids([Layer("a")], [("a", "z")]), ("graph.layer_unknown", "z")),
        (
            lambda: LayerGraph.from_ids(map(Layer, "abc"), [("a", "b"), ("b", "c"), ("c", "b")]),
            ("graph.cycle",),
        ),
        (lambda: LayerGraph.from_ids([Layer("a")], [("a", "a")]), ("graph.cycle", "a -> a")),
    ],
)
def test_bad_graphs_are_refused_in_one_line(make, error):
    with raises(*error):
        make()
