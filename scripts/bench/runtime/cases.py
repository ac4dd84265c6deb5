"""The networks that are trained, each on minibatches of one kind that come again and again from memory."""

from collections.abc import Sequence

from .made_examples import masked_words, pictures, sentence_pairs
from .module_cases import ModuleCase
from .table_cases import Batch, TableCase

SGD = {"lr": 0.001, "momentum": 0.9, "weight_decay": 1e-4}
Case = TableCase | ModuleCase

_PICTURES = {"num_classes": 10, "in_channels": 3, "image_size": 32}
_PAIRS = {"vocabulary_size": 8000, "sequence_length": 32}
_TEXTS = {"vocabulary_size": 4000, "sequence_length": 128}

CASES: dict[str, Case] = {
    "vgg16": TableCase("vgg16", 32, images=True),
    "minkvgg16bn": TableCase("minkvgg16bn", 16),
    "minkvgg16bn-minkowski": TableCase("minkvgg16bn", 16, engine="minkowski"),
    "minkunet": TableCase("minkunet14a", 4),
    "resnet50-32": ModuleCase("resnet50-32", 8, pictures, "classes", "samples", _PICTURES),
    "gnmt-small": ModuleCase("gnmt-small", 32, sentence_pairs, "tokens", "tokens", _PAIRS),
    "bert-small": ModuleCase("bert-small", 16, masked_words, "masked-words", "tokens", _TEXTS),
}


class Repeated:
    """A data set in memory whose few minibatches come again and again, so that reading costs nobody anything."""

    split, synthetic, classes = "train", True, tuple("0123456789")

    def __init__(self, case: Case, batches: Sequence[Batch], num_minibatches: int) -> None:
        self.case, self.batches, self.num_minibatches = case, batches, num_minibatches
        self.loss, self.size_unit, self.facts = case.loss_name, case.size_unit, case.facts
        self.targets_are_labels, self.labels = case.targets_are_labels, list[int]()
        if self.targets_are_labels:
            self.labels = [int(label) for k in range(num_minibatches) for label in self.pick(k).target]

    def pick(self, minibatch: int) -> Batch:
        return self.batches[minibatch % len(self.batches)]

    def __len__(self) -> int:
        return self.case.batch_size * self.num_minibatches

    def batch(self, indices: Sequence[int], *, epoch: int = 0) -> Batch:
        return self.pick(indices[0] // self.case.batch_size)
