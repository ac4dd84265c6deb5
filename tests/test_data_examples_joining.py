"""Minibatches of a user's own kind: dicts of points, graphs, boxes, a collate, iterables; the same in every process."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from coded import raises
from hypothesis import given
from hypothesis import settings as drawn
from hypothesis import strategies as st
from test_data_examples_own import own
from torch.utils.data import default_collate

from sparsepipe.data import check, info
from sparsepipe.data.batch import PointBatch
from sparsepipe.data.examples import open_examples
from sparsepipe.data.examples.collate import joined_items

SCENES = """
import numpy as np, torch
COUNTS = [3, 5, 2, 4]
class Scenes:
    MORE
    def __len__(self): return len(COUNTS)
    def __getitem__(self, index):
        draw = np.random.default_rng(index)
        count = COUNTS[index]
        return {
            "coord": draw.uniform(size=(count, 3)).astype("f"),
            "segment": draw.integers(0, 4, count),
            "category": index % 2,
            "name": f"scene{index}",
        }
def make(split): return Scenes()
def collate(items):
    return {"coord": torch.cat([torch.as_tensor(i["coord"]) for i in items]), "y": [i["category"] for i in items]}
def pairs(items): return [torch.stack([torch.as_tensor(i["coord"]).mean(0) for i in items]), np.array([[1], [2]])]
def boxes(items): return torch.ones(len(items), 2), [{"boxes": np.ones((k, 4)), "labels": np.arange(k)} for k in (1, 2)]
def draws(items): return torch.rand(len(items), 2), np.random.rand(2)
def odd(items): return 7
"""


def test_points_of_dicts_stand_below_each_other_and_offsets_say_where_they_end(tmp_path: Path) -> None:
    opened = open_examples(own(tmp_path, SCENES.replace("MORE", "num_classes = 4")), split="train")
    batch = opened.batch([2, 0])
    items = [opened.batch([index]).inputs for index in (2, 0)]
    assert batch.inputs["offset"].tolist() == [2, 5] and batch.inputs.keys() == {
        "coord",
        "segment",
        "category",
        "offset",
    }
    for name in ("coord", "segment", "category"):
        assert torch.equal(batch.inputs[name], torch.cat([item[name] for item in items]))
    assert torch.equal(batch.target, batch.inputs["segment"]) and batch.target.dtype == torch.int64
    assert (len(batch), batch.size, opened.size_unit, list(opened.sample_sizes())) == (2, 5, "points", [3, 5, 2, 4])
    named = open_examples(
        own(tmp_path, SCENES.replace("MORE", "inputs = ('coord', 'offset'); target = 'category'"), "named"),
        split="train",
    )
    batch = named.batch([1, 3])
    assert list(batch.inputs) == ["coord", "offset"] and batch.target.tolist() == [1, 1]


@drawn(max_examples=25)
@given(st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=3), min_size=1, max_size=4))
def test_joining_joined_clouds_is_joining_them_at_once(parts: list[list[int]]) -> None:
    draw = np.random.default_rng(0)
    clouds = [[{"coord": draw.normal(size=(n, 3)), "feat": draw.normal(size=(n, 2))} for n in part] for part in parts]
    whole = joined_items([cloud for part in clouds for cloud in part], "x")
    twice = joined_items([joined_items(part, "x") for part in clouds], "x")
    assert all(torch.equal(whole[name], twice[name]) for name in whole)
    assert whole["offset"].tolist() == np.cumsum(sum(parts, [])).tolist()


class Graph:
    """Joined as PyTorch Geometric's Data says: edges count on, nodes stand below each other."""

    def __init__(self, nodes: int) -> None:
        self.num_nodes = nodes

    def to_dict(self) -> dict:
        ring = torch.arange(self.num_nodes)
        return {"x": ring[:, None].float(), "edge_index": torch.stack([ring, ring.roll(1)]), "y": self.num_nodes % 2}

    def __cat_dim__(self, name: str, value: object) -> int:
        return -1 if "index" in name else 0

    def __inc__(self, name: str, value: object) -> int:
        return self.num_nodes if "index" in name else 0


def test_graphs_are_joined_as_they_say() -> None:
    joined = joined_items([Graph(3), Graph(2), Graph(4)], "graphs")
    assert joined["batch"].tolist() == [0, 0, 0, 1, 1, 2, 2, 2, 2] and joined["ptr"].tolist() == [0, 3, 5, 9]
    assert joined["edge_index"].tolist() == [[0, 1, 2, 3, 4, 5, 6, 7, 8], [2, 0, 1, 4, 3, 8, 5, 6, 7]]
    assert joined["y"].tolist() == [1, 0, 0] and joined["x"].shape == (9, 1)
    geometric = pytest.importorskip("torch_geometric.data")
    items = [geometric.Data.from_dict(Graph(n).to_dict()) for n in (3, 2)]
    theirs, ours = geometric.Batch.from_data_list(items).to_dict(), joined_items(items, "graphs")
    assert all(torch.equal(ours[name], torch.as_tensor(theirs[name])) for name in ours)


