"""Laws of size hold what physics asks of them, whatever was measured: over random profiles and all kept ones."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sparsepipe import CostSample, InputError, Layer, LayerCost, LayerGraph, Profile
from sparsepipe.values.costs import LayerTable
from sparsepipe.values.profile.size_laws import ATTENTION, BYTES, SECONDS, SizeLaws
from sparsepipe.views.plots.layer_costs import time_by_size_table

FOLDER = Path(__file__).parent.parent / "data_manifests" / "profiles"
KEPT = sorted(path for path in FOLDER.glob("*.json") if path.stem != "minkvgg-published")  # of several sizes
SPANS = np.geomspace(1 / 8, 8, 25)
SLACK = 1 + 1e-9


def grows_as_it_may(values, sizes, power):
    """Whether rows never fall, and grow at most with a power of the size."""
    ratio = values[:, 1:] / np.maximum(values[:, :-1], 1e-300)
    alive = values[:, :-1] > 0
    return ((ratio >= 1 / SLACK) & (ratio <= (sizes[1:] / sizes[:-1]) ** power * SLACK) | ~alive).all()


@st.composite
def measured(draw):
    """Sizes, values and spreads of a few rows: anything that a file may hold."""
    count, rows = draw(st.integers(1, 7)), draw(st.integers(1, 4))
    sizes = np.cumsum(
        [draw(st.floats(1, 1e5)), *draw(st.lists(st.floats(1, 1e5), min_size=count - 1, max_size=count - 1))]
    )
    numbers = st.one_of(st.just(0.0), st.floats(1e-7, 1e3))
    values = draw(arrays(float, (rows, count), elements=numbers))
    return sizes, values, values * draw(arrays(float, (rows, count), elements=st.floats(0, 0.5)))


@settings(max_examples=60, deadline=None)
@given(measured(), st.sampled_from([SECONDS, BYTES, ATTENTION]))
def test_whatever_was_measured_a_law_never_falls_and_grows_at_most_with_its_power(drawn, power):
    sizes, values, spreads = drawn
    asked = np.unique(np.concatenate([np.geomspace(sizes[0] / 8, sizes[-1] * 8, 60), sizes]))
    found = SizeLaws.fit(sizes, values, spreads, power=power).at(asked)
    assert np.isfinite(found).all() and (found >= 0).all()
    assert grows_as_it_may(found, asked, power)


NUMBERS = st.sampled_from([0.0, 5e-324, 1e-320, 1e-200, 1e-59, 1e-30, 1.0, 1e15, 1e30])  # what a profile may hold


@settings(max_examples=60, deadline=None)
@given(arrays(float, (2, 3), elements=NUMBERS), arrays(float, (2, 3), elements=NUMBERS))
def test_numbers_of_every_magnitude_have_a_law(values, spreads):
    laws = SizeLaws.fit(np.array([1e-30, 1.0, 1e15]), values, spreads)
    for numbers in (laws.at(np.array([0.0, 0.5, 1e15])), laws.uncertainty(np.array([0.0, 0.5, 1e15]))):
        assert np.isfinite(numbers).all() and (numbers >= 0).all()


@settings(max_examples=40, deadline=None)
@given(measured(), st.floats(0.01, 1e3), st.floats(0.01, 1e3))
def test_points_that_no_law_contradicts_are_met_within_their_spread(drawn, constant, slope):
    """The points lie anywhere within their spread of a curve that never falls and grows at most with the size."""
    sizes, values, spreads = drawn
    share = spreads / np.maximum(values, 1e-300) * (values > 0)
    truth = np.maximum(constant, slope * np.sqrt(sizes)) + slope * sizes / sizes[-1]
    points = truth * (1 + share * np.sign(values - np.median(values)))
    found = SizeLaws.fit(sizes, points, truth * share).at(sizes)
    # What looks wild is no point any more: a spread may be half of a value.
    kept = ~SizeLaws.fit(sizes, points, truth * share).left_out
    assert (np.abs(found - points) <= truth * share + 1e-9 * points)[kept].all()


def test_between_and_beyond_the_points_a_line_is_found_again():
    """A constant and a slope, from an eighth to eight times; beyond what was measured in proportion."""
    sizes, truth = np.array([250.0, 500, 1000, 2000]), lambda x: 3e-3 + 2e-6 * x
    law = SizeLaws.fit(sizes, truth(sizes)[None], np.zeros((1, 4)))
    assert law.at(np.array([300.0, 700, 1500]))[0] == pytest.approx(truth(np.array([300.0, 700, 1500])), rel=0.01)
    assert law.at(np.array([125.0, 16000]))[0] == pytest.approx([truth(250) / 2, truth(2000) * 8])


def test_voxels_of_deeper_layers_and_pairs_explain_what_size_alone_does_not():
    """Clouds of one size differ in their pairs: time follows these, and a law of the size their mean."""
    rng = np.random.default_rng(0)
    sizes = np.geomspace(1000, 8000, 8)
    pairs = 20 * sizes * rng.uniform(0.8, 1.2, 8)
    seconds = (1e-3 + 1e-7 * pairs)[None]
    counts = SizeLaws.fit(sizes, pairs[None], np.zeros((1, 8)), power=BYTES)
    law = SizeLaws.fit(sizes, seconds, 0.05 * seconds, drivers=[(pairs[None], counts.constants, counts.slopes)])
    assert law.constants[0] == pytest.approx(1e-3, rel=0.1) and law.slopes[0] == pytest.approx(2e-6, rel=0.1)
    blind = SizeLaws.fit(sizes, seconds, 0.05 * seconds)
    assert abs(blind.constants[0] / 1e-3 - 1) > abs(law.constants[0] / 1e-3 - 1)


@pytest.mark.parametrize("noise", [0.05, 0.2])
@pytest.mark.parametrize("sizes", [(0.85, 1.0, 1.05), (0.25, 0.5, 1, 2), (0.2, 0.3, 0.5, 0.8, 1.3, 2.0)])
@pytest.mark.parametrize("shows_spread", [True, False])
def test_noisy_points_predict_no_worse_than_proportion(noise, sizes, shows_spread):
    """On 400 layers of known costs, of which a half have a constant part, from an eighth to eight times."""
    rng = np.random.default_rng(1)
    x = 10_000 * np.array(sizes)
    constant = rng.uniform(0, 0.3, 400) * (rng.random(400) < 0.5)
    slope = (1 - constant) / 10_000

    def truth(at):
        return constant[:, None] + slope[:, None] * at

    points = truth(x) * np.exp(noise * rng.standard_normal((400, len(x))))
    spreads = 1.35 * noise * truth(x) if shows_spread else 0 * points
    asked = 10_000 * SPANS
    law = SizeLaws.fit(x, points, spreads).at(asked)
    proportion = (points / x).mean(axis=1)[:, None] * asked
    error, plain = (np.abs(found / truth(asked) - 1) for found in (law, proportion))
    assert error.mean() <= plain.mean() * 1.02
    assert np.abs(law.sum(axis=0) / truth(asked).sum(axis=0) - 1).max() <= (
        np.abs(proportion.sum(axis=0) / truth(asked).sum(axis=0) - 1).max() + 0.01
    )


def test_one_wild_point_among_several_is_left_out():
    sizes = np.array([1000.0, 2000, 4000, 8000])
    rows = np.tile(1e-6 * sizes, (8, 1))
    for k in range(4):
        rows[k, k] *= 100
        rows[4 + k, k] = 0.0
    law = SizeLaws.fit(sizes, rows, 0.02 * rows)
    assert (law.left_out.sum(axis=1) == 1).all() and law.left_out[np.arange(8), [*range(4)] * 2].all()
    # The ends of what was measured are the others' then.
    assert law.at(sizes) == pytest.approx(np.tile(1e-6 * sizes, (8, 1)), rel=0.05)


def test_attention_grows_with_the_square_and_nothing_else_does():
    sizes = np.array([100.0, 200, 400, 800])
    square, line = 1e-3 + 1e-6 * sizes + 2e-8 * sizes**2, 1e-3 + 1e-6 * sizes
    law = SizeLaws.fit(sizes, np.stack([square, line]), np.zeros((2, 4)), power=ATTENTION)
    assert law.squares[0] > 0 and law.squares[1] == 0
    twice = law.at(np.array([800.0, 1600]))
    assert 2.5 < twice[0, 1] / twice[0, 0] <= 4.5 and twice[1, 1] / twice[1, 0] == pytest.approx(2)
    assert law.at(np.array([300.0]))[0, 0] == pytest.approx(1e-3 + 3e-4 + 2e-8 * 9e4, rel=0.02)


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_kept_profiles_hold_the_laws_from_an_eighth_to_eight_times(path):
    profile = Profile.load(path)
    sizes = profile.size() * SPANS
    for name in profile.device_types:
        found = profile.costs_at(name, sizes)
        for field in ("forward", "backward", "kernel_map_seconds"):
            assert grows_as_it_may(found[field], sizes, SECONDS), field
        for field in ("output_bytes", "coordinate_bytes", "saved_bytes", "kernel_map_pairs"):
            assert grows_as_it_may(found[field], sizes, BYTES), field
        whole = (found["forward"] + found["backward"]).sum(axis=0)
        low, high = profile.measured_sizes(name)
        for beyond in (sizes <= low, sizes >= high):
            paces = (whole / sizes)[beyond]
            assert beyond.any() and paces == pytest.approx(paces[0], rel=1e-6), "proportional beyond what was measured"


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_kept_profiles_meet_what_was_measured(path):
    """Each layer's points are met within their spread, unless they contradict each other by more than that."""
    profile = Profile.load(path)
    checked = 0
    for name, costs in profile.costs.items():
        sizes = np.array([sample.size for sample in costs[0].samples])
        found = profile.costs_at(name, sizes)
        for way in ("forward", "backward"):
            for layer, cost in enumerate(costs):
                points = np.array([getattr(sample, way) for sample in cost.samples])
                spreads = np.array([getattr(sample, f"{way}_spread") for sample in cost.samples])
                low, high = points - spreads, points + spreads
                may = high[None, :] * np.maximum(sizes[:, None] / sizes[None, :], 1.0)  # at i, by point j
                if points.all() and (low[:, None] <= may).all():
                    assert (np.abs(found[way][layer] - points) <= spreads + 1e-9 * points).all()
                    checked += 1
    assert checked > 0.2 * len(profile.device_types) * len(profile.graph.layers)


