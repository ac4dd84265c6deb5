"""Data sets of examples described and checked: counts as written, each fault in a line, what is there twice."""

import json
import struct
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from coded import mentions

from sparsepipe.cli import main
from sparsepipe.data import check, info
from sparsepipe.data.examples import ExampleDataset
from sparsepipe.data.examples.images.dataset import ImageExamples
from sparsepipe.data.examples.own import OwnExamples
from sparsepipe.data.examples.texts.bert import PlainTextExamples
from sparsepipe.data.examples.texts.shards import ShardExamples
from sparsepipe.data.examples.texts.translation import TranslationExamples

random = np.random.default_rng(0)
DIGITS = random.integers(0, 256, size=(80, 28, 28), dtype=np.uint8)


def write_mnist(folder: Path, train: np.ndarray, test: np.ndarray) -> Path:
    folder.mkdir(exist_ok=True)
    for split, images in (("train", train), ("t10k", test)):
        for what, array in (("images-idx3", images), ("labels-idx1", np.arange(len(images)) % 3)):
            head = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
            (folder / f"{split}-{what}-ubyte").write_bytes(head + array.astype(np.uint8).tobytes())
    return folder


def own(folder: Path, body: str) -> str:
    (folder / "mine.py").write_text(f"import torch\nclass Data:\n    def __len__(self): return 70\n{body}")
    return f"{folder / 'mine.py'}:Make"


MAKE = "def Make(split): return Data()\n"


def test_info_tells_splits_classes_shapes_and_facts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_mnist(tmp_path / "mnist", DIGITS[:50], DIGITS[50:52])
    found = info(folder)
    assert found["splits"] == {"train": 50, "test": 2} and found["samples"] == 52
    assert found["samples_by_class"]["0"] == {"train": 17, "test": 1}
    assert found["missing"] == [{"class": "2", "split": "test"}]
    assert found["facts"] == {"num_classes": 3, "in_channels": 1, "image_size": 28}
    assert found["example"] == {"inputs": "float32 [1, 28, 28]", "target": "int64 []"}
    assert main(["data", "info", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == found
    assert main(["data", "info", str(folder)]) == 0
    out = capsys.readouterr().out
    assert "train 50, test 2" in out and mentions(out, "class 2")


def test_a_sound_data_set_is_read_once_and_said_to_be_sound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_mnist(tmp_path / "mnist", DIGITS[:50], DIGITS[50:])
    told: list[str] = []
    report = check(folder, progress=told.append)
    assert not report.faults and report.splits["train"].samples == 50
    assert mentions(told[0], 32, "50 samples", "0 faults") and mentions(told[-1], 30, "30 samples", "0 faults")
    assert main(["data", "check", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True
    assert main(["data", "check", str(folder)]) == 0


def test_samples_that_are_there_twice_are_named(tmp_path: Path) -> None:
    folder = write_mnist(tmp_path / "mnist", np.concatenate([DIGITS[:40], DIGITS[7:8]]), DIGITS[39:50])
    report = check(folder)
    (across,) = report.across_splits
    assert (across.first, across.second, across.splits) == ("train/39", "test/0", ("train", "test"))
    (within,) = report.within_split
    assert (within.first, within.second) == ("train/7", "train/40")
    assert mentions(str(report), "test/0", "train/39")


@pytest.mark.parametrize(
    ("body", "faulty", "messages"),
    [
        (
            "    def __getitem__(self, i): return torch.ones(2) / (i != 5), [0, 'x'][i == 66]\n",
            1,
            ["item 66: target is text ('x')"],
        ),
        (
            "    def __getitem__(self, i):\n        if i in (5, 40): raise OSError('gone')\n"
            "        return torch.ones(2), 0\n",
            2,
            ["raises OSError in item 5 of split", "raises OSError in item 40"],
        ),
        (
            "    def __getitem__(self, i): return torch.ones(1, 3 if i == 33 else 2), 0\n",
            0,
            ["inputs have shapes [1, 2] and [1, 3] in one minibatch"],
        ),
        (
            "    def __getitem__(self, i): return torch.ones(1, 3 if i >= 32 else 2), 0\n",
            0,
            ["inputs have shapes [1, 2] and [1, 3] in one minibatch"],
        ),
    ],
)
def test_every_fault_of_a_users_own_is_listed(
    tmp_path: Path, body: str, faulty: int, messages: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    reference = own(tmp_path, body + MAKE)
    report = check(reference)
    assert report.splits["train"].faulty == report.splits["test"].faulty == faulty
    for message in messages:
        assert any(message in str(fault) for fault in report.faults)
    assert main(["data", "check", reference]) == 2
    out, err = capsys.readouterr()
    assert "prevent a run" in err and all(len(line) < 600 for line in out.splitlines())


def test_a_split_that_cannot_be_opened_is_a_fault(tmp_path: Path) -> None:
    folder = write_mnist(tmp_path / "mnist", DIGITS[:5], DIGITS[5:9])
    (folder / "t10k-labels-idx1-ubyte").unlink()
    (fault,) = check(folder).faults
    assert mentions(str(fault), folder)


def test_options_are_given_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reference = own(
        tmp_path,
        "    def __getitem__(self, i): return torch.ones(2), 0\n"
        "def Make(split, depth=1):\n    made = Data()\n    made.facts = {'depth': depth}\n    return made\n",
    )
    assert main(["data", "info", reference, "--data-args", '{"depth": 3}']) == 0
    assert "depth: 3" in capsys.readouterr().out
    for words, message in (
        (["data", "info", reference, "--data-args", "{"], "--data-args '{': not JSON"),
        (["data", "check", reference, "--data-args", "[1]"], "expected a JSON object"),
        (
            ["data", "info", str(tmp_path), "--data-args", '{"a": 1}'],
            "--data-args does not apply to point clouds",
        ),
    ):
        assert main(words) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "kind",
    [OwnExamples, ImageExamples, TranslationExamples, PlainTextExamples, ShardExamples],
    ids=lambda kind: kind.__name__,
)
def test_every_kind_offers_what_a_data_set_of_examples_promises(kind: type) -> None:
    promised = {name for name in vars(ExampleDataset) if not name.startswith("_")}
    offered = {*dir(kind), *(field.name for field in fields(kind))}
    assert {"batch", "split", "labels", "sample_sizes"} <= promised <= offered
