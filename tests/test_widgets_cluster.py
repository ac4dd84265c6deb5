"""The explorer shows the cluster that it was given, until somebody asks for another one; and says where devices are."""

import json
from dataclasses import replace

import pytest
from coded import mentions
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsepipe import (
    Cluster,
    CostSample,
    DeviceType,
    InputError,
    Layer,
    LayerCost,
    LayerGraph,
    Link,
    Node,
    Profile,
    partition,
)
from sparsepipe.records.formats.sparsepipe_servers import ServerFile
from sparsepipe.views.plots import stages
from sparsepipe.views.widgets import PartitionExplorer
from sparsepipe.views.widgets.settings import BY_TYPE

SECONDS = (0.010, 0.014, 0.007, 0.022, 0.009, 0.016, 0.012)
SPEEDS = {"tv": 1.0, "txp": 1.3, "rtx": 0.6}


def profile_of(origin=None, sizes=(1000.0,)):
    layers = tuple(Layer(f"conv{k}", "", 4e6) for k in range(len(SECONDS)))
    costs = {}
    for name, speed in SPEEDS.items():
        few = [CostSample(1000, s * speed, 2 * s * speed, 3e6, 0, 3e6) for s in SECONDS]
        costs[name] = tuple(LayerCost((f, CostSample(2000, 2 * f.forward, 2 * f.backward, 6e6, 0, 6e6))) for f in few)
    return Profile(LayerGraph.chain(layers), costs, sizes, origin or {"batch_size": 16, "voxel_size": 0.04})


PROFILE = profile_of()
bandwidths = st.one_of(st.sampled_from([12e9, 1.25e9, 1.25e8, float("inf"), 1e10]), st.floats(1e7, 1e13))
latencies = st.sampled_from([0.0, 1e-5, 5e-5, 0.00012345])
links = st.builds(Link, bandwidths, latencies)


@st.composite
def clusters(draw):
    """One to three nodes of one to three devices, of mixed types, links and limits."""
    limits = {name: draw(st.sampled_from([float("inf"), 24e9, 1.1e8, 7.77e7])) for name in SPEEDS}
    nodes = []
    for k in range(draw(st.integers(1, 3))):
        names = draw(st.lists(st.sampled_from(list(SPEEDS)), min_size=1, max_size=3))
        kinds = tuple(DeviceType(name, limits[name]) for name in names)
        address = draw(st.sampled_from(["127.0.0.1", f"10.0.0.{k}"]))
        nodes.append(Node(f"n{k}", kinds, draw(links), address))
    return Cluster(tuple(nodes), draw(links))


def timeless(plan):
    return replace(plan, estimate=replace(plan.estimate, plan_seconds=0.0))


def made_by(code, profile):
    scope = {"profile": profile}
    exec(code, scope)
    return scope["plan"], scope["cluster"]


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(clusters())
def test_the_plan_shown_first_is_that_of_the_cluster_given(cluster):
    explorer = PartitionExplorer(PROFILE, cluster)
    try:
        best = partition(PROFILE, cluster)
    except InputError as refused:
        assert explorer.plan is None and explorer.shown is None and str(refused) == explorer.state.refused
        return
    assert explorer.shown_cluster == cluster
    assert timeless(explorer.plan) == timeless(best)
    plan, again = made_by(explorer.as_code(), PROFILE)
    assert again == cluster and timeless(plan) == timeless(best)
    assert "links as given" in explorer.controls.devices.placed.value


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(clusters(), st.data())
def test_the_code_makes_what_is_shown_whatever_was_moved(cluster, data):
    explorer = PartitionExplorer(PROFILE, cluster)
    for slider in explorer.controls.devices.counts.values():
        slider.value = data.draw(st.integers(0, 4))
    if data.draw(st.booleans()):
        explorer.controls.devices.placement.value = BY_TYPE
    explorer.controls.devices.inside.value = data.draw(
        st.sampled_from([explorer.controls.devices.inside.value, 3e9, 12e9])
    )
    explorer.controls.devices.between_latency.value = data.draw(st.sampled_from([0.0, 2e-4]))
    explorer.controls.workload.batch_size.value = data.draw(st.sampled_from([16, 48]))
    explorer.controls.devices.memory.value = data.draw(st.sampled_from([0.0, 2e8]))
    if explorer.plan is None:
        return
    plan, again = made_by(explorer.as_code(), PROFILE)
    assert again == explorer.shown_cluster
    assert timeless(plan) == timeless(explorer.plan)


