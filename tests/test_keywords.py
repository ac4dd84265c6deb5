"""A misspelt keyword of a public call was a bare TypeError: it is one line that says what was probably meant."""

import copy
import inspect
import pickle

import pytest
from coded import raises

import sparsepipe as sp
from sparsepipe import Cluster, CostSample, Layer, LayerCost, LayerGraph, Profile, RunConfig

CLUSTER = Cluster.uniform(2)
CONFIG = RunConfig("minkvgg11bn", "shapes")


@pytest.fixture
def profile():
    graph = LayerGraph.chain(Layer(f"l{k}", "") for k in range(4))
    return Profile(graph, {"device": (LayerCost((CostSample(1, 1.0, 1.0, 0.0),)),) * 4})


def test_a_misspelt_keyword_is_told_with_what_was_meant(profile, tmp_path):
    cases = [
        (
            lambda plan, _: sp.launch(plan, CONFIG, run_dir=tmp_path, laucher="local"),
            ("argument.unknown", "launch with", "did", "launcher"),
        ),
        (
            lambda plan, _: sp.launch(plan, CONFIG, run_dir=tmp_path, replna="live"),
            ("argument.unknown", "replna", "did you mean 'replan'"),
        ),
        (
            lambda plan, _: sp.launch(plan, CONFIG, run_dir=tmp_path, ray_address="a:1"),
            ("argument.unknown", "local", "'ray_a"),
        ),
        (
            lambda plan, p: sp.simulate(plan, p, CLUSTER, [1.0], straglers=""),
            ("argument.unknown", "simulate", "mean 'stragglers'"),
        ),
        (
            lambda plan, p: sp.simulate_pipelines(plan, p, CLUSTER, [1.0], sed=1),
            ("argument.unknown", "simulate_pipelines", "mean 'seed'"),
        ),
        (
            lambda _, p: sp.partition(p, CLUSTER, schedul="gpipe"),
            ("planner.option_unknown", "schedul", "did you mean 'schedule'"),
        ),
        (
            lambda _, p: sp.partition_pipelines(p, CLUSTER, 2, replicaton="wsp"),
            ("planner.option_unknown", "did you mean 'replication'"),
        ),
        (
            lambda *_: sp.profile_model("minkvgg11bn", "x", batchsize=2),
            ("argument.unknown", "profile_model", "mean 'batch_size'"),
        ),
        (
            lambda *_: sp.attach(tmp_path, laucher="ssh"),
            ("argument.unknown", "attach", "laucher", "did you mean 'launcher'"),
        ),
        (lambda *_: Cluster.uniform(2, devicetype="a"), ("argument.unknown", "Cluster.uniform", "mean 'device_type'")),
        (lambda *_: RunConfig("m", "d", epoch=2), ("setting.unknown", "epoch", "did you mean 'epochs'?")),
    ]
    plan = sp.partition(profile, CLUSTER, planner="model-parallel")
    for call, error in cases:
        with raises(*error) as found:
            call(plan, profile)
        assert "\n" not in str(found.value)
    assert not list(tmp_path.iterdir()), "nothing is begun"


def test_what_a_call_takes_is_still_told_by_its_signature():
    assert "restart_seconds" in inspect.signature(sp.simulate).parameters
    assert list(inspect.signature(RunConfig).parameters)[:2] == ["model", "data"]
    assert pickle.loads(pickle.dumps(CONFIG)) == copy.deepcopy(CONFIG) == CONFIG
