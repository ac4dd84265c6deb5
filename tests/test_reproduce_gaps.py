"""Published profiles planned for figure 12, and what it draws of them."""

import pytest
from coded import raises

from sparsepipe import Cluster, Link, partition
from sparsepipe.planning import comparable
from sparsepipe.study.machines import published_profiles, reference_seconds
from sparsepipe.views.plots import Gap, gaps, gaps_table


def test_each_planner_has_a_mark_for_its_gap_and_one_for_its_seconds():
    """A gap that nobody proved has none."""
    found = [Gap("a", 3, 2, "one", 0.1, 0.5), Gap("b", 4, 2, "one", None, 2.0), Gap("a", 3, 2, "two", 0.0, 0.0)]
    table = gaps_table(found)
    assert list(table.gap[[0, 2]]) == [0.1, 0.0] and table.gap.isna()[1]
    left, right, *others = gaps(found).data
    assert list(left.x)[0] == pytest.approx(10.0) and list(right.x) == [0.5, 2.0] and len(others) == 2
    assert [round(y) for y in left.y] == [1, 0], "the first network on top"
    assert left.y[0] != others[0].y[0] and round(others[0].y[0]) == 1, "two marks of one gap do not hide each other"
    assert others[1].x[0] > 0, "a logarithmic axis has no place for 0"
    assert gaps([]).layout.annotations[0].text
    titles = [figure.layout.title.text for figure in (gaps([]), gaps(found))]
    assert titles[0] == titles[1], "the title of an axis stood above the figure"


def test_shipped_profiles_are_planned_without_a_folder(capsys):
    known = published_profiles(only=["minkvgg16bn"])
    assert list(known) == ["minkvgg16bn"] and "data_manifests/profiles" in capsys.readouterr().out
    cluster = Cluster.uniform(4, device_type=known["minkvgg16bn"].device_types[0], link=Link(1e9))
    plans = [partition(known["minkvgg16bn"], cluster, planner=planner) for planner in ("optimal", "data-parallel")]
    reference = reference_seconds()
    best, other = (
        Gap.of(p, "x", 4, reference_seconds=reference) for p in comparable(plans, known["minkvgg16bn"], cluster)
    )
    assert best.gap == 0 < other.gap and (best.planner, best.layers) == ("optimal", 52)
    assert gaps_table([best]).reference_seconds[0] == reference > 0


def test_published_profiles_are_called_as_their_folders(shared_reference):
    known = published_profiles(str(shared_reference / "profiles"), ["vgg16", "minkvgg_v0.02_b64_RTX"])
    assert {name: len(profile.graph.layers) for name, profile in known.items()} == {
        "vgg16": 41,
        "minkvgg_v0.02_b64_RTX": 53,
    }
    with raises("profile.not_found", "no profile of vgg17"):
        published_profiles(str(shared_reference / "profiles"), ["vgg17"])
