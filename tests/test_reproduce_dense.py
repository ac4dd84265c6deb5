"""The tasks of figure 10: their data are found, or a line says what is done without them."""

from types import SimpleNamespace

import torch
from coded import mentions, raises

from sparsepipe.data import IGNORED
from sparsepipe.data.examples import open_examples
from sparsepipe.errors import InputError
from sparsepipe.networks import MODULE_NETWORKS
from sparsepipe.networks.traced.building import build_module
from sparsepipe.study import dense
from sparsepipe.study.dense import TASKS, bleu_text, kept_text, usable
from sparsepipe.views.plots.theme import TIE


def test_what_cannot_be_had_is_left_out_and_images_are_those_of_scikit_learn(monkeypatch, capsys):
    def nowhere(name):
        raise InputError("dataset.not_found", f"{name}: not here")

    monkeypatch.setattr(dense, "find", nowhere)
    monkeypatch.setattr(dense, "fetch", nowhere)
    (images,) = usable(TASKS)
    told = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in told] == ["images", "translation", "masked words"]
    examples = open_examples(images.data, split="train")
    module = build_module(images.model, {}, examples.facts, seed=0)
    assert module(examples.batch(range(3)).inputs).shape == (3, 10)
    assert (len(examples), len(open_examples(images.data, split="test"))) == (1437, 360)
    with raises("task.unknown", "images, translation, masked words", name="speech"):
        usable(["speech"])


def test_the_most_frequent_answer_is_counted_over_what_is_validated(monkeypatch):
    """Of padding, IGNORED, nothing counts: 3 of 5 words are the word 7. Masked words stand in a dict."""
    words = torch.tensor([[7, 7, 1], [7, 2, IGNORED]])

    class Held:
        def __len__(self):
            return len(words)

        def batch(self, indices):
            return SimpleNamespace(target=self.target(words[list(indices)]))

    for target in (lambda found: found, lambda found: {"words": found}):
        monkeypatch.setattr(Held, "target", staticmethod(target), raising=False)
        monkeypatch.setattr(dense, "open_examples", lambda name, **options: Held())
        assert TASKS["translation"].commonest_share() == 3 / 5


def test_their_settings_are_those_of_a_run():
    for task in TASKS.values():
        config = task.config(seed=3, minibatches=7)
        assert (config.seed, config.minibatches, config.threads) == (3, 7, 1)
        assert config.model in MODULE_NETWORKS and config.data == task.data
        optimizer = {"sgd": "SGD", "adam": "Adam"}[config.optimizer]
        rule = f"{optimizer}, learning rate{TIE}{config.learning_rate:g}"  # no line of a note ends there
        assert task.told == f"{task.name}: {task.model} on {task.data}, {rule}"


def test_translations_that_were_not_learned_are_told_in_words():
    """The answer was "BLEU of translations: 0.0 to 0.0"."""
    assert "none has learned" in bleu_text([0.0, 0.01]) and "0.0" not in bleu_text([0.0])
    assert mentions(bleu_text([1.0, 12.34]), "BLEU", "1.0", "12.3") and bleu_text([]) == ""


def test_a_profile_of_another_pace_is_told():
    kept = {("images", "one process"): 0.9, ("images", "data parallel × 2"): 0.56}
    assert mentions(kept_text(kept), "56%", "90%")
    told = kept_text(kept | {("masked words", "one process"): 1.93, ("masked words", "data parallel × 2"): 2.02})
    assert mentions(told, "56%", "202%")
