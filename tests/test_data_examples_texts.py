"""Texts: pairs and pieces come out as they were written, padding and masks by definition, faults told in a line."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from coded import raises
from fuzzing import fuzzed, put
from hypothesis import given
from hypothesis import strategies as st

from sparsepipe.data.examples import is_examples, open_examples
from sparsepipe.data.examples.texts.aligned import held_out
from sparsepipe.data.examples.texts.masking import sentences
from sparsepipe.data.examples.texts.vocabulary import BERT_TOKENS, TRANSLATION_TOKENS, opened_vocabulary
from sparsepipe.errors import InputError

pytest.importorskip("tokenizers", reason="no tokenizers: install the package's requirements")

WORDS = ["the", "cat", "dog", "sees", "runs", "small", "house", "käse", "straße", "über", "green", "tree", "often"]
random = np.random.default_rng(0)


def sentence(length: int | None = None) -> str:
    count = length or int(random.integers(2, 9))
    return " ".join(WORDS[word] for word in random.integers(len(WORDS), size=count))


SENTENCES = [f"{sentence()}{place % 7}" for place in range(60)]
SMALL = {"vocabulary_size": 150, "sequence_length": 32}


def write_pairs(folder: Path, *, testing: bool = True) -> Path:
    folder.mkdir(parents=True)
    for split, rows in (("train", slice(0, 50)), ("test", slice(50, 60))):
        if split == "train" or testing:
            (folder / f"{split}.en").write_text("".join(f"{line}\n" for line in SENTENCES[rows]), encoding="utf-8")
            (folder / f"{split}.de").write_text("".join(f"{line.upper()}.\n" for line in SENTENCES[rows]))
    return folder


# --- translation -----------------------------------------------------------------------------------------------------


def test_pairs_come_back_as_they_were_written(tmp_path: Path) -> None:
    folder = write_pairs(tmp_path / "pairs")
    (folder / "train.tok.en").write_text("x\n")  # a further state of one language alone
    (folder / "train.tok.de").write_text("x\n" * 3)
    assert is_examples(folder)
    train, test = (open_examples(folder, split=split, **SMALL) for split in ("train", "test"))
    assert (len(train), len(test), train.size_unit, train.loss) == (50, 10, "tokens", "tokens")
    facts = dict(train.facts)
    assert facts["source_vocabulary_size"] == facts["target_vocabulary_size"] == len(train.vocabulary) <= 150
    assert [facts[name] for name in ("padding", "begin", "end")] == [0, 2, 3]
    batch = train.batch([3, 0, 7])
    for row, index in enumerate((3, 0, 7)):
        assert train.decode(batch.inputs["source"][row]) == SENTENCES[index]
        assert train.decode(batch.target[row]) == f"{SENTENCES[index].upper()}."
    assert test.decode(test.batch([9]).inputs["source"][0]) == SENTENCES[59]
    assert train.origin["vocabulary_sha256"] == test.origin["vocabulary_sha256"]
    assert json.dumps(train.origin) and str(tmp_path) not in json.dumps(train.origin)


def test_a_translations_minibatch_is_shifted_padded_and_masked(tmp_path: Path) -> None:
    train = open_examples(write_pairs(tmp_path / "pairs"), split="train", **SMALL)
    batch = train.batch(range(8))
    source, mask, before, after = (*batch.inputs.values(), batch.target)
    assert list(batch.inputs) == ["source", "source_mask", "target"]
    assert (source.dtype, mask.dtype, before.dtype, after.dtype) == (torch.int64, torch.bool, torch.int64, torch.int64)
    assert torch.equal(mask, source != 0)
    for words, then in zip(before.tolist(), after.tolist(), strict=True):
        real = then.index(3) + 1
        assert words[0] == 2 and words[1:real] == then[: real - 1]
        assert set(words[real:]) <= {0} and set(then[real:]) <= {-100}
    assert batch.size == source.numel() + before.numel()
    ends = (source == 3).sum(dim=1) == 1
    assert bool(ends.all()) and int(mask.sum(dim=1).max()) == source.shape[1]
    sizes = train.sample_sizes()
    assert sizes[4] == int(mask[4].sum()) + int((after[4] != -100).sum())


def test_without_a_test_text_pairs_are_held_out_by_their_hash(tmp_path: Path) -> None:
    folder = write_pairs(tmp_path / "pairs", testing=False)
    lines = [f"{line} {place}" for place, line in enumerate(SENTENCES * 5)]
    for language in ("en", "de"):
        (folder / f"train.{language}").write_text("".join(f"{line}\n" for line in lines))
    train, test = (open_examples(folder, split=split, **SMALL) for split in ("train", "test"))
    found = [test.decode(test.batch([index]).inputs["source"][0]) for index in range(len(test))]
    assert found == [line for line in lines if held_out(line)]
    assert len(test) > 0 and len(train) + len(test) == len(lines)


def test_long_pairs_are_left_out_of_training_and_cut_in_testing(tmp_path: Path) -> None:
    folder = write_pairs(tmp_path / "pairs")
    long = sentence(60)
    for split in ("train", "test"):
        for language in ("en", "de"):
            with (folder / f"{split}.{language}").open("a") as file:
                file.write(f"{long}\n")
    (folder / "train.en").write_text((folder / "train.en").read_text() + "\n")
    (folder / "train.de").write_text((folder / "train.de").read_text() + "no source\n")
    train, test = (open_examples(folder, split=split, **SMALL) for split in ("train", "test"))
    assert (len(train), len(test)) == (50, 11)
    cut = test.batch([10])
    assert cut.inputs["source"].shape[1] == cut.target.shape[1] == 32
    assert int(cut.target[0, -1]) == test.facts["end"]


def test_vocabulary_and_samples_are_made_once_and_kept_by_content(tmp_path: Path) -> None:
    folder, cache = write_pairs(tmp_path / "pairs"), tmp_path / "cache"
    made = open_examples(folder, split="train", cache=cache, **SMALL)
    without = open_examples(folder, split="train", cache="off", **SMALL)
    assert len(made) and made.vocabulary.json == without.vocabulary.json  # training repeats
    kept = {path: path.stat().st_mtime_ns for path in cache.rglob("*.safetensors")}
    assert len(kept) == 2
    again = open_examples(folder, split="train", cache=cache, **SMALL)
    assert torch.equal(again.batch([5]).inputs["source"], made.batch([5]).inputs["source"])
    assert again.vocabulary.json == made.vocabulary.json and len(list(cache.rglob("*.safetensors"))) == 2
    (folder / "train.en").write_text((folder / "train.en").read_text().replace("cat", "Katze"))
    assert len(open_examples(folder, split="train", cache=cache, **SMALL)) == 50
    assert len(list(cache.rglob("*.safetensors"))) == 4


def test_languages_may_be_named(tmp_path: Path) -> None:
    folder = write_pairs(tmp_path / "pairs")
    back = open_examples(folder, split="train", source_language="de", target_language="en", **SMALL)
    assert back.decode(back.batch([0]).target[0]) == SENTENCES[0]
    for name in ("train", "test"):
        (folder / f"{name}.fr").write_text((folder / f"{name}.en").read_text())
    with raises("texts.language_undecided", "de, en, fr"):
        open_examples(folder, split="train")
    assert len(open_examples(folder, split="test", target_language="fr", **SMALL)) == 10


def write_vocabulary(path: Path, lines: list[str], special: tuple[str, ...]) -> Path:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE(unk_token=special[1]))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    tokenizer.train_from_iterator(lines, trainers.BpeTrainer(special_tokens=list(special), show_progress=False))
    tokenizer.save(str(path))
    return path


def test_a_given_vocabulary_is_used_or_refused(tmp_path: Path) -> None:
    folder, special = write_pairs(tmp_path / "pairs"), ("<pad>", "<unk>", "<s>", "</s>")
    own = write_vocabulary(tmp_path / "own.json", [*SENTENCES, *map(str.upper, SENTENCES), "."], special)
    given = open_examples(folder, split="train", vocabulary=str(own))
    assert given.decode(given.batch([1]).inputs["source"][0]) == SENTENCES[1]
    for content, error in (
        (
            write_vocabulary(tmp_path / "other.json", ["αβγ δε", "ζηθ"], special),
            ("vocabulary.of_other_text",),
        ),
        (
            write_vocabulary(tmp_path / "bare.json", SENTENCES, ("[PAD]", "[UNK]")),
            ("vocabulary.special_tokens", "has no <pad>, <unk>, <s>, </s>"),
        ),
        (
            write_vocabulary(tmp_path / "late.json", SENTENCES, ("<s>", "<unk>", "<pad>", "</s>")),
            ("vocabulary.special_tokens", "numbers <pad> 2"),
        ),
        (tmp_path / "missing.json", ("file.not_found", "vocabulary")),
        (folder / "train.en", ("vocabulary.malformed",)),
    ):
        with raises(*error) as caught:
            len(open_examples(folder, split="train", vocabulary=str(content)))
        assert str(caught.value).startswith(str(content))


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("train.de", b"one\n", ("texts.line_count", "train.de", "1", "50", "train.en")),
        ("train.de", b"x\n" * 20 + b"\xff\n" + b"x\n" * 29, ("texts.not_utf8", "train.de", "21")),
        ("train.de", b"\n" * 50, ("texts.no_pairs", "train")),
        ("train.de", None, ("dataset.unrecognised",)),
    ],
)
def test_texts_that_are_not_aligned_are_named(
    tmp_path: Path, name: str, content: bytes | None, error: tuple[str, ...]
) -> None:
    folder = write_pairs(tmp_path / "pairs")
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content)
    with raises(*error):
        len(open_examples(folder, split="train", **SMALL))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (
            {"image_size": 3},
            ("dataset.option_unknown", "image_size", "source_language, target_language, vocabulary_size"),
        ),
        ({"sequence_length": 1}, ("number.below_least", "sequence_length", "1", "2")),
        ({"sequence_length": 2}, ("texts.no_pairs", "2")),
        ({"vocabulary_size": 3}, ("number.below_least", "vocabulary_size", "3", "100")),
        ({"vocabulary_size": 10**9}, ("vocabulary.too_large", "200000")),
        ({"source_language": "fr"}, ("texts.language_unknown", "fr", "de, en")),
        ({"source_language": "de", "target_language": "de"}, ("texts.languages_equal", "de")),
        ({"augmentation": "shift"}, ("dataset.no_augmentation",)),
    ],
)
def test_options_of_translation_are_checked(tmp_path: Path, options: dict[str, Any], error: tuple[str, ...]) -> None:
    with raises(*error):
        len(open_examples(write_pairs(tmp_path / "pairs"), split="train", **options))


@fuzzed(60)
@given(source=st.binary(max_size=60), target=st.binary(max_size=60))
def test_any_two_files_are_a_text_or_refused_in_a_line(tmp_path: Path, source: bytes, target: bytes) -> None:
    folder = tmp_path / "pairs"
    folder.mkdir(exist_ok=True)
    put(folder / "train.en", source)
    put(folder / "train.de", target)
    try:
        opened = open_examples(folder, split="train", vocabulary_size=100)
        batch = opened.batch(range(len(opened)))
    except InputError as error:
        assert str(folder) in str(error) and "\n" not in str(error)
        return
    assert int(batch.inputs["source"].max()) < opened.facts["source_vocabulary_size"]


@pytest.mark.parametrize("special", [TRANSLATION_TOKENS, BERT_TOKENS])
def test_the_same_text_gives_the_same_vocabulary_in_every_process(special: tuple[str, ...]) -> None:
    """The library's trainer of WordPiece numbered letters in the order of a hash map, another one in each process."""
    settings = {"size": 300, "special": special, "given": None, "cache": None, "facts": {}}
    lines = [*SENTENCES, "Größe, élan: naïve façade & 1234 — “quoted” (words)"]
    vocabulary = opened_vocabulary(lambda: lines, [], **settings)
    code = (
        "from sparsepipe.data.examples.texts.vocabulary import opened_vocabulary\n"
        f"print(opened_vocabulary(lambda: {lines!r}, [], **{settings!r}).sha256)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == vocabulary.sha256
    assert 100 < len(vocabulary) <= 300
    ids = vocabulary.encoded(lines)
    unknown = vocabulary.id(special[1])
    assert [vocabulary.id(token) for token in special] == list(range(len(special))) and unknown not in ids.ids
    for place in (0, 5):
        assert vocabulary.decoded(ids[place]) == lines[place]
    lower = vocabulary.decoded(ids[len(lines) - 1]).lower().replace(" ", "")
    assert lower == lines[-1].lower().replace(" ", "")  # accents are kept


# --- plain text ------------------------------------------------------------------------------------------------------


def write_plain(folder: Path, documents: int = 20) -> Path:
    (folder / "train").mkdir(parents=True)
    (folder / "test").mkdir()
    for place in range(documents):
        lines = [f"{' '.join(sentence().capitalize() + '.' for _ in range(3))}\n" for _ in range(6)]
        (folder / ("test" if place % 5 == 4 else "train") / f"{place:03d}.txt").write_text("".join(lines))
    return folder


def test_masked_words_are_told_and_the_rest_is_the_text(tmp_path: Path) -> None:
    folder = write_plain(tmp_path / "plain")
    assert is_examples(folder)
    train = open_examples(folder, split="train", seed=3, **SMALL)
    assert (train.size_unit, train.loss) == ("tokens", "masked-words")
    assert train.facts["sequence_length"] == 32 and train.facts["padding"] == 0
    batch = train.batch(range(len(train)))
    words, types, mask = batch.inputs["words"], batch.inputs["token_types"], batch.inputs["attention_mask"]
    told, follows = batch.target["words"], batch.target["next_sentence"]
    assert torch.equal(mask, words != 0) and batch.size == words.numel() and words.shape[1] <= 32
    assert bool((told[~mask] == -100).all()) and bool((types[~mask] == 0).all())
    assert bool((words[:, 0] == 2).all())  # [CLS]
    assert bool(((words == 3).sum(dim=1) == 2).all())  # [SEP] twice, the last word too
    chosen = told != -100
    share = chosen.sum() / (mask.sum() - 3 * len(words))
    assert 0.13 < share < 0.17 and bool((told[chosen] >= 5).all())
    masked, same = (words[chosen] == 4).float().mean(), (words[chosen] == told[chosen]).float().mean()
    assert 0.75 < masked < 0.85 and 0.06 < same < 0.15
    assert 0.4 < follows.float().mean() < 0.6 and set(follows.tolist()) == {0, 1}
    lengths = mask.sum(dim=1)
    assert all(length <= size for length, size in zip(lengths.tolist(), train.sample_sizes(), strict=True))


def test_pieces_follow_each_other_where_it_says_so(tmp_path: Path) -> None:
    folder = write_plain(tmp_path / "plain")
    train = open_examples(folder, split="train", **SMALL)
    texts = ["".join(path.read_text().lower().split()) for path in sorted((folder / "train").iterdir())]
    outcomes: Counter[tuple[int, bool]] = Counter()
    for index in range(len(train)):
        batch = train.batch([index])
        words = torch.where(batch.target["words"] == -100, batch.inputs["words"], batch.target["words"])[0]
        first = train.decode(words[batch.inputs["token_types"][0] == 0]).replace(" ", "")
        second = train.decode(words[batch.inputs["token_types"][0] == 1]).replace(" ", "")
        assert any(first in text for text in texts) and any(second in text for text in texts)
        outcomes[int(batch.target["next_sentence"][0]), any(first + second in text for text in texts)] += 1
    assert outcomes[0, False] == 0 and outcomes[0, True] > 0 and outcomes[1, False] > 20 * outcomes[1, True]


def test_masks_are_drawn_by_seed_sample_and_epoch_and_stay_in_testing(tmp_path: Path) -> None:
    folder = write_plain(tmp_path / "plain")

    def words(split: str, seed: int, epoch: int) -> torch.Tensor:
        return open_examples(folder, split=split, seed=seed, **SMALL).batch([0, 1], epoch=epoch).inputs["words"]

    assert torch.equal(words("train", 0, 1), words("train", 0, 1))
    assert not torch.equal(words("train", 0, 1), words("train", 0, 2))
    assert not torch.equal(words("train", 0, 1), words("train", 1, 1))
    assert torch.equal(words("test", 0, 1), words("test", 0, 2))


def test_one_file_holds_documents_between_empty_lines_every_tenth_for_testing(tmp_path: Path) -> None:
    documents = [[f"word{place} {sentence()}." for _ in range(4)] for place in range(30)]
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "all.txt").write_text("\n\n".join("\n".join(lines) for lines in documents))
    train, test = (open_examples(tmp_path / "text", split=split, **SMALL) for split in ("train", "test"))
    for opened, wanted in ((train, [p for p in range(30) if p % 10 != 9]), (test, [9, 19, 29])):
        assert [document[0].split()[0] for document in opened._texts.read()] == [f"word{p}" for p in wanted]


def test_numbers_are_no_prose(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "cloud.txt").write_text("0.5 1.5 2.5\n" * 9)
    assert not is_examples(tmp_path)
    (tmp_path / "train" / "cloud.txt").write_text("")
    assert not is_examples(tmp_path)


def test_sentences_end_before_a_capital() -> None:
    assert sentences('He came. "So what?" Dr. e. g. 3.5 m. Then') == [
        "He came.",
        '"So what?',
        "Dr. e. g. 3.5 m.",
        "Then",
    ]


@fuzzed(60)
@given(content=st.binary(max_size=200))
def test_any_file_is_plain_text_or_refused_in_a_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "train").mkdir(exist_ok=True)
    put(tmp_path / "train" / "a.txt", b"Some words of prose. " + content)
    try:
        opened = open_examples(tmp_path, split="train", vocabulary_size=100, sequence_length=16)
        batch = opened.batch(range(len(opened)))
    except InputError as error:
        assert str(tmp_path) in str(error) and "\n" not in str(error)
        return
    assert int(batch.inputs["words"].max()) < opened.facts["vocabulary_size"]