def one_layer(*samples, **more):
    graph = LayerGraph.chain([Layer("a", "", 8)])
    return Profile(graph, {"cpu": (LayerCost(tuple(CostSample(*sample) for sample in samples)),)}, **more)


def test_a_profile_of_one_size_is_proportional_and_one_without_a_size_holds_everywhere():
    sized, constant = one_layer((1000, 1.0, 2.0, 40.0), sizes=(1000,)), one_layer((0, 1.0, 2.0, 40.0))
    assert [sized.cost(0, "cpu", size).backward for size in (0, 500, 10**12)] == pytest.approx([0, 1.0, 2e9])
    assert [constant.cost(0, "cpu", size).backward for size in (0, 500, 10**12)] == [2.0] * 3


def test_a_point_at_size_0_is_the_constant():
    profile = one_layer((0, 1.0, 2.0, 40.0), (100, 3.0, 6.0, 80.0))
    found = [profile.cost(0, "cpu", size).forward for size in (0, 50, 100, 200)]
    assert found == pytest.approx([1.0, 2.0, 3.0, 6.0], rel=0.05)


def test_a_profile_of_zeros_costs_nothing():
    zeros = one_layer((1000, 0.0, 0.0, 0.0), (2000, 0.0, 0.0, 0.0))
    assert [zeros.cost(0, "cpu", size).forward for size in (0, 1500, 10**12)] == [0.0] * 3