def test_a_mixed_node_is_not_split_by_type():
    """Two tv and two txp in one node behind a slow network became two nodes, and the period another, without a word."""
    types = tuple(DeviceType(name) for name in ("tv", "txp", "tv", "txp"))
    cluster = Cluster((Node("mixed", types, Link(12e9)),), Link(1.25e8))
    explorer = PartitionExplorer(PROFILE, cluster)
    assert explorer.shown_cluster == cluster
    before = explorer.plan.estimate.period_seconds
    assert before == partition(PROFILE, cluster).estimate.period_seconds
    explorer.controls.devices.placement.value = BY_TYPE
    assert [node.name for node in explorer.shown_cluster.nodes] == ["node of tv", "node of txp"]
    assert explorer.plan.estimate.period_seconds > before
    assert mentions(explorer.controls.devices.placed.value, "2 ×", "2 ×")
    assert "given: mixed: 2 × tv + 2 × txp" in explorer.controls.devices.placed.value


def test_counts_keep_devices_on_their_nodes_and_it_is_said():
    nodes = (
        Node("a", (DeviceType("tv"), DeviceType("txp")), Link(1e9)),
        Node("b", (DeviceType("txp"), DeviceType("tv")), Link(2e9)),
    )
    explorer = PartitionExplorer(PROFILE, Cluster(nodes, Link(1e8)))
    explorer.controls.devices.counts["tv"].value = 1
    placed = explorer.shown_cluster.nodes
    assert [[kind.name for kind in node.device_types] for node in placed] == [["tv", "txp"], ["txp"]]
    assert [node.link.bandwidth for node in placed] == [1e9, 2e9]
    assert "a: tv + txp; b: txp" in explorer.controls.devices.placed.value
    assert "last nodes first" in explorer.controls.devices.placed.value
    explorer.controls.devices.counts["tv"].value = 4
    assert [len(node.device_types) for node in explorer.shown_cluster.nodes] == [2, 4]
    explorer.controls.devices.counts["tv"].value, explorer.controls.devices.counts["txp"].value = 2, 0
    assert [node.name for node in explorer.shown_cluster.nodes] == ["a", "b"]
    explorer.controls.devices.counts["txp"].value = 2
    assert explorer.shown_cluster.nodes == nodes and "links as given" in explorer.controls.devices.placed.value


def test_links_of_each_node_stay_until_the_slider_is_moved():
    nodes = (Node("a", (DeviceType("tv"),) * 2, Link(12e9, 1e-5)), Node("b", (DeviceType("tv"),) * 2, Link(1e9, 1e-5)))
    explorer = PartitionExplorer(PROFILE, Cluster(nodes, Link(1.25e9)))
    assert explorer.controls.devices.inside.value is None and explorer.controls.devices.inside.text == "as given"
    assert explorer.controls.devices.between.value == 1.25e9 and explorer.controls.devices.between.text == "1.25 GB/s"
    explorer.controls.devices.inside.value = 5e9
    assert [node.link for node in explorer.shown_cluster.nodes] == [Link(5e9, 1e-5)] * 2
    assert "links changed" in explorer.controls.devices.placed.value


def test_a_limit_for_all_and_back_to_each_type_its_own():
    types = (DeviceType("tv", 12e9), DeviceType("txp", 24e9))
    cluster = Cluster((Node("a", types, Link(1e9)),))
    explorer = PartitionExplorer(PROFILE, cluster)
    explorer.controls.devices.memory.value = 3e9
    assert {kind.memory_bytes for kind in explorer.shown_cluster.device_types} == {3e9}
    explorer.controls.devices.memory.value = 0.0
    assert explorer.shown_cluster == cluster


def test_a_server_file_of_mixed_servers_is_shown_as_it_is(tmp_path):
    text = "Server0\n    tv 2 a.txt\n    txp 1 b.txt\nServer1\n    txp 2 b.txt\n    rtx 1 c.txt\n"
    (tmp_path / "servers").write_text(text)
    cluster = ServerFile.load(tmp_path / "servers").cluster(bandwidth=12e9, network=1.25e8, memory_bytes=1.1e9)
    explorer = PartitionExplorer(PROFILE, cluster)
    assert explorer.shown_cluster == cluster
    assert timeless(explorer.plan) == timeless(partition(PROFILE, cluster))


def test_a_profile_without_sizes_is_planned_as_it_is():
    profile = profile_of(sizes=())
    cluster = Cluster.uniform(3, device_type="tv", link=Link(12e9))
    explorer = PartitionExplorer(profile, cluster)
    assert timeless(explorer.plan) == timeless(partition(profile, cluster))
    explorer.controls.workload.batch_size.value = 40
    plan, _ = made_by(explorer.as_code(), profile)
    assert timeless(plan) == timeless(explorer.plan)


