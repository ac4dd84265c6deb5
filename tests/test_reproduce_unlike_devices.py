"""What 05_partition plans for: the mixed cluster by default, the published profiles by one name, files of one's own."""

import pytest
from coded import mentions, raises

from sparsepipe import (
    Cluster,
    CostSample,
    Layer,
    LayerCost,
    LayerGraph,
    Link,
    Profile,
    partition,
)
from sparsepipe.data.manifests import get_manifest
from sparsepipe.planning import PLANNERS
from sparsepipe.study.unlike_devices import (
    CORES,
    MEASURED,
    MIXED,
    STAND_IN,
    default_cluster,
    one_more,
    two_machines,
    unlike_devices,
)
from sparsepipe.util.io.files import sha256

MODEL = "minkvgg16bn"


@pytest.fixture(autouse=True)
def nothing_published(monkeypatch, tmp_path):
    monkeypatch.delenv("SPARSEPIPE_REFERENCE", raising=False)
    monkeypatch.delenv("SPARSEPIPE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_by_default_devices_are_unlike_and_nothing_is_downloaded():
    profile, cluster = unlike_devices(MODEL)
    assert len({kind.name for kind in cluster.device_types}) == 4 and len(cluster.nodes) == 2
    whole = {kind: sum(cost.forward for cost in _costs(profile, kind)) for kind in profile.device_types}
    assert max(whole.values()) > 1.5 * min(whole.values()), "a fast card is worth something"
    best, even = (partition(profile, cluster, planner=name) for name in ("optimal", "model-parallel"))
    assert best.estimate.period_seconds < 0.9 * even.estimate.period_seconds, "which layers on which card matters"


def _costs(profile, kind):
    return [profile.cost(k, kind) for k in range(len(profile.graph.layers))]


def test_this_machines_cores_by_name_and_where_nothing_was_measured_elsewhere(capsys):
    assert unlike_devices(MODEL, cluster=CORES) is None
    assert unlike_devices("a-net-of-ones-own") is None
    assert "a-net-of-ones-own" in capsys.readouterr().out


def test_another_network_of_ours_stands_in_where_none_is_kept(capsys):
    profile, cluster = unlike_devices("minkresnet14")
    assert profile.origin["model"] == STAND_IN == MODEL and len(cluster.device_types) == 4
    told = capsys.readouterr().out
    assert mentions(told, "minkresnet14", MODEL)
    unlike_devices(MODEL)
    assert not capsys.readouterr().out


def test_the_default_is_the_mixed_cluster_where_its_profiles_are_of_these_minibatches(capsys):
    """One default, whether or not 02 was run: it had been this machine's types once 02 was."""
    asked = {"data": "", "voxel_size": 0.02, "batch_size": 8}
    assert default_cluster(MODEL, **asked) == MIXED and not capsys.readouterr().out
    others = ({"data": "scans"}, {"voxel_size": 0.03}, {"batch_size": 16})
    for model, other in (("minkresnet14", {}), *((MODEL, other) for other in others)):
        assert default_cluster(model, **asked | other) == MEASURED
        told = capsys.readouterr().out
        assert mentions(told, model) and told.count("\n") == 1


def by_threads(threads, seconds):
    layers = tuple(Layer(f"conv{k}", "", 1e6) for k in range(12))
    costs = tuple(LayerCost((CostSample(1000, seconds, 2 * seconds, 1e5),)) for _ in layers)
    origin = {"source": "measured", "model": "net", "engine": "native", "threads": threads}
    return Profile(LayerGraph.chain(layers), {"cpu": costs}, (1000.0,), origin)


def test_two_machines_have_both_types_that_02_measured():
    """By one thread and by two: which layers go where matters, and every planner can plan for them."""
    inside = Link(2e9, 1e-5)
    profile, cluster = two_machines([by_threads(1, 0.01), by_threads(2, 0.005)], inside=inside)
    assert profile.device_types == ("native-1t", "native-2t") and profile.origin["model"] == "net"
    assert [[kind.name for kind in node.device_types] for node in cluster.nodes] == [["native-2t", "native-1t"]] * 2
    assert [node.link for node in cluster.nodes] == [inside, inside] and cluster.network.bandwidth == 1.25e9
    assert [profile.cost(0, kind).forward for kind in profile.device_types] == [0.01, 0.005]
    plan = partition(profile, cluster, planner="model-parallel")
    assert sorted((*stage.device_types, len(stage.layers)) for stage in plan.stages) == [
        *[("native-1t", 2)] * 2,
        *[("native-2t", 4)] * 2,
    ]
    assert all(partition(profile, cluster, planner=name).stages for name in PLANNERS)


def test_the_published_profiles_are_one_parameter_away(shared_reference, monkeypatch):
    monkeypatch.delenv("SPARSEPIPE_DATA", raising=False)  # they are part of the package
    profile, cluster = unlike_devices(MODEL, cluster="sparsepipe-mix")
    assert profile.device_types == ("RTX", "tv", "txp") and len(cluster.devices) == 8
    monkeypatch.setenv("SPARSEPIPE_REFERENCE", str(shared_reference))
    for name, cost in profile.costs.items():
        graph = shared_reference / "profiles" / "minkvgg" / f"minkvgg_v0.02_b64_{name}" / "graph.txt"
        assert cost == Profile.load(graph, device_type=name).costs[name]
    assert unlike_devices(MODEL, cluster="rtx-titan-v")[0].device_types == ("RTX", "TITAN V")
    for file in get_manifest("sparsepipe-profiles").files:
        path = shared_reference / "profiles" / "minkvgg" / file.path
        assert (path.stat().st_size, sha256(path)) == (file.num_bytes, file.sha256), "the manifest names these files"


def test_a_server_file_brings_both(shared_reference):
    profile, cluster = unlike_devices(MODEL, server_file=shared_reference / "servers" / "b64_tv2_txp2.txt")
    assert profile.device_types == ("tv", "txp") and [kind.name for kind in cluster.device_types] == ["tv", "txp"]


def test_files_of_ones_own(tmp_path, shared_reference):
    graph = shared_reference / "profiles" / "minkvgg" / "minkvgg_v0.02_b64_tv" / "graph.txt"
    Profile.load(graph, device_type="V100").save(tmp_path / "slow.json")
    own = Cluster.uniform(2, device_type="fast").to_toml()
    (tmp_path / "own.toml").write_text(own)
    files = {"fast": str(graph), "slow": str(tmp_path / "slow.json")}
    profile, cluster = unlike_devices(MODEL, profiles=files, cluster=str(tmp_path / "own.toml"))
    assert profile.device_types == ("fast", "slow") and len(cluster.devices) == 2
    with raises("profile.no_device_type", "fast", "slow"):
        unlike_devices(MODEL, profiles={"slow": files["slow"]}, cluster=str(tmp_path / "own.toml"))
    with raises("profile.not_fetched", "fast"):
        unlike_devices("other", cluster=str(tmp_path / "own.toml"))
    with raises("manifest.not_found", "nowhere", "cluster file", "mixed-cores, rtx-titan-v, sparsepipe-mix, two-cores"):
        unlike_devices(MODEL, cluster="nowhere")


def test_one_more_of_a_type_stands_where_the_last_one_does():
    _, cluster = unlike_devices(MODEL)
    more = one_more(cluster, "native-1t")
    assert [[kind.name for kind in node.device_types] for node in more.nodes] == [
        ["native-2t", "native-1t", "native-1t"],
        ["minkowski-2t", "minkowski-1t"],
    ]
    with raises("device_type.unknown", name="V100"):
        one_more(cluster, "V100")
