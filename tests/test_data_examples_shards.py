"""NVIDIA's shards of BERT's samples: what their arrays say comes out, padding cut, faults told in a line."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from coded import raises
from fuzzing import fuzzed, put
from hypothesis import given
from hypothesis import strategies as st

from sparsepipe.data.examples import is_examples, open_examples
from sparsepipe.errors import InputError

random = np.random.default_rng(0)


def shard(rows: int = 25) -> dict[str, np.ndarray]:
    lengths = random.integers(6, 17, size=rows)
    arrays: dict[str, np.ndarray] = {
        "input_ids": random.integers(5, 100, size=(rows, 16)).astype(np.int32),
        "input_mask": (np.arange(16) < lengths[:, None]).astype(np.int8),
        "segment_ids": (np.arange(16) >= 4).astype(np.int8) * np.ones((rows, 1), dtype=np.int8),
        "masked_lm_positions": np.tile(np.array([2, 5, 0, 0], dtype=np.int32), (rows, 1)),
        "masked_lm_ids": np.tile(np.array([17, 18, 0, 0], dtype=np.int32), (rows, 1)),
        "next_sentence_labels": (np.arange(rows) % 2).astype(np.int8),
    }
    arrays["input_ids"] *= arrays["input_mask"]
    arrays["segment_ids"] *= arrays["input_mask"]
    return arrays


def write_shard(path: Path, arrays: dict[str, np.ndarray]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array, compression="gzip")


def test_shards_give_their_samples(tmp_path: Path) -> None:
    arrays = shard()
    write_shard(tmp_path / "wiki" / "train_0.hdf5", arrays)
    write_shard(tmp_path / "wiki" / "train_1.hdf5", shard())
    write_shard(tmp_path / "wiki" / "test_0.hdf5", shard(3))
    assert is_examples(tmp_path)
    train, test = (open_examples(tmp_path / "wiki", split=split) for split in ("train", "test"))
    assert (len(train), len(test)) == (50, 3)
    assert dict(train.facts) == {"vocabulary_size": 30522, "sequence_length": 16, "padding": 0}
    lengths = arrays["input_mask"].sum(axis=1)
    assert tuple(train.sample_sizes())[:25] == tuple(lengths)
    batch = train.batch([4, 9])
    longest = lengths[[4, 9]].max()
    assert batch.inputs["words"].tolist() == arrays["input_ids"][[4, 9], :longest].tolist()
    assert batch.inputs["token_types"].tolist() == arrays["segment_ids"][[4, 9], :longest].tolist()
    assert batch.inputs["attention_mask"].tolist() == arrays["input_mask"][[4, 9], :longest].astype(bool).tolist()
    expected = np.full((2, longest), -100)
    expected[:, 2], expected[:, 5] = 17, 18
    assert batch.target["words"].tolist() == expected.tolist()
    assert batch.target["next_sentence"].tolist() == [0, 1] and batch.size == 2 * longest


def test_one_shard_holds_out_every_twentieth_sample(tmp_path: Path) -> None:
    arrays = shard(41)
    write_shard(tmp_path / "part.hdf5", arrays)
    train, test = (open_examples(tmp_path, split=split) for split in ("train", "test"))
    assert (len(train), len(test)) == (39, 2)
    found = test.batch([0, 1]).inputs["words"]
    assert found.tolist() == arrays["input_ids"][[19, 39], : found.shape[1]].tolist()


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"input_mask": None}, ("shards.array_missing", "input_mask", "input_ids, input_mask")),
        (
            {"segment_ids": np.zeros((25, 9), dtype=np.int8)},
            ("shards.array_shape", "segment_ids", "[25, 9]", "[25, 16]"),
        ),
        ({"masked_lm_positions": np.zeros(25, dtype=np.int8)}, ("shards.position_shape", "[25]")),
        ({"input_ids": np.zeros((25, 16), dtype=np.float32)}, ("shards.not_whole_numbers", "input_ids")),
        ({"input_ids": np.zeros((0, 16), dtype=np.int8)}, ("shards.input_shape", "[0, 16]")),
        (
            {"input_ids": np.full((25, 16), 40_000)},
            ("shards.sample_damaged", "0", "words from", "to 40000, expected 0 to 30521"),
        ),
        ({"masked_lm_positions": np.full((25, 4), 15)}, ("shards.sample_damaged", "masks word 15 of")),
        (
            {"next_sentence_labels": np.full(25, 3)},
            ("shards.sample_damaged", "a segment or next-sentence label other than 0 and 1"),
        ),
    ],
)
def test_damaged_shards_are_named(tmp_path: Path, change: dict[str, Any], error: tuple[str, ...]) -> None:
    arrays = {name: array for name, array in (shard() | change).items() if array is not None}
    write_shard(tmp_path / "train.hdf5", arrays)
    with raises(*error) as caught:
        opened = open_examples(tmp_path, split="train")
        opened.batch(range(len(opened)))
    assert "train.hdf5" in str(caught.value)


@fuzzed(100)
@given(damage=st.data())
def test_damaged_shards_are_read_or_refused_in_a_line(tmp_path: Path, damage: st.DataObject) -> None:
    path = tmp_path / "whole" / "train.hdf5"
    if not path.exists():
        write_shard(path, shard())
    content = bytearray(path.read_bytes())
    for _ in range(damage.draw(st.integers(1, 8))):
        content[damage.draw(st.integers(8, len(content) - 1))] = damage.draw(st.integers(0, 255))
    if damage.draw(st.booleans()):
        content = content[: damage.draw(st.integers(8, len(content)))]
    folder = tmp_path / "damaged"
    folder.mkdir(exist_ok=True)
    put(folder / "train.hdf5", bytes(content))
    try:
        opened = open_examples(folder, split="train")
        batch = opened.batch(range(len(opened)))
    except InputError as error:
        assert str(folder) in str(error) and "\n" not in str(error) and len(str(error)) < 600
        return
    assert int(batch.inputs["words"].min()) >= 0 and int(batch.inputs["words"].max()) < 30522