@pytest.mark.parametrize("size", [-1, float("nan"), float("inf"), 1e31, "4096", True])
def test_sizes_that_are_none_are_refused(size):
    profile = one_layer((1000, 1.0, 2.0, 40.0), (2000, 2.0, 4.0, 80.0))
    with pytest.raises(InputError, match="size"):
        profile.cost(0, "cpu", size)
    with pytest.raises(InputError, match="size"):
        profile.costs["cpu"][0].at(size)


def test_a_table_has_what_each_layer_costs():
    """All layers at once, and one by one: the same numbers."""
    profile = Profile.load(KEPT[-1])
    sizes = profile.size() * np.array([0.3, 1.0, 4.0])
    for name in profile.device_types[:2]:
        table = LayerTable.of(profile, sizes, [name])
        for layer in (0, 7, len(profile.graph.layers) - 1):
            own = [profile.costs[name][layer].at(size) for size in sizes]
            assert [profile.cost(layer, name, size) for size in sizes] == own
            assert table.backward[name][layer] == pytest.approx([cost.backward for cost in own])
            assert table.saved_bytes[layer] == pytest.approx([cost.saved_bytes for cost in own])


def test_what_is_beyond_the_measured_range_is_less_certain():
    sizes = np.array([1000.0, 2000, 4000, 8000])
    law = SizeLaws.fit(sizes, 1e-6 * sizes[None], 0.02e-6 * sizes[None])
    inside, twice, four, quarter = law.uncertainty(np.array([3000.0, 16000, 32000, 250]))[0]
    assert inside == pytest.approx(0.01, abs=0.005)
    assert twice == pytest.approx(0.1, abs=0.02) and four == pytest.approx(0.2, abs=0.02) == quarter


