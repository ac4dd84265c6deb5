"""Dicts with methods between modules, as Pointcept's `Point`: cut anywhere, a network is what it was in one piece."""

import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from cloud_networks import Cloud, Segmentor, minibatch, segmentor
from coded import raises
from hypothesis import given, settings
from hypothesis import strategies as st
from runtime_jobs import Job, run_jobs, same_training
from torch import nn

from sparsepipe.engines import engine
from sparsepipe.engines.plain import PlainEngine
from sparsepipe.networks.losses import open_loss
from sparsepipe.networks.traced import trace, verify
from sparsepipe.networks.traced.containers import Reader, built
from sparsepipe.networks.traced.inputs import ForwardInputs
from sparsepipe.runtime import RunConfig
from sparsepipe.runtime.workloads import layer_graph
from sparsepipe.runtime.workloads.resolved import resolve
from sparsepipe.util.io.functions import UserFunction
from sparsepipe.values.plan import Plan, Stage

HERE = Path(__file__).parent


def traced(module: nn.Module):
    said: list[str] = []
    network = trace(module, minibatch(40, 25), another=minibatch(20, 50, 33, seed=1), say=said.append)
    return network, {row.id: row for row in network.rows}, said


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return traced(segmentor())


def test_modules_that_write_into_a_cloud_are_layers_of_their_own(network):
    net, rows, said = network
    opaque = {row.kind for row in net.rows if net.opaque_paths & set(row.modules)}
    assert opaque == {"Attention", "Pool"} and len(said) == 7  # four of the one, one of the other, and two statements
    assert max(row.num_parameters for row in net.rows) < 0.2 * sum(row.num_parameters for row in net.rows)


def test_every_layer_a_stage_of_its_own_is_the_same_network(network):
    for seed, counts in enumerate([(70, 21, 44), (17,), (16, 16)]):
        verify(network[0], minibatch(*counts, seed=seed), engine=PlainEngine(), stages=0)


def test_what_later_layers_do_not_read_does_not_cross(network):
    net, rows, _ = network
    ids = [row.id for row in net.rows]
    behind_pool = set(rows["backbone.down.2.attention"].inputs)
    assert behind_pool < set(rows["backbone.down.1"].outputs) | {"backbone.statement:0", "backbone.down.2.norm.0"}
    assert "input:coord" not in {name for row in net.rows for name in row.inputs}
    assert len(net.alive(ids[: ids.index("head")])) == 1
    kept = set(net.alive(ids[: ids.index("backbone.up.0.proj.0")]))
    assert not kept & set(rows["backbone.down.1"].outputs[2:]), "the orders of the coarse cloud are read no more"


class Grows(nn.Module):
    """Writes before it decides by numbers; has one entry more of many points."""

    def forward(self, cloud: Cloud) -> Cloud:
        cloud["seen"] = cloud.feat * 2
        if cloud.feat.abs().max() > 1e9 or len(cloud.feat) > 200:
            cloud["many"] = cloud.feat
        cloud.feat = cloud.seen + cloud.get("before", 0)
        cloud["before"] = cloud.pop("seen")
        return cloud


class Twice(Segmentor):
    def __init__(self) -> None:
        super().__init__(nn.Identity(), 6, 4)
        self.parts = nn.ModuleList([nn.Sequential(Grows()), nn.Sequential(Grows())])

    def forward(self, input_dict):
        cloud = Cloud(input_dict)
        for part in self.parts:
            cloud = part(cloud)
        return {"loss": self.criteria(self.head(cloud.feat), input_dict["segment"])}


def test_entries_that_come_and_go_are_those_of_the_module():
    net, rows, _ = traced(Twice())
    verify(net, minibatch(9, 30, 8), engine=PlainEngine(), stages=0)
    with raises("layer.raises", "parts.0.0"):
        net.build(engine=None)({**net.arguments.bind(minibatch(150, 90))}, minibatch=0)


