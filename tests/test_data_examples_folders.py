"""Pictures in class folders: decoded, resized and cut as Pillow does it when asked directly, faults told in a line."""

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from coded import raises
from fuzzing import fuzzed, put
from hypothesis import given
from hypothesis import strategies as st

from sparsepipe import data
from sparsepipe.data.examples import is_examples, open_examples
from sparsepipe.errors import InputError

image = pytest.importorskip("PIL.Image", reason="no Pillow: install the package's requirements")

MEAN, DEVIATION = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
random = np.random.default_rng(0)


def picture(path: Path, *, height: int = 40, width: int = 60, mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    smooth = random.integers(0, 256, size=(4, 4, 3), dtype=np.uint8)
    image.fromarray(smooth).resize((width, height), image.Resampling.BICUBIC).convert(mode).save(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "pictures"
    for split, names in (("train", "abc"), ("val", "de")):
        for label, cls in enumerate(("n02", "n01")):
            for place, name in enumerate(names):
                picture(root / split / cls / f"{name}.{'jpg' if place else 'PNG'}", height=40 + 8 * label)
    (root / "train" / "n01" / ".DS_Store").write_text("x")
    (root / "train" / "n01" / "notes.txt").write_text("x")
    return root


def expected(path: Path, side: int) -> torch.Tensor:
    opened = image.open(path).convert("RGB")
    least = round(side * 256 / 224)
    width, height = opened.size
    size = (least, int(least * height / width)) if width <= height else (int(least * width / height), least)
    opened = opened.resize(size, image.Resampling.BILINEAR)
    left, top = round((size[0] - side) / 2), round((size[1] - side) / 2)
    pixels = np.asarray(opened.crop((left, top, left + side, top + side)))
    return ((torch.from_numpy(pixels.copy()).float() / 255 - MEAN) / DEVIATION).permute(2, 0, 1)


def test_pictures_are_ordered_as_image_folder_and_cut_as_usual(folder: Path) -> None:
    assert is_examples(folder) and is_examples(folder.parent)
    train, test = (open_examples(folder, split=split, image_size=21) for split in ("train", "test"))
    assert train.classes == ("n01", "n02") == test.classes
    assert (train.labels, test.labels) == ((0, 0, 0, 1, 1, 1), (0, 0, 1, 1))
    files = sorted((folder / "train" / "n01").glob("?.*")) + sorted((folder / "train" / "n02").glob("?.*"))
    batch = train.batch([5, 0])
    for row, index in enumerate((5, 0)):
        error = (batch.inputs[row] - expected(files[index], 21)).abs().max()
        assert error < (0.02 if files[index].suffix == ".PNG" else 0.2)  # a JPEG may be halved as it is decoded
    assert batch.target.tolist() == [1, 0]
    assert dict(train.facts) == {"num_classes": 2, "in_channels": 3, "image_size": 21}
    assert open_examples(folder, split="train").batch([0]).inputs.shape == (1, 3, 224, 224)


def test_grey_transparent_and_paletted_pictures_are_read_in_colour(folder: Path) -> None:
    for mode in ("L", "LA", "RGBA", "P", "1", "I;16"):
        path = folder / "train" / "n01" / "a.PNG"
        picture(path) if mode == "I;16" else picture(path, mode=mode)
        assert open_examples(folder, split="train", image_size=21).batch([0]).inputs.shape == (1, 3, 21, 21)


def test_random_crops_repeat_by_seed_and_epoch(folder: Path) -> None:
    def read(seed: int, epoch: int, split: str = "train") -> torch.Tensor:
        opened = open_examples(folder, split=split, image_size=21, seed=seed, augmentation="resized-crop")
        return opened.batch([1, 0], epoch=epoch).inputs

    assert torch.equal(read(0, 3), read(0, 3))
    assert not torch.equal(read(0, 3), read(0, 4)) and not torch.equal(read(0, 3), read(1, 3))
    assert torch.equal(read(0, 3, "test"), read(5, 1, "test"))


def test_decoded_pictures_are_kept_in_the_cache(folder: Path, tmp_path: Path) -> None:
    first = open_examples(folder, split="train", image_size=21, cache=tmp_path / "cache").batch([0, 1]).inputs
    kept = list((tmp_path / "cache").rglob("*.safetensors"))
    assert len(kept) == 2
    again = open_examples(folder, split="train", image_size=21, cache=tmp_path / "cache")
    assert torch.equal(again.batch([0, 1]).inputs, first)
    picture(folder / "train" / "n01" / "a.PNG")  # another content: another entry
    assert not torch.equal(
        open_examples(folder, split="train", image_size=21, cache=tmp_path / "cache").batch([0]).inputs, first[:1]
    )
    assert len(list((tmp_path / "cache").rglob("*.safetensors"))) == 3


def test_pictures_beside_meshes_are_none(folder: Path) -> None:
    (folder / "train" / "n01" / "chair.off").write_text("OFF\n3 1 0\n0 0 0\n1 0 0\n0 1 0\n3 0 1 2\n")
    assert not is_examples(folder)
    assert "off" in data.info(folder)["formats"]


def _png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", ("picture.empty",)),
        (b"no picture at all", ("picture.unreadable",)),
        (_png(10, 10), ("picture.unreadable",)),
        (_png(9000, 9000), ("picture.too_large", "9000 x 9000", "64000000")),
        (_png(10**6, 10**6), ("picture.too_large", "64000000")),
        (_png(3, 10**7), ("picture.too_large",)),
    ],
)
def test_pictures_that_cannot_be_read_are_named(folder: Path, content: bytes, error: tuple[str, ...]) -> None:
    path = folder / "train" / "n01" / "a.PNG"
    path.write_bytes(content)
    with raises(*error) as caught:
        open_examples(folder, split="train", image_size=21).batch([0])
    assert str(caught.value).startswith(str(path)) and "\n" not in str(caught.value)
    if not content:
        with raises("dataset.files_faulty", "is empty", split="train"):
            open_examples(folder, split="train", image_size=21).look()