def two_strides(shapes, *, stretch=1.0, typical=()):
    """A profile of a fine layer, which makes coarse coordinates, and a coarse one."""

    def sample(voxels, output, *, made=0.0, kept):
        return CostSample(voxels, 1e-6 * voxels, 2e-6 * voxels, output, made, kept, forward_temporary_bytes=kept / 4)

    kept = [two_strides_keep(*shape) for shape in shapes]
    fine = tuple(sample(a, 8.0 * a, kept=own[0]) for (a, _), own in zip(shapes, kept, strict=True))
    down = tuple(sample(a, 16.0 * b, made=16.0 * b, kept=own[1]) for (a, b), own in zip(shapes, kept, strict=True))
    coarse = tuple(sample(a, 16.0 * b, kept=own[2]) for (a, b), own in zip(shapes, kept, strict=True))
    costs = (LayerCost(fine), LayerCost(down, stretch), LayerCost(coarse, stretch))
    graph = LayerGraph.chain([Layer(id, "", 4.0) for id in "abc"])
    return Profile(graph, {"cpu": costs}, tuple(a for a, _ in typical), voxels_by_stride=tuple(typical))


def two_strides_keep(a, b):
    """The bytes of the three layers: features of voxels, and of the first layer pairs, the more the denser they lie."""
    return [64 * a + 96 * a * math.log(max(a / b, 1)), 32 * a + 8 * b, 128 * b]


SHAPES = ((1000, 310), (2000, 560), (4000, 1300), (8000, 2400))  # dense and flat clouds alike


@pytest.mark.parametrize("shape", [(3000, 700), (3000, 2000), (16000, 9000), (100, 40)])
def test_what_layers_keep_goes_with_the_voxels_of_their_own_stride(shape):
    found = two_strides(SHAPES, typical=[shape])
    kept = found.costs_of_large("cpu", [shape[0]])
    assert kept["saved_bytes"][:, 0] == pytest.approx(two_strides_keep(*shape), rel=1e-3)
    assert kept["forward_temporary_bytes"][:, 0] == pytest.approx(kept["saved_bytes"][:, 0] / 4, rel=1e-3)
    table = LayerTable.of(found, [shape[0]])
    np.testing.assert_array_equal(table.saved_bytes, kept["saved_bytes"])
    for name in ("forward", "backward", "output_bytes", "coordinate_bytes"):  # neither seconds nor what is sent
        np.testing.assert_array_equal(kept[name], found.costs_at("cpu", [shape[0]])[name])