class Clips(nn.Module):
    """Leaves a tensor or a number as it is, unless that is large."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, cloud: Cloud) -> Cloud:
        if (cloud.feat * cloud[self.name]).abs().max() > 100:
            cloud[self.name] = cloud[self.name] / 100
        cloud.feat = cloud.feat * 2
        return cloud


class Clipped(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.clips, self.head = Clips(name), nn.Linear(3, 4)

    def forward(self, feat: torch.Tensor, coord: torch.Tensor) -> torch.Tensor:
        farthest = coord.abs().max().item()
        cloud = self.clips(Cloud(feat=feat, coord=coord, farthest=farthest, offset=coord, batch=coord))
        return self.head(cloud.feat + cloud.coord) * cloud.farthest


@pytest.mark.parametrize("name", ["coord", "farthest"])
def test_an_entry_that_was_left_as_it_was_and_now_changes_is_refused(name):
    net = trace(Clipped(name), (torch.rand(5, 3), torch.rand(5, 3)))
    assert not net.opaque_paths & {""} and len(net.rows) > 1
    verify(net, (torch.rand(7, 3), torch.rand(7, 3)), engine=PlainEngine(), stages=0)
    with raises("layer.raises", name):
        net.build(engine=None)({**net.arguments.bind((torch.full((7, 3), 1e3), torch.rand(7, 3)))}, minibatch=0)


VALUES = st.recursive(
    st.integers() | st.text(max_size=2),
    lambda inner: (
        st.lists(inner, max_size=3) | st.tuples(inner) | st.dictionaries(st.text(max_size=2), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=40, deadline=None)
@given(VALUES)
def test_a_value_made_again_is_equal_and_its_containers_are_shared_as_they_were(value):
    shared = {"a": value, "b": [value, value], "cloud": Cloud(offset=torch.tensor([1]), batch=0, inner=value)}
    shared["again"] = shared["b"]
    reader = Reader()
    form = reader.form(shared)
    made, objects = built(form, reader.leaves)
    assert list(made) == list(shared) and made["again"] is made["b"] and made is not shared
    assert made["a"] == value and type(made["cloud"]) is Cloud and made["cloud"]["inner"] == value
    assert isinstance(value, int | str | tuple) or made["a"] is made["b"][1] is made["cloud"]["inner"] is not value
    again = Reader()
    assert again.form(made) == form and again.leaves == reader.leaves


class Words(nn.Module):
    def forward(self, feat, mask=None):
        return feat


@pytest.mark.parametrize(("module", "whole"), [(segmentor(), True), (Words(), False)])
def test_a_dict_is_the_argument_of_a_forward_without_such_keywords(module, whole):
    example = {"feat": torch.ones(3, 6), "mask": torch.ones(3)}
    inputs = ForwardInputs.of("it", example, module.forward)
    args, kwargs = inputs.arguments({})
    assert inputs.takes_dict is whole and [len(args), len(kwargs)] == ([1, 0] if whole else [0, 2])
    assert inputs.bind(example).keys() == inputs.tensors.keys() == {"input:feat", "input:mask"}


def test_logits_beside_a_loss_give_accuracy_and_iou():
    loss, torch_loss = open_loss("output", facts={"num_classes": 3}), torch.tensor(0.5, requires_grad=True)
    labels, logits = torch.tensor([0, 1, 2, 2, -1, 255]), torch.eye(3)[[0, 2, 2, 1, 0, 0]]
    outcome = loss({"loss": torch_loss, "seg_logits": logits}, labels, samples=2, detailed=True)[1]
    scores = loss.report(outcome.details, 2)
    assert scores["accuracy"] == 2 / 4 and scores["mean_iou"] == pytest.approx((1 / 1 + 0 / 2 + 1 / 3) / 3)
    alone = loss({"loss": torch_loss}, labels, samples=2, detailed=True)[1]
    assert loss.report(alone.details, 2) == {} and alone.details.shape == outcome.details.shape


def job(name: str, stages: int, schedule: str, **changes) -> Job:
    common = {"model": f"{HERE / 'cloud_networks.py'}:segmentor", "data": f"{HERE / 'cloud_networks.py'}:clouds"}
    common |= {"batch_size": 2, "learning_rate": 0.05, "epochs": 2, "threads": 1, "timeout_seconds": 300}
    config = RunConfig(**common | changes)
    ids = [layer.id for layer in layer_graph(resolve(config)).layers]
    cuts = [round(k * len(ids) / stages) for k in range(stages + 1)]
    made = tuple(Stage(tuple(ids[a:b]), (k,)) for k, (a, b) in enumerate(zip(cuts, cuts[1:], strict=False)))
    return Job(name, Plan(made, schedule=schedule, num_microbatches=2), config)


@pytest.mark.slow
def test_stages_train_on_clouds_as_one_process_does_to_the_bit(tmp_path):
    jobs = [job("one", 1, "1f1b-flush"), job("two", 2, "1f1b-flush"), job("three", 3, "zero-bubble")]
    found = run_jobs(tmp_path, jobs)
    for other in ("two", "three"):
        same_training(found["one"], found[other])
    assert found["one"].losses[-1] < found["one"].losses[0]


# Pointcept itself, which is not part of this repository


@pytest.mark.slow
@pytest.mark.parametrize("name", ["PT-v3m1", "SpUNet-v1m1"])
def test_a_segmentor_of_pointcept_is_the_same_network_when_cut(name, monkeypatch):
    folder = os.environ.get("SPARSEPIPE_POINTCEPT")
    if not folder:
        pytest.skip("SPARSEPIPE_POINTCEPT names no checkout of Pointcept")
    module = of_pointcept(Path(folder), name, monkeypatch)
    spconv = engine("spconv")  # repairs the library

    def of_grid(*counts: int, seed: int):
        made = minibatch(*counts, seed=seed)
        return made | {"grid_coord": made["cell"]}

    net = trace(module, of_grid(300, 200, seed=0), another=of_grid(150, 320, 240, seed=1))
    verify(net, of_grid(210, 333, 100, seed=2), engine=spconv, stages=4)
    assert max(row.num_parameters for row in net.rows) < 0.5 * sum(row.num_parameters for row in net.rows)


def of_pointcept(folder: Path, name: str, monkeypatch) -> nn.Module:
    """Build a small segmentor of Pointcept. What its package imports for other networks need not be there."""
    monkeypatch.syspath_prepend(str(folder))
    for needed in ("spconv.pytorch", "addict", "torch_geometric"):
        pytest.importorskip(needed, reason=f"Pointcept's networks import {needed}")

    def stand_in(name: str, **attributes: object) -> None:
        made = ModuleType(name)
        made.__spec__ = importlib.machinery.ModuleSpec(name, None)
        vars(made).update(attributes)
        monkeypatch.setitem(sys.modules, name, made)

    absent = {name: {} for name in ("torch_cluster", "pointops", "wandb", "tensorboardX")}
    absent["peft"] = dict.fromkeys(("LoraConfig", "get_peft_model"))
    # Sums, means and maxima of rows that are next to each other, by torch's own function.
    absent["torch_scatter"] = dict.fromkeys(("scatter", "scatter_min")) | {
        "segment_csr": lambda rows, ends, reduce: torch.segment_reduce(rows, reduce, offsets=ends)
    }
    for module, attributes in absent.items():
        if importlib.util.find_spec(module) is None:
            stand_in(module, **attributes)
    timm = next(iter(importlib.util.find_spec("timm").submodule_search_locations))
    for package, path in {
        "timm": timm,
        "timm.layers": f"{timm}/layers",
        "pointcept.models": f"{folder}/pointcept/models",
    }.items():
        stand_in(package, __path__=[path])  # without all that it has
    for home, imported in (("drop", "DropPath"), ("weight_init", "trunc_normal_")):
        setattr(sys.modules["timm.layers"], imported, getattr(importlib.import_module(f"timm.layers.{home}"), imported))
    classes = {
        "PT-v3m1": ("point_transformer_v3.point_transformer_v3m1_base", "PointTransformerV3"),
        "SpUNet-v1m1": ("sparse_unet.spconv_unet_v1m1_base", "SpUNetBase"),
    }
    for home, defined in (("default", "DefaultSegmentorV2"), classes[name]):
        UserFunction(f"pointcept.models.{home}", defined).load()  # as a user's file is imported
    backbone = {"type": name, "in_channels": 6}
    if name == "PT-v3m1":
        depths = {"enc_depths": (1, 1, 1), "enc_channels": (16, 32, 64), "enc_num_head": (2, 4, 8)}
        depths |= {"dec_depths": (1, 1), "dec_channels": (16, 32), "dec_num_head": (2, 4), "stride": (2, 2)}
        windows = {"enc_patch_size": (64,) * 3, "dec_patch_size": (64,) * 2}
        backbone |= depths | windows | {"order": ("z", "hilbert"), "enable_flash": False}
        options = {"type": "DefaultSegmentorV2", "num_classes": 4, "backbone_out_channels": 16}
    else:
        backbone |= {"num_classes": 4, "base_channels": 8, "channels": (8, 16, 16, 8), "layers": (1, 1, 1, 1)}
        options = {"type": "DefaultSegmentor"}
    from pointcept.models.builder import build_model

    criteria = [{"type": "CrossEntropyLoss", "ignore_index": -1}]
    return build_model({**options, "backbone": backbone, "criteria": criteria})