def test_boxes_of_unlike_number_are_a_tensor_for_each_sample(tmp_path: Path) -> None:
    body = """
    import torch
    def make(split):
        return [(torch.ones(2), {"boxes": torch.rand(n, 4), "labels": torch.arange(n), "area": 0.5}) for n in (1, 3)]
    """
    target = open_examples(own(tmp_path, body), split="train").batch([1, 0]).target
    assert [len(boxes) for boxes in target["boxes"]] == [3, 1] and [len(each) for each in target["labels"]] == [3, 1]
    regression = own(tmp_path, "import torch\ndef make(split): return [(1.0, [0.5, 2.0]), (2.0, [1.5, 1.0])]\n", "r")
    assert open_examples(regression, split="train").batch([0, 1]).target.tolist() == [[0.5, 2.0], [1.5, 1.0]]


def test_a_collate_of_ones_own_makes_the_minibatch(tmp_path: Path) -> None:
    reference = own(tmp_path, SCENES.replace("MORE", "size_of = staticmethod(lambda item: 2 * len(item['coord']))"))
    file = reference.partition(":")[0]
    named = open_examples(reference, split="train", collate=f"{file}:collate")
    batch = named.batch([0, 2])
    assert batch.inputs["coord"].shape == (5, 3) and batch.target == [0, 0]
    assert (len(batch), batch.size, list(named.sample_sizes())) == (2, 10, [6, 10, 4, 8])
    assert named.origin["collate_sha256"] == named.origin["sha256"]
    pairs = open_examples(reference, split="train", collate=f"{file}:pairs").batch([1, 3])
    assert pairs.inputs.shape == (2, 3) and pairs.target.tolist() == [[1], [2]]
    boxes = open_examples(reference, split="train", collate=f"{file}:boxes").batch([1, 3]).target
    assert [each["boxes"].shape[0] for each in boxes] == [1, 2] and boxes[1]["labels"].tolist() == [0, 1]
    with raises("own_data.collate_malformed", "int"):
        open_examples(reference, split="train", collate=f"{file}:odd").batch([0])
    with raises("function.missing", "none_such"):
        open_examples(reference, split="train", collate=f"{file}:none_such")


@pytest.mark.parametrize("offset", [2, [], np.array(2), torch.tensor([2])])
def test_an_offset_may_be_one_number_or_none(offset) -> None:
    joined = joined_items([{"coord": np.ones((2, 3)), "offset": offset}] * 2, "items")
    assert joined["offset"].tolist() == [2, 4] and joined["coord"].shape == (4, 3)


def test_arrays_of_a_collate_may_run_backwards_or_be_of_another_byte_order(tmp_path: Path) -> None:
    body = """
    import numpy as np
    def make(split): return [(1.0, 0)] * 2
    def collate(items): return np.arange(2.0)[::-1], np.arange(2, dtype=">i4")
    """
    reference = own(tmp_path, body)
    batch = open_examples(reference, split="train", collate=reference.replace(":make", ":collate")).batch([0, 1])
    assert batch.inputs.tolist() == [1, 0] and batch.target.tolist() == [0, 1]


def test_a_data_set_of_dicts_is_described_and_checked(tmp_path: Path) -> None:
    reference = own(tmp_path, SCENES.replace("MORE", "pass").replace("default_rng(index)", "default_rng(index % 3)"))
    assert info(reference)["example"]["inputs"]["coord"] == "float32 [3]"
    report = check(reference)
    assert not report.faults and not report.within_split, "samples 0 and 3 begin alike, 3 has more points"
    boxes = info(reference, collate=reference.replace(":make", ":boxes"))["example"]
    assert boxes["target"][0] == {"boxes": "float64 [4]", "labels": "int64 []"}


def test_draws_in_a_collate_repeat_by_seed_samples_and_epoch(tmp_path: Path) -> None:
    reference = own(tmp_path, SCENES.replace("MORE", "pass"))
    collate = reference.replace(":make", ":draws")
    first, other = (open_examples(reference, split="train", seed=3, collate=collate) for _ in range(2))
    torch.manual_seed(random.randrange(2**31))
    _ = other.batch([1, 2], epoch=7)
    for epoch in (0, 1):
        one, two = first.batch([0, 1], epoch=epoch), other.batch([0, 1], epoch=epoch)
        assert torch.equal(one.inputs, two.inputs) and torch.equal(one.target, two.target)
    assert not torch.equal(first.batch([0, 1]).inputs, first.batch([0, 1], epoch=1).inputs)


