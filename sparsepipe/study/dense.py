"""PipeDream's tasks in a size for two cores: images, translation, masked words. Which network learns what, and how."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..data import fetch, find
from ..data.examples import open_examples
from ..errors import InputError
from ..runtime.config import RunConfig
from ..views.markup import TIE
from ..views.plots.table import ONE_PROCESS
from ..views.tables import from_to
from .cached_runs import digest
from .learning import most_frequent_share

_DIGITS = "sparsepipe.study.digit_images:digits"
_AT_ONCE = 64  # samples that are counted
_RULES = {"sgd": "SGD", "adam": "Adam"}  # optimizers of the tasks, as people write them
_FAR = 1.5  # times as fast as predicted, or as slow: more than having the machine alone explains


@dataclass(frozen=True)
class Task:
    """A network, a data set, and settings under which the one learns the other."""

    name: str
    model: str
    data: str
    batch_size: int
    model_args: Mapping[str, Any] = field(default_factory=dict)
    data_args: Mapping[str, Any] = field(default_factory=dict)
    learning: Mapping[str, Any] = field(default_factory=dict)  # further settings of a run

    @property
    def told(self) -> str:
        """Network and optimizer, for the note of a figure."""
        rule = _RULES[self.learning.get("optimizer", "sgd")]
        rate = f"learning rate{TIE}{self.learning['learning_rate']:g}"
        return f"{self.name}: {self.model} on {self.data}, {rule}, {rate}"

    @property
    def workload(self) -> dict[str, Any]:
        """Arguments of `profile_model` in addition to the model and the data."""
        return {"batch_size": self.batch_size, "model_args": dict(self.model_args), "data_args": dict(self.data_args)}

    def config(self, *, seed: int, **settings: Any) -> RunConfig:
        """The settings of a run, one thread a process: a core is a device here."""
        return RunConfig(
            self.model,
            self.data,
            batch_size=self.batch_size,
            threads=1,
            seed=seed,
            model_args=_json(self.model_args),
            data_args=_json(self.data_args),
            **self.learning,
            **settings,
        )

    def profile_path(self, root: Path, *, seed: int, beside: int) -> Path:
        """Path of the profile measured with so many other processes."""
        settings = [self.data, self.workload, seed, beside]
        return root / "work" / "profiles" / f"{self.model}-{digest(settings)}.json"

    def commonest_share(self) -> float:
        """The `most_frequent_share` of the classes or words that are validated."""
        held = open_examples(self.data, split="test", **self.data_args)
        firsts = range(0, len(held), _AT_ONCE)
        targets = (held.batch(range(first, min(first + _AT_ONCE, len(held)))).target for first in firsts)
        return most_frequent_share(target["words"] if isinstance(target, Mapping) else target for target in targets)


TASKS = {
    task.name: task
    for task in (
        Task(
            "images",
            "mnist-convnet",
            "mnist-5k",
            batch_size=32,
            # Without momentum: it carries on what a gradient that is an update late (2bw) gets wrong.
            learning={"learning_rate": 0.1, "momentum": 0.0, "learning_rate_schedule": "cosine"},
        ),
        Task(
            "translation",
            "gnmt-small",
            "libreoffice-help-en-de",
            batch_size=32,
            data_args={"vocabulary_size": 1000, "sequence_length": 20},
            learning={"optimizer": "adam", "learning_rate": 0.003, "bleu_sentences": 32},
        ),
        Task(
            "masked words",
            "bert-small",
            "wikipedia-pages",
            batch_size=32,
            model_args={"dropout": 0.0},  # few minibatches do not learn by heart
            data_args={"vocabulary_size": 2000, "sequence_length": 32},
            learning={"optimizer": "adam", "learning_rate": 0.001, "warmup_minibatches": 50},
        ),
    )
}


def usable(names: Iterable[str]) -> list[Task]:
    """The tasks of these names whose data are here or can be fetched now; a line says which is left out, and why.

    Images are those of scikit-learn where MNIST's is not available. Raises InputError for an unknown name.
    """
    usable_tasks = []
    for name in names:
        if name not in TASKS:
            raise InputError("task.unknown", f"unknown task {name!r}, expected one of {', '.join(TASKS)}", name=name)
        task = TASKS[name]
        try:
            _at_hand(task.data)
            usable_tasks.append(task)
        except InputError as error:
            instead = name == "images"
            print(f"{name}: {'8 x 8 digits instead' if instead else 'left out'}, {error}", flush=True)
            usable_tasks += [replace(task, data=_DIGITS)] if instead else []
    return usable_tasks


def _at_hand(data: str) -> Path:
    try:
        return find(data)
    except InputError:
        return fetch(data)


def _json(args: Mapping[str, Any]) -> str | None:
    return json.dumps(dict(args)) if args else None


def scores(rows: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    """Values of another metric of the validations, such as "bleu", by epoch; [] if there are none."""
    values = [(row.get("validation") or {}).get(name) for row in rows]
    return [value for value in values if value is not None]


def bleu_text(found: Sequence[float]) -> str:
    """Say in a sentence which BLEU, from 0 to 100, translations of several runs have; empty of none."""
    if not found:
        return ""
    text = from_to(min(found), max(found), ".1f")
    if text == "0.0":
        return "The BLEU of translations is 0 in every run: none has learned to translate so far."
    return f"The BLEU of translations is {text}."


def kept_text(kept: Mapping[tuple[str, str], float]) -> str:
    """Say which share of what is predicted runs have, by (task, strategy), and of which tasks all are far off."""
    text = f"Measured throughput is {from_to(min(kept.values()), max(kept.values()), '.0%')} of what was predicted."
    alone = {task: share for (task, strategy), share in kept.items() if strategy == ONE_PROCESS}
    far = [task for task, share in alone.items() if not 1 / _FAR <= share <= _FAR]
    if far:
        text += f" Of {' and of '.join(far)} {ONE_PROCESS} is far from its prediction, too: this machine's own pace "
        text += "was another while the profile was measured."
    return text
