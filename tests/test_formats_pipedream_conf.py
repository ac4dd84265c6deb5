import json

import pytest
from coded import raises

from sparsepipe import GraphText, Plan, Profile, Stage, partition
from sparsepipe.networks import network
from sparsepipe.records.formats.pipedream_conf import conf_of, export_plan, graph_text_of, load_conf, load_plan
from sparsepipe.values.cluster import Cluster, Link


@pytest.fixture
def profile(shared_reference):
    return Profile.load(shared_reference / "profiles/minkvgg/minkvgg_v0.02_b64_RTX/graph.txt")


@pytest.fixture
def plan(profile):
    return partition(profile, Cluster.uniform(4, link=Link(1e9)))


def test_a_plan_survives_pipedreams_files(tmp_path, profile, plan):
    written = export_plan(plan, tmp_path, profile=profile)
    assert [path.name for path in written] == ["hybrid_conf.json", "mp_conf.json", "dp_conf.json", "gpus=4.txt"]
    text = GraphText.load(tmp_path / "gpus=4.txt")
    again = load_conf(tmp_path / "hybrid_conf.json", text)
    assert [(stage.layers, stage.ranks) for stage in again.stages] == [(s.layers, s.ranks) for s in plan.stages]
    one_each = load_conf(tmp_path / "mp_conf.json", text)
    assert [stage.ranks for stage in one_each.stages] == [(k,) for k in range(len(plan.stages))]
    everyone = load_conf(tmp_path / "dp_conf.json", text)
    assert len(everyone.stages) == 1
    assert everyone.ranks == (0, 1, 2, 3)


def test_what_loads_the_data_is_in_stage_0(profile, plan):
    assert graph_text_of(plan, profile).nodes[0].stage_id == 0


def test_depths_become_warm_ups(tmp_path, profile):
    layers = tuple(layer.id for layer in profile.graph.layers[1:])
    plan = Plan((Stage(layers[:9], (0,), warmup=3), Stage(layers[9:], (1,), warmup=0)))
    assert conf_of(plan)["stage_to_depth_map"] == {"0": 3, "1": 0}
    export_plan(plan, tmp_path, profile=profile)
    again = load_conf(tmp_path / "hybrid_conf.json", GraphText.load(tmp_path / "gpus=2.txt"))
    assert [stage.warmup for stage in again.stages] == [3, 0]


def test_a_conf_may_list_every_layer(tmp_path, profile):
    count = len(profile.graph.layers) - 1
    conf = {"module_to_stage_map": [0] * 10 + [1] * (count - 10) + [1], "stage_to_rank_map": {"0": [0], "1": [1]}}
    (tmp_path / "conf.json").write_text(json.dumps(conf))
    plan = load_conf(tmp_path / "conf.json", profile.to_graph_text())
    assert [len(stage.layers) for stage in plan.stages] == [10, count - 10]


def test_a_conf_is_a_plan_for_the_model_of_its_layers(tmp_path, profile):
    """PipeDream names the layers node2 to node53; the network of this project has as many in the same order."""
    graph = network("minkvgg16bn", num_classes=10).graph()
    places = {layer.id: k for k, layer in enumerate(graph.layers)}
    layers = [layer.id for layer in profile.graph.layers[1:]]
    plan = Plan((Stage(tuple(layers[:9]), (0, 1), warmup=3), Stage(tuple(layers[9:]), (2,))))
    export_plan(plan, tmp_path, profile=profile)
    for name, ranks in (("hybrid", [(0, 1), (2,)]), ("mp", [(0,), (1,)])):
        found = load_plan(tmp_path / f"{name}_conf.json", graph).check(graph)
        assert [stage.ranks for stage in found.stages] == ranks
        assert [[places[id] for id in stage.layers] for stage in found.stages] == [[*range(9)], [*range(9, 52)]]
    assert load_plan(tmp_path / "hybrid_conf.json", graph).stages[0].warmup == 3
    assert load_plan(tmp_path / "hybrid_conf.json", profile.graph).stages[0].layers == plan.stages[0].layers
    assert load_plan(plan.save(tmp_path / "plan.json"), graph) == plan
    with raises("conf.graph_differs", "gpus=3.txt", "52 layers"):
        load_plan(tmp_path / "hybrid_conf.json", network("minkresnet34", num_classes=10).graph())


def test_of_several_graphs_beside_a_conf_it_is_the_one_for_as_many_ranks(tmp_path, profile):
    layers = [layer.id for layer in profile.graph.layers[1:]]
    for cut, ranks in ((9, (1,)), (20, (1, 2))):
        plan = Plan((Stage(tuple(layers[:cut]), (0,)), Stage(tuple(layers[cut:]), ranks)))
        export_plan(plan, tmp_path, profile=profile)
    assert len(load_plan(tmp_path / "hybrid_conf.json", profile.graph).stages[0].layers) == 20
    assert len(load_plan(tmp_path / "mp_conf.json", profile.graph).stages[0].layers) == 9
    (tmp_path / "gpus=3.txt").rename(tmp_path / "gpus=4.txt")
    with raises("conf.graph_missing", "3 ranks", name="gpus=3.txt"):
        load_plan(tmp_path / "hybrid_conf.json", profile.graph)


def test_a_conf_alone_may_list_every_layer_of_the_model(tmp_path):
    graph = network("minkvgg16bn", num_classes=10).graph()
    conf = {"module_to_stage_map": [0] * 10 + [1] * 42 + [1], "stage_to_rank_map": {"0": [0], "1": [1]}}
    (tmp_path / "conf.json").write_text(json.dumps(conf))
    assert [len(stage.layers) for stage in load_plan(tmp_path / "conf.json", graph).stages] == [10, 42]
    (tmp_path / "conf.json").write_text(json.dumps(conf | {"module_to_stage_map": [0, 1, 1]}))
    with raises("conf.graph_needed", "conf.json", "52 layers", "no stage_ids", num_modules=2):
        load_plan(tmp_path / "conf.json", graph)


@pytest.mark.parametrize(
    ("conf", "error"),
    [
        ([], ("conf.malformed",)),
        ({"module_to_stage_map": [0, 0]}, ("conf.malformed",)),
        ({"module_to_stage_map": "0", "stage_to_rank_map": {"0": [0]}}, ("conf.modules_malformed",)),
        ({"module_to_stage_map": [0, 0], "stage_to_rank_map": {"0": 3}}, ("conf.ranks_malformed",)),
        ({"module_to_stage_map": [0] * 53, "stage_to_rank_map": {"1": [0]}}, ("conf.stages_unnumbered", "1", "0")),
        ({"module_to_stage_map": [0, 1, 1], "stage_to_rank_map": {"0": [0], "1": [1]}}, ("conf.graph_needed", "2")),
        (
            {"module_to_stage_map": [1] * 9 + [0] * 44, "stage_to_rank_map": {"0": [0], "1": [1]}},
            ("plan.violations", "earlier stage"),
        ),
        (
            {"module_to_stage_map": [0] * 53, "stage_to_rank_map": {"0": [0, 0]}},
            ("plan.violations", "more than one replica"),
        ),
    ],
)
def test_bad_confs_are_named(tmp_path, profile, conf, error):
    (tmp_path / "conf.json").write_text(json.dumps(conf))
    with raises(*error) as caught:
        load_conf(tmp_path / "conf.json", profile.to_graph_text())
    assert str(caught.value).startswith(str(tmp_path / "conf.json"))