def test_the_data_sets_own_collate_may_return_voxels(tmp_path: Path) -> None:
    body = """
    import torch
    import sparsepipe as sp
    class Clouds(list):
        @staticmethod
        def collate_fn(items):
            clouds = [sp.data.Sample(item.int(), torch.ones(len(item), 1), label) for item, label in items]
            return sp.data.collate(clouds)
    def make(split): return Clouds([(torch.arange(9).reshape(3, 3), 1), (torch.zeros(1, 3), 0)])
    """
    batch = open_examples(own(tmp_path, body), split="train").batch([1, 0])
    assert isinstance(batch, PointBatch) and batch.labels.tolist() == [0, 1] and batch.num_voxels == 4


STREAM = """
import random, torch
from torch.utils.data import IterableDataset
class Lines(IterableDataset):
    BEGUN = 0
    def __iter__(self):
        Lines.BEGUN += 1
        for k in range(COUNT): yield torch.tensor([float(k), random.random(), torch.rand(()).item()]), k % 3
    MORE
def make(split): return Lines()
"""


def test_an_iterable_is_read_in_order_and_resumed_by_skipping(tmp_path: Path, capsys) -> None:
    reference = own(tmp_path, STREAM.replace("COUNT", "40").replace("MORE", "pass"))
    opened, resumed = (open_examples(reference, split="train", seed=1) for _ in range(2))
    assert opened.in_order and len(opened) == 40 and "40" not in capsys.readouterr().out
    whole = [opened.batch(range(k, k + 4), epoch=1) for k in range(0, 40, 4)]
    torch.manual_seed(99)
    late = resumed.batch(range(32, 36), epoch=1)
    assert torch.equal(late.inputs, whole[8].inputs) and late.target.tolist() == [2, 0, 1, 2]
    again = opened.batch(range(0, 4), epoch=1)
    assert torch.equal(again.inputs, whole[0].inputs), "what was read a moment ago is not read again"
    assert not torch.equal(opened.batch(range(4), epoch=2).inputs, whole[0].inputs), "another epoch draws otherwise"
    expected = default_collate([torch.tensor(float(k)) for k in range(4)])
    assert torch.equal(whole[0].inputs[:, 0], expected)


@pytest.mark.parametrize("kind", ["__iter__(self): return iter(CLOUDS)", "__getitem__(self, index): return CLOUDS[0]"])
def test_a_collate_may_take_its_items_apart(tmp_path: Path, kind: str) -> None:
    body = f"""
    import torch
    CLOUDS = [{{"coord": torch.ones(3, 3), "segment": 0}}]
    class Clouds:
        def __len__(self): return 1
        def {kind}
    def make(split): return Clouds()
    def collate(items): return torch.cat([item.pop("coord") for item in items]), torch.zeros(3)
    """
    reference = own(tmp_path, body)
    clouds = open_examples(reference, split="train", collate=reference.replace(":make", ":collate"))
    for _ in range(2):
        batch = clouds.batch([0])
        assert batch.inputs.shape == (3, 3) and batch.size == 3


def test_an_iterable_that_ends_early_or_never_is_named(tmp_path: Path) -> None:
    with raises("own_data.stream_ended", "40", items=40):
        body = STREAM.replace("COUNT", "40").replace("MORE", "def __len__(self): return 50")
        open_examples(own(tmp_path, body), split="train").batch([49])
    with raises("own_data.empty"):
        open_examples(own(tmp_path, STREAM.replace("COUNT", "0").replace("MORE", "pass"), "none"), split="train")


@pytest.mark.parametrize(
    ("items", "code"),
    [
        ([{"coord": np.ones((2, 3)), "segment": np.ones(2)}, {"coord": np.ones((2, 3))}], "sample.names_differ"),
        ([{"coord": np.ones((2, 3))}, {"coord": np.ones((2, 2))}], "sample.shapes_differ"),
        ([{"coord": np.ones((2, 3))}, 3], "sample.kinds_differ"),
        ([Graph(2), {"x": 1}], "sample.kinds_differ"),
        ([{"name": "a"}], "sample.dict_keys"),
        ([{"a": 1, "b": 2}], "sample.no_target"),
        ([{"coord": np.ones((2, 3)), "boxes": object()}], "sample.not_numbers"),
        ([{"coord": np.ones((2, 3)), "offset": [1, 3]}], "sample.offset_differs"),
        ([{"coord": np.ones((2, 3))}, {"coord": np.ones((0, 3))}], "sample.no_points"),
    ],
)
def test_items_that_do_not_go_together_are_named(items: list, code: str) -> None:
    with raises(code, "items"):
        joined_items(items, "items")
