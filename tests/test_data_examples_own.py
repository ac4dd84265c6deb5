"""A data set of the user's own, by a function's name: minibatches as torch's collate makes them, faults in a line."""

import random
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from coded import raises
from torch.utils.data import default_collate

from sparsepipe import data
from sparsepipe.data.batch import PointBatch
from sparsepipe.data.examples import ExampleDataset, is_examples, open_examples
from sparsepipe.util.derived import SHARED_GENERATORS


def own(folder: Path, body: str, name: str = "mine") -> str:
    """Write a file that has `make` and return the reference to it."""
    path = folder / f"{name}.py"
    path.write_text(textwrap.dedent(body))
    return f"{path}:make"


def listed(items: str, more: str = "") -> str:
    """Return a file whose data set is a class around a list of items."""
    return f"""
import numpy as np, random, torch
class Items:
    {more or "pass"}
    def __len__(self): return len(self.items)
    def __getitem__(self, index): return self.items[index]
def make(split):
    made = Items()
    made.items = {items}
    return made
"""


def test_a_torch_data_set_gives_the_minibatches_of_torchs_collate(tmp_path: Path) -> None:
    reference = own(
        tmp_path,
        """
        import torch
        from torch.utils.data import TensorDataset
        def make(split, seed):
            draw = torch.Generator().manual_seed(seed + (split == "test"))
            return TensorDataset(torch.rand(6, 3, 4, generator=draw), torch.arange(6) % 3)
        """,
    )
    opened = open_examples(reference, split="train", seed=5)
    batch = opened.batch([4, 1])
    expected = torch.rand(6, 3, 4, generator=torch.Generator().manual_seed(5))
    inputs, target = default_collate([(expected[4], torch.tensor(1)), (expected[1], torch.tensor(1))])
    assert torch.equal(batch.inputs, inputs) and torch.equal(batch.target, target)
    assert (len(batch), batch.size, opened.size_unit, len(opened)) == (2, 2, "samples", 6)
    assert opened.labels == (0, 1, 2, 0, 1, 2) and opened.sample_sizes() == (1,) * 6
    assert opened.facts["num_classes"] == 3 and "num_classes" in dict(opened.facts)
    assert opened.origin["name"] == "mine.py:make" and str(tmp_path) not in str(opened.origin)
    assert not torch.equal(open_examples(reference, split="test", seed=5).batch([4, 1]).inputs, inputs)


@pytest.mark.parametrize(
    "item",
    [
        (np.arange(6, dtype=np.int32).reshape(2, 3), 1),
        ((torch.ones(2), torch.zeros(3, 1)), 0),
        ({"words": np.arange(3), "mask": np.array([True, False, True])}, {"a": 2, "b": torch.tensor([0.5])}),
        (3.5, 0.25),
        ([1, 2, 3], [4, 5]),
    ],
)
def test_arrays_numbers_tuples_and_dicts_become_tensors_side_by_side(tmp_path: Path, item: Any) -> None:
    reference = own(tmp_path, "def make(split): return ITEMS\n")
    from sparsepipe.util.io.functions import UserFunction

    UserFunction.parse(reference).load().__globals__["ITEMS"] = [item, item]
    batch = open_examples(reference, split="train").batch([0, 1])
    for made, given in ((batch.inputs, item[0]), (batch.target, item[1])):
        assert type(made) is (type(given) if isinstance(given, tuple | dict) else torch.Tensor)
        parts = made.values() if isinstance(made, dict) else made if isinstance(made, tuple) else [made]
        wanted = given.values() if isinstance(given, dict) else given if isinstance(given, tuple) else [given]
        for part, value in zip(parts, wanted, strict=True):
            assert part.shape[0] == 2
            assert part.dtype in (torch.int64, torch.float32, torch.bool)
            np.testing.assert_allclose(part[1].double().numpy(), np.asarray(value, dtype=np.float64))


def test_sequences_are_padded_and_their_size_counts_it(tmp_path: Path) -> None:
    items = "[(np.arange(1, n + 1), np.full(n, 7)) for n in (2, 5, 3)]"
    reference = own(tmp_path, listed(items, "size_unit = 'tokens'; vocabulary_size = 9"))
    opened = open_examples(reference, split="train")
    batch = opened.batch([0, 2])
    assert batch.inputs.tolist() == [[1, 2, 0], [1, 2, 3]]
    assert batch.target.tolist() == [[7, 7, -100], [7, 7, 7]]
    assert (batch.samples, batch.size) == (2, 6)
    assert tuple(opened.sample_sizes()) == (2, 5, 3)
    assert dict(opened.facts) == {"vocabulary_size": 9}
    with raises("own_data.no_class", index=0):
        _ = opened.labels