def test_bytes_of_kernel_maps_go_with_their_pairs_also_where_shapes_were_nearly_alike():
    """Each voxel meets itself, and neighbours by how crowded voxels are: scatter among alike shapes tells no other."""
    shapes, scatter = ((1339, 765), (3350, 2080), (6674, 4045), (13324, 8541)), (0.98, 0.89, 1.02, 1.07)

    def pairs(a, b):
        return a * (1 + 7 * math.log(a / b))

    def cost(kept, *, made=0.0, paired=0.0):
        return LayerCost(
            tuple(
                CostSample(
                    a,
                    1e-6 * a,
                    2e-6 * a,
                    16.0 * (b if made else a),
                    made * b,
                    kept(a, b) * (1 if made else by),
                    kernel_map_pairs=paired * pairs(a, b) * by,
                    kernel_map_bytes=kept(a, b) * by * paired,
                )
                for (a, b), by in zip(shapes, scatter, strict=True)
            )
        )

    costs = (cost(lambda a, b: 30 * pairs(a, b), paired=1.0), cost(lambda a, b: 8.0 * b, made=16.0))
    graph, flat = LayerGraph.chain([Layer(id, "", 4.0) for id in "ab"]), (6494, 4927)
    found = Profile(graph, {"cpu": costs}, (6494,), voxels_by_stride=(flat,))
    kept = found.costs_of_large("cpu", [6494])
    assert kept["kernel_map_bytes"][0, 0] == pytest.approx(30 * pairs(*flat), rel=0.05)
    assert kept["large_output_bytes"][:, 0] == pytest.approx([16 * 6494, 16 * 4927])


def test_attention_goes_with_the_square_of_lengths_that_samples_tell():
    """Of as many tokens those in fewer samples are longer; a batch has eight. Old profiles do not tell samples."""
    shapes = ((94, 2), (136, 8), (272, 4), (640, 8), (712, 8), (1648, 16))

    def kept(size, samples):
        return 500.0 * size + 129.0 * size**2 / samples

    cost = LayerCost(tuple(CostSample(x, 1e-6 * x, 2e-6 * x, 8.0 * x, 0.0, kept(x, n)) for x, n in shapes))
    told = {"source": "measured", "device_types": ["cpu"], "batch_size": 8}
    told |= {"measured_tokens": [x for x, _ in shapes], "measured_samples": [n for _, n in shapes]}
    graph = LayerGraph.chain([Layer("scores", "", 4.0)])
    found = Profile(graph, {"cpu": (cost,)}, (400, 640), told, size_unit="tokens")
    for samples, sizes in ((8, (300, 864, 1600)), (2, (216, 400)), (16, (500, 1600))):
        own = replace(found, origin={**told, "batch_size": samples})
        by_law = own.costs_at("cpu", sizes)["saved_bytes"][0]
        assert by_law == pytest.approx([kept(x, samples) for x in sizes], rel=0.02)
    old = replace(found, origin={key: value for key, value in told.items() if key != "measured_samples"})
    assert old.costs_at("cpu", [864])["saved_bytes"][0, 0] != pytest.approx(kept(864, 8), rel=0.02)


def test_memory_is_that_of_minibatches_that_are_large_at_each_stride():
    """Their quantile: a dense minibatch and a flat one of fewer voxels have each the most of one stride."""
    found = two_strides(SHAPES, typical=[(4000, 900), (3000, 2000)])
    kept = found.costs_of_large("cpu", [found.size(0.99)])["saved_bytes"][:, 0]
    assert kept == pytest.approx(two_strides_keep(3990, 1989), rel=1e-3)


def test_where_each_stride_has_other_voxels_the_coarse_layers_keep_theirs():
    """Minibatches of 3000 voxels that have as many coarse ones as 6000 of the same shapes had when measured."""
    typical = [(3000, 900)]
    plain = two_strides(SHAPES, typical=typical).costs_of_large("cpu", [6000])["saved_bytes"]
    finer = two_strides(SHAPES, stretch=0.5, typical=typical).costs_of_large("cpu", [3000])["saved_bytes"]
    assert finer[2] == pytest.approx(plain[2])


PROPORTIONAL = tuple((a, 0.31 * a) for a in (1000, 2000, 4000, 8000))  # coarse voxels, as the samples measured have