def test_splits_must_have_the_same_classes(folder: Path) -> None:
    (folder / "val" / "n02").rename(folder / "val" / "n07")
    with raises("images.class_unknown", "val/n07", name="train"):
        open_examples(folder, split="test")
    (folder / "val" / "n07").rename(folder.parent / "away")
    with raises("images.class_folder_missing", "val", "n02"):
        open_examples(folder, split="test")
    (folder / "val").rename(folder / "else")
    with raises("images.no_test_folder"):
        open_examples(folder, split="test")


def test_classes_whose_names_are_one_are_refused(folder: Path) -> None:
    (folder / "val" / "n01").rename(folder / "val" / "N01")
    with raises("images.classes_alike", "val", "'N01' and 'n01' differ only by case or Unicode form"):
        open_examples(folder, split="test")
    picture(folder / "train" / "N01" / "z.png")
    with raises("images.classes_alike", "train", "'N01' and 'n01' differ"):
        open_examples(folder, split="train")


def test_a_test_folder_without_classes_gives_way_to_val(folder: Path) -> None:
    picture(folder / "test" / "unknown.jpg")
    assert len(open_examples(folder, split="test")) == 4


@fuzzed(200)
@given(damage=st.data())
def test_damaged_pictures_are_read_or_refused_in_a_line(tmp_path: Path, damage: st.DataObject) -> None:
    kind = damage.draw(st.sampled_from(["jpg", "png", "webp", "bmp", "ppm"]))
    whole = tmp_path / f"whole.{kind}"
    if not whole.exists():
        picture(whole)
    content = bytearray(whole.read_bytes())
    for _ in range(damage.draw(st.integers(1, 6))):
        content[damage.draw(st.integers(0, len(content) - 1))] = damage.draw(st.integers(0, 255))
    if damage.draw(st.booleans()):
        content = content[: damage.draw(st.integers(0, len(content)))]
    path = tmp_path / "set" / "train" / "a" / "b.jpg"
    path.parent.mkdir(parents=True, exist_ok=True)
    put(path, bytes(content))
    try:
        inputs = open_examples(tmp_path / "set", split="train", image_size=8).batch([0]).inputs
    except InputError as error:
        assert str(error).startswith(str(path)) and "\n" not in str(error) and len(str(error)) < 600
        return
    assert inputs.shape == (1, 3, 8, 8) and bool(torch.isfinite(inputs).all())