def test_the_size_of_pictures_of_several_sizes_is_their_pixels(tmp_path: Path) -> None:
    items = "[(torch.ones(3, height, 4), 0) for height in (2, 5, 5)]"
    opened = open_examples(own(tmp_path, listed(items, "size_unit = 'pixels'")), split="train")
    assert tuple(opened.sample_sizes()) == (8, 20, 20)
    assert [opened.batch(indices).size for indices in ([0], [1], [1, 2])] == [8, 20, 40]
    with raises("sample.shapes_differ"):
        opened.batch([0, 2])


def test_an_option_may_be_called_source(tmp_path: Path) -> None:
    opened = open_examples(own(tmp_path, "def make(split, source): return [(source, 0)]\n"), split="test", source=3.5)
    assert opened.batch([0]).inputs.tolist() == [3.5]


def test_sizes_and_facts_of_the_users_own_are_used(tmp_path: Path) -> None:
    more = "sizes = [4, 9]; size_unit = 'tokens'; classes = ['a', 'b']; facts = {'depth': 3}; loss = 'mine'"
    more += "; targets = [1, 0]"
    opened = open_examples(own(tmp_path, listed("[(torch.ones(2), 1), (torch.ones(2), 0)]", more)), split="test")
    assert opened.batch([0, 1]).size == 18
    assert dict(opened.facts) == {"depth": 3, "num_classes": 2}
    assert (opened.loss, opened.classes, opened.labels) == ("mine", ("a", "b"), (1, 0))


def test_draws_in_items_repeat_by_seed_sample_and_epoch_and_leave_the_generators_alone(tmp_path: Path) -> None:
    body = """
    import numpy as np, random, torch
    class Noise:
        def __len__(self): return 3
        def __getitem__(self, index): return torch.rand(1) + np.random.rand() + random.random(), 0
    def make(split): return Noise()
    """
    reference = own(tmp_path, body)
    before = drawn_states()
    one, again = (open_examples(reference, split="train", seed=1) for _ in range(2))
    drawn = one.batch([0, 1], epoch=2).inputs
    assert torch.equal(again.batch([1, 0], epoch=2).inputs.flip(0), drawn)
    assert not torch.equal(one.batch([0, 1], epoch=3).inputs, drawn)
    assert drawn[0] != drawn[1]
    after = drawn_states()
    assert torch.equal(before[0], after[0]) and before[1:] == after[1:]


def test_two_threads_that_read_at_once_leave_the_generators_alone(tmp_path: Path) -> None:
    body = """
    import random, time
    def item(index):
        time.sleep(.001)
        return random.random(), 0
    class Slow:
        def __len__(self): return 40
        def __getitem__(self, index): return item(index)
    def make(split): return Slow()
    """
    opened = open_examples(own(tmp_path, body), split="train", seed=1)
    alone = opened.batch(range(40)).inputs
    before = drawn_states()
    with ThreadPoolExecutor(3) as threads:
        read = list(threads.map(lambda first: opened.batch(range(first, 40)).inputs, (0, 7, 13)))
    for first, inputs in zip((0, 7, 13), read, strict=True):
        assert torch.equal(inputs, alone[first:])
    after = drawn_states()
    assert torch.equal(before[0], after[0]) and before[1:] == after[1:]


def drawn_states() -> tuple[Any, ...]:
    with SHARED_GENERATORS:  # a loader of an earlier test may still read
        return torch.random.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()


def test_clouds_come_as_a_minibatch_of_points(tmp_path: Path) -> None:
    folder = data.make_shapes(tmp_path / "shapes", num_train=3, num_test=1, seed=0)
    reference = own(
        tmp_path,
        f"""
        from sparsepipe import data
        def make(split): return data.load({str(folder)!r}, split=split, voxel_size=0.2)
        """,
    )
    opened = open_examples(reference, split="train")
    voxels = data.load(folder, split="train", voxel_size=0.2)
    batch = opened.batch([0, 1])
    assert isinstance(batch, PointBatch)
    assert torch.equal(batch.coordinates, voxels.batch([0, 1]).coordinates)
    assert batch.target.tolist() == voxels.batch([0, 1]).labels.tolist()
    assert (len(batch), batch.size, opened.size_unit) == (2, batch.num_voxels, "voxels")
    assert opened.facts["in_channels"] == 1 and opened.facts["num_classes"] == len(voxels.classes)
    assert tuple(opened.sample_sizes()) == tuple(voxels.voxel_counts())


def test_a_function_is_an_example_data_set_by_its_form(tmp_path: Path) -> None:
    assert is_examples("package.module:function") and is_examples("some/net.py:data")
    assert not is_examples("modelnet10-sample") and not is_examples("no-such-name" * 500) and not is_examples(tmp_path)