def test_what_is_said_of_many_nodes_is_short():
    nodes = tuple(Node(f"n{k}", (DeviceType("tv"),) * 2, Link(12e9)) for k in range(8))
    explorer = PartitionExplorer(PROFILE, Cluster(nodes, Link(1e9)))
    assert "n0 … n7 (8 nodes): 2 × tv each" in explorer.controls.devices.placed.value


def test_the_settings_are_told_in_one_line_and_kept_as_json():
    types = (DeviceType("tv", 12e9), DeviceType("txp", 24e9))
    explorer = PartitionExplorer(PROFILE, Cluster((Node("a", types, Link(12e9, 5e-5)),), Link(1e9)))
    told = explorer.shown.told()
    assert mentions(told, "12 GB/s", "50 µs", "12 GB", "24 GB", 16, "0.04", "1f1b", "(stash)")
    kept = json.loads(json.dumps(explorer.controls.settings().to_json(), allow_nan=False))
    assert kept["devices"] == {"tv": 1, "txp": 1} and kept["memory_bytes"] == "as given"
    assert kept["bandwidth"] == 12e9 and kept["placement"] == "as given"


def test_figures_carry_the_settings_and_what_they_rest_on(tmp_path, monkeypatch):
    """Exported figures named no link, no slider's value and no data: two with other links looked alike."""
    monkeypatch.setenv("BROWSER_PATH", str(tmp_path / "none"))
    profile = profile_of({"batch_size": 16, "voxel_size": 0.04, "synthetic": True})
    cluster = Cluster((Node("a", (DeviceType("tv", 12e9),) * 3, Link(12e9, 5e-5)),), Link(1e9))
    explorer = PartitionExplorer(profile, cluster, figures=tmp_path, note="net16 on shapes")
    explorer.view.pin.click()
    explorer.controls.devices.inside.value, explorer.controls.devices.memory.value = 1e8, 24e9
    explorer.exporter.button.click()
    kept = json.loads((tmp_path / "explorer_stages.json").read_text())
    title = kept["title"]
    assert "synthetic shapes · net16 on shapes" in title
    assert "A: 3 × tv · links 12 GB/s, 50 µs · memory 12 GB · batch size 16 · voxel size 0.04" in title
    assert "B: 3 × tv · links 100 MB/s, 50 µs · memory 24 GB" in title and "planner optimal" in title
    rests_on = kept["provenance"]
    assert rests_on["settings"]["bandwidth"] == 1e8 and rests_on["settings"]["memory_bytes"] == 24e9
    assert rests_on["settings"]["compared_with"]["bandwidth"] == 12e9
    assert [one["digest"] for one in rests_on["profiles"]] == [profile.digest]
    assert [one["digest"] for one in rests_on["clusters"]] == [cluster.digest, explorer.shown_cluster.digest]
    assert len(rests_on["plans"]) == 2
    title = explorer.exporter.make().figures["explorer_timeline"][0].layout.title.text
    assert "12 GB/s" not in title and "100 MB/s" in title, "the timeline is of B alone"


def test_recomputation_is_a_setting_that_the_code_knows():
    """A message recommended recomputation, for which there was no switch."""
    explorer = PartitionExplorer(PROFILE, Cluster.uniform(2, device_type="tv", link=Link(12e9)))
    most = max(part.memory_bytes for part in explorer.plan.estimate.stages)
    explorer.controls.plan.recompute.value = True
    assert all(stage.recompute for stage in explorer.plan.stages)
    assert max(part.memory_bytes for part in explorer.plan.estimate.stages) <= most
    plan, _ = made_by(explorer.as_code(), PROFILE)
    assert timeless(plan) == timeless(explorer.plan)
    explorer.controls.stages.pin_cuts.value = True
    plan, _ = made_by(explorer.as_code(), PROFILE)
    assert plan.stages == explorer.plan.stages and "recomputation" in explorer.shown.told()


def test_a_long_note_makes_a_figure_higher_and_ends_its_lines_between_settings(tmp_path):
    """The settings' lines ran into the plot below them."""
    explorer = PartitionExplorer(PROFILE, Cluster.uniform(2, device_type="tv", link=Link(12e9)), note="net16")
    figure = explorer.exporter.make().figures["explorer_stages"][0]
    plain = stages(explorer.plan)
    further = figure.layout.title.text.count("<br>") - 1
    assert further >= 2 and figure.layout.title.text.count("<br>") * 20 < figure.layout.margin.t
    grown = figure.layout.margin.t - (plain.layout.margin.t or plain.layout.template.layout.margin.t)
    assert grown == figure.layout.height - plain.layout.height == 20 * further
    assert "<br>planner" in figure.layout.title.text or "<br>voxel size" in figure.layout.title.text
