"""The kept profiles are of the networks they name, say where they come from, and plan."""

from pathlib import Path

import pytest

from scripts.measure_profiles import MODELS, TOLERANCE
from sparsepipe import Cluster, DeviceType, Node, Profile, partition
from sparsepipe.networks import network
from sparsepipe.values.profile import AGREEMENT

FOLDER = Path(__file__).resolve().parent.parent / "data_manifests" / "profiles"
PATHS = sorted(path for path in FOLDER.glob("*.json") if path.stem != "minkvgg-published")  # measured here
KINDS = ("native-1t", "native-2t", "minkowski-1t", "minkowski-2t")


def test_every_network_is_one_that_the_command_measures():
    assert {"minkunet14a", "minkunet34c-segmentation", "minkvgg16bn"} <= {path.stem for path in PATHS} <= set(MODELS)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_it_is_of_the_network_it_names(path):
    profile = Profile.load(path)
    of_model = network(path.stem, num_classes=10).graph()
    assert [layer.id for layer in profile.graph.layers] == [layer.id for layer in of_model.layers]
    assert profile.graph.edges == of_model.edges
    assert set(KINDS) <= set(profile.device_types)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_it_says_where_it_comes_from(path):
    profile = Profile.load(path)
    origins = profile.origin["joined"]
    assert [kind for origin in origins for kind in origin["device_types"]] == list(profile.device_types)
    for origin in origins:
        # The layers add up to a step. MinkowskiEngine's steps on two threads swing by themselves.
        tolerance = AGREEMENT if (origin["engine"], origin["threads"]) == ("minkowski", 2) else TOLERANCE
        assert origin["layers_over_whole"] == pytest.approx(1, abs=tolerance)
        assert {"device", "engine", "threads", "torch", "batch_size", "measured_voxels"} <= origin.keys()


@pytest.mark.parametrize("name", ["minkunet14a", "minkvgg16bn"])
def test_it_says_what_sockets_carry_of_each_layer(name):
    """Without zeros and with coded exponents: less than the tensors."""
    for layers in Profile.load(FOLDER / f"{name}.json").costs.values():
        whole, coded = (
            sum(getattr(sample, name) for cost in layers for sample in cost.samples)
            for name in ("output_bytes", "coded_output_bytes")
        )
        assert 0.3 * whole < coded < whole
        assert all(sample.coded_gradient_bytes for cost in layers[1:] for sample in cost.samples)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_it_plans_over_unlike_devices(path):
    profile = Profile.load(path)
    cluster = Cluster((Node("box", tuple(DeviceType(kind) for kind in KINDS)),))
    plan = partition(profile, cluster)
    assert not plan.violations(profile.graph, cluster) and plan.estimate.gap is not None