PAIR = "[(torch.ones(2), 0), (torch.ones(3), 1)]"


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("x = 1\n", ("function.missing", "make", "it has none")),
        ("def make(): return []\n", ("own_data.arguments_refused", "split")),
        (
            "def make(split, depth): return []\n",
            ("own_data.arguments_refused", "split", "missing a required argument: 'depth'"),
        ),
        ("def make(split): return None\n", ("own_data.not_a_dataset", "None")),
        ("def make(split): return 3\n", ("own_data.not_a_dataset", "of type int")),
        ("def make(split): return (x for x in [1])\n", ("own_data.not_a_dataset", "generator")),
        ("def make(split): return []\n", ("own_data.empty", "train")),
        ("def make(split):\n    raise KeyError('x')\n", ("own_data.raises", "KeyError", "x", "mine.py", "2")),
        (
            "class A:\n    def __getitem__(self, i): return 1\ndef make(split): return A()\n",
            ("own_data.no_length", "A"),
        ),
        ("def make(split): return [1, 2]\n", ("own_data.item_malformed", "0", "int")),
        ("def make(split): return [(1, 2, 3)]\n", ("own_data.item_malformed", "0", "tuple of 3")),
        ("def make(split): return [('cat', 0)]\n", ("sample.not_numbers", "item 0: inputs", "text ('cat'")),
        ("def make(split): return [({}, 0)]\n", ("sample.dict_keys", "inputs")),
        ("def make(split): return [((), 0)]\n", ("sample.tuple_empty", "inputs")),
        ("def make(split): return [([[1], [1, 2]], 0)]\n", ("sample.lists_ragged",)),
        ("def make(split): return [(1.0, None)]\n", ("sample.not_numbers", "item 0: target", "of type NoneType")),
        ("def make(split): return [({'a': object()}, 0)]\n", ("sample.not_numbers", "inputs['a']", "of type object")),
        (
            "import torch\ndef make(split): return [(torch.ones(2, 3), 0), (torch.ones(2, 4), 0)]\n",
            ("sample.shapes_differ", "inputs", "[2, 3]", "[2, 4]"),
        ),
        (
            "import torch\ndef make(split): return [(torch.ones(2), 0), (torch.ones(2, 4), 0)]\n",
            ("sample.shapes_differ",),
        ),
        (
            "import torch\ndef make(split): return [(torch.ones(1), 0), (torch.ones(1).int(), 0)]\n",
            ("sample.dtypes_differ", "float32 and int32"),
        ),
        (
            "import torch\ndef make(split): return [(1, torch.ones(2)), (1, torch.ones(3, 2))]\n",
            ("sample.shapes_differ", "targets", "2", "3"),
        ),
        ("def make(split): return [({'a': 1}, 0), ({'b': 1}, 0)]\n", ("sample.names_differ",)),
        ("def make(split): return [((1, 2), 0), ((1,), 0)]\n", ("sample.tuples_differ",)),
        ("def make(split): return [((1, 2), 0), (1, 0)]\n", ("sample.tuples_differ",)),
        (
            listed(PAIR, "size_unit = 'words'"),
            ("own_data.size_unit_unknown", "words", "voxels, points, tokens, pixels, samples"),
        ),
        (listed(PAIR, "size_unit = 'tokens'; sizes = [1]"), ("own_data.sizes_malformed", "1", "1", "2 samples")),
        (listed(PAIR, "facts = 3"), ("own_data.facts_malformed", "3")),
        (
            "class A(list):\n    def __len__(self): raise OSError('gone')\ndef make(split): return A()\n",
            ("own_data.raises", "in len"),
        ),
        (
            listed("[(1, 0), (1, 0)]").replace("return self.items[index]", "return {}[index]"),
            ("own_data.raises", "KeyError in item 0"),
        ),
    ],
)
def test_what_a_user_got_wrong_is_told_in_one_line(tmp_path: Path, body: str, error: tuple[str, ...]) -> None:
    reference = own(tmp_path, body)
    with raises(*error) as caught:
        opened = open_examples(reference, split="train")
        opened.look()
        _ = dict(opened.facts)
        opened.batch(range(len(opened)))
        opened.sample_sizes()
    assert "mine.py:make" in str(caught.value) or "mine.py" in str(caught.value)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 600


def test_sources_and_options_that_are_none_are_refused(tmp_path: Path) -> None:
    reference = own(tmp_path, "def make(split): return [(1.0, 0)]\n")
    for arguments, error in (
        ({"split": "validation"}, ("dataset.split_unknown", "validation", "train, test")),
        ({"split": "train", "seed": -1}, ("number.below_least", "seed", "-1")),
        ({"split": "train", "augmentation": "shift"}, ("dataset.no_augmentation",)),
        ({"split": "train", "depth": 3}, ("own_data.arguments_refused", "split, depth")),
    ):
        with raises(*error):
            open_examples(reference, **arguments)
    with raises("function.no_file"):
        open_examples(str(tmp_path / "other.py:make"), split="train")
    with raises("dataset.unrecognised"):
        open_examples(tmp_path, split="train")
    opened: ExampleDataset = open_examples(reference, split="train")
    with raises("dataset.sample_unknown", "1", index=1, split="train"):
        opened.batch([1])