@pytest.mark.parametrize(
    ("ratios", "density"),
    [
        ((), 1.0),
        ((1.4,), 1.0),  # a single minibatch has no standard error
        ((1.4, 1.4, 1.4), 1.4),
        ((0.7, 0.7), 0.7),
        ((1.1, 1.3), 1.2 - 0.01 / 0.2),  # mean 1.2, standard error .1: a quarter of the difference is chance
        ((0.8, 0.9, 1.3), 1.0),  # no further from 1 than chance explains
    ],
)
def test_seconds_go_with_how_dense_typical_minibatches_are_at_the_stride(ratios, density):
    """Coarse layers take the seconds of the measured minibatch that has as many voxels there; fine layers theirs."""
    typical = [(a, 0.31 * a * ratio) for a, ratio in zip((2000, 3000, 5000), ratios, strict=False)]
    found = two_strides(PROPORTIONAL, typical=typical)
    sizes = np.array([1500.0, 3000, 5000])
    costs = found.costs_at("cpu", sizes)
    np.testing.assert_allclose(costs["forward"], 1e-6 * np.outer([1, density, density], sizes), rtol=1e-6)
    np.testing.assert_allclose(costs["backward"], 2 * costs["forward"], rtol=1e-6)
    assert [found.cost(k, "cpu", 3000).forward for k in range(3)] == pytest.approx(costs["forward"][:, 1])
    if density == 1:
        plain = replace(found, voxels_by_stride=()).costs_at("cpu", sizes)
        for name, values in costs.items():
            np.testing.assert_array_equal(values, plain[name])


def test_density_neither_moves_what_was_measured_nor_contradicts_it():
    typical = [(3000, 1860), (4000, 2480)]
    measured = {"source": "measured", "device_types": ["cpu"]}
    dense, same = (replace(two_strides(PROPORTIONAL, typical=own), origin=measured) for own in (typical, ()))
    assert dense.warnings == same.warnings
    assert dense.measured_sizes("cpu") == same.measured_sizes("cpu") == (1000, 8000)
    assert dense.range_of_laws("cpu") == same.range_of_laws("cpu") == (1000, 8000)
    for name in ("output_bytes", "coordinate_bytes", "kernel_map_pairs"):
        np.testing.assert_array_equal(dense.costs_at("cpu", [3000])[name], same.costs_at("cpu", [3000])[name])
    assert dense.to_json()["costs"] == same.to_json()["costs"]
    assert time_by_size_table(dense).equals(time_by_size_table(same))  # the law that is drawn meets its points
    assert dense.cost(2, "cpu", 6000).forward == pytest.approx(8e-3)  # the largest measured, not one beyond
    assert dense.cost(2, "cpu", 16_000) == same.cost(2, "cpu", 16_000)
    finer = two_strides(PROPORTIONAL, stretch=0.5, typical=typical)  # twice as many coarse voxels again
    assert finer.cost(2, "cpu", 1000).forward == pytest.approx(4e-3)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(10, 10**6), st.integers(1, 10**6)), min_size=1, max_size=6),
    st.lists(st.integers(1, 9000), min_size=4, max_size=4, unique=True),
)
def test_seconds_of_dense_and_flat_minibatches_grow_as_they_may(typical, coarse):
    found = two_strides([(a, b) for (a, _), b in zip(SHAPES, coarse, strict=True)], typical=typical)
    sizes = found.size() * SPANS
    for name in ("forward", "backward"):
        values = found.costs_at("cpu", sizes)[name]
        assert np.isfinite(values).all() and grows_as_it_may(values, sizes, SECONDS)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(10, 10**6), st.integers(1, 10**6)), min_size=1, max_size=6), st.data())
def test_memory_of_large_minibatches_never_falls_and_grows_as_it_may(typical, data):
    coarse = data.draw(st.lists(st.integers(1, 9000), min_size=4, max_size=4, unique=True))
    found = two_strides([(a, b) for (a, _), b in zip(SHAPES, coarse, strict=True)], typical=typical)
    sizes = found.size() * SPANS
    kept = found.costs_of_large("cpu", sizes)
    for name in ("saved_bytes", "forward_temporary_bytes"):
        assert np.isfinite(kept[name]).all() and grows_as_it_may(kept[name], sizes, SECONDS)


def test_the_voxels_of_strides_are_kept_in_files_and_where_profiles_join(tmp_path):
    found = two_strides(SHAPES, typical=[(3000.0, 900.0), (3500.0, 1000.0)])
    assert Profile.load(found.save(tmp_path / "p.json")) == found
    assert found.digest != two_strides(SHAPES, typical=[(3000.0, 901.0), (3500.0, 1000.0)]).digest
    bare = two_strides(SHAPES)
    assert "voxels_by_stride" not in bare.to_json()
    assert (bare.renamed("gpu") | found).voxels_by_stride == found.voxels_by_stride
