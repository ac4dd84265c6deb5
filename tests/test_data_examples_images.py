"""Images with classes: what files of the usual formats hold comes out as it is, faults are told in a line."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from coded import raises
from fuzzing import fuzzed, put
from hypothesis import given
from hypothesis import strategies as st

from sparsepipe.data.examples import ExampleDataset, is_examples, open_examples
from sparsepipe.data.examples.images.dataset import AUGMENTATIONS
from sparsepipe.errors import InputError

random = np.random.default_rng(0)
DIGITS = random.integers(0, 256, size=(7, 5, 5), dtype=np.uint8)
MNIST_MEAN, MNIST_DEVIATION = 0.1307, 0.3081


def idx(array: np.ndarray, kind: int = 8) -> bytes:
    head = struct.pack(f">BBBB{array.ndim}I", 0, 0, kind, array.ndim, *array.shape)
    return head + array.astype(np.uint8).tobytes()


def write_mnist(folder: Path, *, packed: bool = False) -> Path:
    folder.mkdir(parents=True)
    labels = np.arange(7) % 3
    for split, rows in (("train", slice(0, 5)), ("t10k", slice(5, 7))):
        for what, content in (("images-idx3", idx(DIGITS[rows])), ("labels-idx1", idx(labels[rows]))):
            if packed:
                (folder / f"{split}-{what}-ubyte.gz").write_bytes(gzip.compress(content))
            else:
                (folder / f"{split}-{what}-ubyte").write_bytes(content)
    return folder


@pytest.mark.parametrize("packed", [False, True])
def test_idx_files_give_their_pixels_normalised(tmp_path: Path, packed: bool) -> None:
    folder = write_mnist(tmp_path / "mnist" / "raw", packed=packed)
    assert is_examples(folder) and is_examples(tmp_path)
    train = open_examples(tmp_path / "mnist", split="train", image_size=5)
    test = open_examples(folder, split="test", image_size=5)
    assert (len(train), len(test), train.labels, test.labels) == (5, 2, (0, 1, 2, 0, 1), (2, 0))
    batch = test.batch([1, 0])
    expected = (torch.from_numpy(DIGITS[[6, 5]]).float()[:, None] / 255 - MNIST_MEAN) / MNIST_DEVIATION
    torch.testing.assert_close(batch.inputs, expected)
    assert batch.target.tolist() == [0, 2] and batch.inputs.is_contiguous()
    assert (len(batch), batch.size, test.size_unit) == (2, 2, "samples")
    assert dict(train.facts) == {"num_classes": 3, "in_channels": 1, "image_size": 5}
    assert train.origin["samples"] == 5 and str(tmp_path) not in str(train.origin)
    train.look()


def test_digits_of_another_size_are_resized(tmp_path: Path) -> None:
    """As Pillow does it (only its own test knows how)."""
    image = pytest.importorskip("PIL.Image")
    opened = open_examples(write_mnist(tmp_path / "mnist"), split="train")
    found = opened.batch([0]).inputs[0, 0] * MNIST_DEVIATION + MNIST_MEAN
    expected = np.asarray(image.fromarray(DIGITS[0]).resize((28, 28), image.Resampling.BILINEAR))
    np.testing.assert_allclose(found.numpy() * 255, expected, atol=1e-3)


def test_augmented_pictures_repeat_by_seed_and_epoch_and_the_test_split_never_changes(tmp_path: Path) -> None:
    folder = write_mnist(tmp_path / "mnist")

    def read(split: str, seed: int, epoch: int) -> torch.Tensor:
        opened = open_examples(folder, split=split, image_size=5, seed=seed, augmentation="shift-flip")
        return opened.batch(range(len(opened)), epoch=epoch).inputs

    assert torch.equal(read("train", 0, 1), read("train", 0, 1))
    assert not torch.equal(read("train", 0, 1), read("train", 1, 1))
    assert not torch.equal(read("train", 0, 1), read("train", 0, 2))
    assert torch.equal(read("test", 0, 1), read("test", 1, 2))


def test_a_shift_moves_and_a_flip_mirrors() -> None:
    picture = random.integers(1, 256, size=(16, 16, 3), dtype=np.uint8)
    framed = np.pad(picture, ((2, 2), (2, 2), (0, 0)))
    windows = [framed[top : top + 16, left : left + 16] for top in range(5) for left in range(5)]
    mirrored = [window[:, ::-1] for window in windows]
    seen: set[int] = set()
    for seed in range(200):
        found = AUGMENTATIONS["shift-flip"](picture, 16, np.random.default_rng(seed))
        (place,) = [n for n, window in enumerate(windows + mirrored) if np.array_equal(window, found)]
        seen.add(place)
    assert len(seen) > 45  # of the 50 there are


def write_cifar(folder: Path, *, label_bytes: int) -> tuple[Path, np.ndarray]:
    """Write records of random pixels and return them: uint8 [S, label bytes + 3072]."""
    folder.mkdir(parents=True)
    rows = random.integers(0, 256, size=(12, label_bytes + 3072), dtype=np.uint8)
    rows[:, :label_bytes] %= 10
    if label_bytes == 1:
        for number in range(5):
            (folder / f"data_batch_{number + 1}.bin").write_bytes(rows[2 * number : 2 * number + 2].tobytes())
        (folder / "test_batch.bin").write_bytes(rows[10:].tobytes())
        (folder / "batches.meta.txt").write_text("\n".join(f"name{k}" for k in range(10)) + "\n\n")
    else:
        (folder / "train.bin").write_bytes(rows[:10].tobytes())
        (folder / "test.bin").write_bytes(rows[10:].tobytes())
    return folder, rows


@pytest.mark.parametrize("label_bytes", [1, 2])
def test_cifar_gives_its_records_in_order(tmp_path: Path, label_bytes: int) -> None:
    _, rows = write_cifar(tmp_path / "cifar-binary", label_bytes=label_bytes)
    assert is_examples(tmp_path)
    train, test = (open_examples(tmp_path, split=split) for split in ("train", "test"))
    assert (len(train), len(test)) == (10, 2)
    assert train.labels == tuple(rows[:10, label_bytes - 1].tolist())
    batch = train.batch([9, 2])
    planes = rows[[9, 2], label_bytes:].reshape(2, 3, 32, 32) / 255
    mean, deviation = (np.array(train.origin[key]).reshape(1, 3, 1, 1) for key in ("mean", "deviation"))
    np.testing.assert_allclose(batch.inputs.numpy(), (planes - mean) / deviation, rtol=1e-4, atol=1e-4)
    assert train.facts["num_classes"] == {1: 10, 2: 100}[label_bytes] == len(train.classes)
    assert (train.classes[3] == "name3") == (label_bytes == 1)


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("data_batch_3.bin", b"x" * 3072, ("cifar.size_odd", "3072", "3073")),
        ("data_batch_3.bin", b"", ("cifar.size_odd", "0")),
        ("data_batch_3.bin", b"\x0a" + bytes(3072), ("cifar.label_out_of_range", "data_batch_3.bin", "10", "9")),
        ("data_batch_3.bin", None, ("cifar.files_missing", "data_batch_3.bin", "train")),
        ("batches.meta.txt", b"cat\ndog\n", ("cifar.class_count", "2", "10")),
    ],
)
def test_damaged_cifar_files_are_named(
    tmp_path: Path, name: str, content: bytes | None, error: tuple[str, ...]
) -> None:
    folder, _ = write_cifar(tmp_path / "cifar", label_bytes=1)
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    with raises(*error) as caught:
        _ = open_examples(folder, split="train").facts["num_classes"]
    assert str(folder) in str(caught.value)


@fuzzed(100)
@given(content=st.binary(max_size=3100), repeats=st.integers(1, 2))
def test_any_bytes_as_cifar_are_read_or_refused_in_a_line(tmp_path: Path, content: bytes, repeats: int) -> None:
    folder = tmp_path / "cifar"
    if not folder.exists():
        write_cifar(folder, label_bytes=2)
    put(folder / "train.bin", (content + bytes(3074 - len(content) % 3074)) * repeats + content[:1])
    read_or_refused(folder)
    put(folder / "train.bin", (content + bytes(3074 - len(content) % 3074)) * repeats)
    read_or_refused(folder)


CASES = [
    ("train-images-idx3-ubyte", b"", "empty, expected an idx file"),
    ("train-images-idx3-ubyte", idx(DIGITS[:5])[:-1], "124 bytes of content, but its header declares 125"),
    ("train-images-idx3-ubyte", idx(DIGITS[:5]) + b"x", "126 bytes of content, but its header declares 125"),
    ("train-images-idx3-ubyte", idx(DIGITS[:5], kind=13), "numbers of type 13, expected unsigned bytes"),
    (
        "train-images-idx3-ubyte",
        struct.pack(">BBBB3I", 0, 0, 8, 3, 2**31, 28, 28),
        "0 bytes of content, but its header declares 1683627180032",
    ),
    ("train-images-idx3-ubyte", idx(DIGITS[:0]), "contains no images|labels for the 0 images"),
    ("train-labels-idx1-ubyte", idx(np.zeros(4)), "4 labels for the 5 images of train-images-idx3-ubyte"),
    ("train-labels-idx1-ubyte", idx(DIGITS[:5]), "not an idx file of 1 axes"),
    ("train-labels-idx1-ubyte", None, "no file of the labels of split train"),
    ("train-labels-idx1-ubyte.gz", b"\x1f\x8bgarbage", "2 files of the labels of split train"),
]


@pytest.mark.parametrize(("name", "content", "message"), CASES)
def test_damaged_idx_files_are_named(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    folder = write_mnist(tmp_path / "mnist")
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        open_examples(folder, split="train").batch([0])
    assert str(folder) in str(caught.value)


def test_options_and_augmentations_that_are_none_list_those_there_are(tmp_path: Path) -> None:
    folder = write_mnist(tmp_path / "mnist")
    for arguments, error in (
        ({"sequence_length": 3}, ("dataset.option_unknown", "sequence_length", "image_size")),
        ({"augmentation": "swirl"}, ("augmentation.unknown", "resized-crop, shift, shift-flip")),
        ({"image_size": 10**6}, ("images.size_too_large", "4096")),
        ({"image_size": "big"}, ("number.not_whole",)),
    ):
        with raises(*error):
            open_examples(folder, split="train", **arguments)


@fuzzed(200)
@given(damage=st.data())
def test_damaged_idx_files_are_read_or_refused_in_a_line(tmp_path: Path, damage: st.DataObject) -> None:
    folder = tmp_path / "mnist"
    if not folder.exists():
        write_mnist(folder, packed=True)
    name = damage.draw(st.sampled_from(["train-images-idx3-ubyte", "train-labels-idx1-ubyte"]))
    content = bytearray(idx(DIGITS[:5]) if "images" in name else idx(np.arange(5) % 3))
    packed = damage.draw(st.booleans())
    if packed:
        content = bytearray(gzip.compress(bytes(content)))
    for _ in range(damage.draw(st.integers(0, 4))):
        content[damage.draw(st.integers(0, len(content) - 1))] = damage.draw(st.integers(0, 255))
    content = content[: damage.draw(st.integers(0, len(content)))] if damage.draw(st.booleans()) else content
    for path in folder.glob(f"{name}*"):
        path.unlink()
    (folder / (f"{name}.gz" if packed else name)).write_bytes(content)
    read_or_refused(folder)


def read_or_refused(folder: Path) -> None:
    pytest.importorskip("PIL", reason="no Pillow: install the package's requirements")
    try:
        opened: ExampleDataset = open_examples(folder, split="train", image_size=8)
        batch = opened.batch(range(len(opened)))
    except InputError as error:
        assert str(folder) in str(error) and "\n" not in str(error) and len(str(error)) < 600
        return
    assert bool(torch.isfinite(batch.inputs).all()) and len(batch) == len(opened)
