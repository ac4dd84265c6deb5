"""Text data sets, networks and losses fit each other by the names that they give things: read, built, judged."""

import inspect
import random
from pathlib import Path

import pytest
import torch

from sparsepipe.data.examples import ExampleDataset
from sparsepipe.data.examples.opening import open_examples
from sparsepipe.networks.losses import Tally, open_loss
from sparsepipe.networks.texts.bert import bert
from sparsepipe.networks.texts.gnmt import gnmt

WORDS = "the a red blue old house car tree is was here there and big small we they see had".split()


def sentences(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(4, 9))) + "." for _ in range(count)]


def told(examples: ExampleDataset, names: inspect.Signature) -> dict:
    return {name: examples.facts[name] for name in examples.facts if name in names.parameters}


def learned(network: torch.nn.Module, examples: ExampleDataset, steps: int) -> list[dict[str, float]]:
    """Return the reports before and after some steps on one minibatch."""
    loss = open_loss(examples.loss, facts=examples.facts)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    batch, reports = examples.batch(range(8)), []
    for step in range(steps + 1):
        value, outcome = loss(network(**batch.inputs), batch.target, samples=len(batch), detailed=True)
        if step in (0, steps):
            tally = Tally(loss)
            tally.add(outcome)
            reports.append(tally.report())
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    return reports


def test_translations_train_a_gnmt(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    lines = sentences(60, seed=0)
    for split, part in (("train", lines[:50]), ("test", lines[50:])):
        (tmp_path / f"{split}.en").write_text("\n".join(part) + "\n")
        (tmp_path / f"{split}.xx").write_text("\n".join(line.upper() for line in part) + "\n")
    options = {"source_language": "en", "target_language": "xx", "vocabulary_size": 120, "cache": "off"}
    examples = open_examples(tmp_path, split="train", **options)
    torch.manual_seed(0)
    facts = told(examples, inspect.signature(gnmt))
    assert {"source_vocabulary_size", "target_vocabulary_size"} <= facts.keys()
    network = gnmt(**facts, hidden=16, num_layers=2, dropout=0.0, spread=0.3)
    before, after = learned(network, examples, steps=30)
    assert after["loss"] < before["loss"] and after["accuracy"] > before["accuracy"]
    assert before["perplexity"] > after["perplexity"] > 1


def test_translations_are_decoded_and_scored(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    pytest.importorskip("sacrebleu")
    from sparsepipe.networks.losses.texts import bleu, bleu_of_copies

    lines = sentences(60, seed=1)
    for language in ("en", "xx"):  # a language that is the other one
        (tmp_path / f"train.{language}").write_text("\n".join(lines[:50]) + "\n")
        (tmp_path / f"test.{language}").write_text("\n".join(lines[50:]) + "\n")
    options = {"source_language": "en", "target_language": "xx", "vocabulary_size": 120, "cache": "off"}
    examples = open_examples(tmp_path, split="test", **options)
    options = {"vocabulary": examples, "most_sentences": 10}
    assert bleu_of_copies(examples, source_vocabulary=examples, **options)["bleu"] == pytest.approx(100)
    torch.manual_seed(0)
    network = gnmt(**told(examples, inspect.signature(gnmt)), hidden=8, num_layers=2)
    assert bleu(network, examples, **options)["bleu"] < 20


def test_plain_texts_train_a_bert(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    documents = ["\n".join(sentences(12, seed)) for seed in range(20)]
    (tmp_path / "pages.txt").write_text("\n\n".join(documents) + "\n")
    examples = open_examples(tmp_path, split="train", vocabulary_size=120, sequence_length=32, cache="off")
    torch.manual_seed(0)
    facts = told(examples, inspect.signature(bert))
    assert {"vocabulary_size", "sequence_length"} <= facts.keys()
    network = bert(**facts, hidden=16, num_layers=1, num_heads=2, dropout=0.0)
    before, after = learned(network, examples, steps=30)
    assert after["loss"] < before["loss"] and after["perplexity"] < before["perplexity"]
    assert {"accuracy", "sentence_accuracy"} <= after.keys()
