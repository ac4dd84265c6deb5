"""Networks of torch modules learn real data in a pipeline of two stages, with stashed weights.

That one process learns as a plain loop does is the law of test_runtime_modules.py: it has no test of minutes here.

They are trained by the product's own processes, on data that are fetched once: `sparsepipe data fetch NAME`.
"""

import json
from collections import Counter
from dataclasses import replace

import pytest

from sparsepipe.data import IGNORED, find
from sparsepipe.data.examples import open_examples
from sparsepipe.errors import InputError
from sparsepipe.launching import launch
from sparsepipe.networks.losses.texts import bleu_of_copies
from sparsepipe.runtime import RunConfig
from sparsepipe.runtime.workloads import layer_graph
from sparsepipe.runtime.workloads.resolved import resolve
from sparsepipe.study.dense import TASKS
from sparsepipe.values.plan import Plan, Stage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
STAGES = 2
PREPARED = "prepared"  # the folder of what is made of texts: it takes seconds, and serves all processes of a test


def need(name: str) -> None:
    """Skip where a data set is nowhere here: tests fetch nothing."""
    try:
        find(name)
    except InputError as error:
        pytest.skip(str(error))


def validations(folder, config: RunConfig) -> list[dict]:
    """Train a network cut into stages of as many layers, a process each; return what each validation reports."""
    config = config.replace(cache=str(folder / PREPARED))
    ids = [layer.id for layer in layer_graph(resolve(config)).layers]
    bounds = [round(k * len(ids) / STAGES) for k in range(STAGES + 1)]
    stages = (Stage(tuple(ids[a:b]), (k,)) for k, (a, b) in enumerate(zip(bounds, bounds[1:], strict=False)))
    with launch(Plan(tuple(stages), schedule="1f1b"), config, run_dir=folder / f"run-{config.seed}") as job:
        job.wait()
    return [row["validation"] for row in job.record.metrics("epoch")]


def test_digits_are_read(tmp_path):
    """MNIST's, 4,000 to learn from: an epoch of them tells 88 of 100 of the other 1,000."""
    need("mnist-5k")
    config = RunConfig("mnist-convnet", "mnist-5k", batch_size=32, learning_rate=0.05, threads=1, checkpoint_every=0)
    config = config.replace(epochs=1, learning_rate_schedule="cosine")
    found = validations(tmp_path, config)[-1]["accuracy"]
    assert found >= 0.88, found


def test_masked_words_are_found_better_than_by_the_most_frequent_one(tmp_path):
    """Of some pages of Wikipedia, in 300 subwords: BERT has learned more than how often they occur."""
    need("wikipedia-pages")
    for split, count in (("train", 30), ("test", 2)):
        (tmp_path / "pages" / split).mkdir(parents=True)
        for page in sorted((find("wikipedia-pages") / split).iterdir())[:count]:
            (tmp_path / "pages" / split / page.name).symlink_to(page)
    sizes = {"vocabulary_size": 300, "sequence_length": 16}
    task = replace(
        TASKS["masked words"],
        data=str(tmp_path / "pages"),
        data_args=sizes,
        batch_size=32,
        model_args={"dropout": 0.0, "num_layers": 2, "hidden": 64},
        learning={"optimizer": "adam", "learning_rate": 0.003, "warmup_minibatches": 20},
    )
    held = open_examples(task.data, split="test", cache=tmp_path / PREPARED, **sizes)
    words = held.batch(range(len(held))).target["words"].flatten().tolist()
    occurring = Counter(word for word in words if word != IGNORED)
    most = max(occurring.values()) / occurring.total()
    found = validations(tmp_path, task.config(seed=0, minibatches=400, checkpoint_every=0))[-1]["accuracy"]
    assert found > 1.2 * most, (found, most)


def test_translations_become_better_than_copies(tmp_path):
    """Of LibreOffice's help, cut to ten subwords: BLEU rises above that of the sources themselves."""
    need("libreoffice-help-en-de")
    options = {"sequence_length": 10, "vocabulary_size": 1000}
    config = RunConfig("gnmt-small", "libreoffice-help-en-de", data_args=json.dumps(options), batch_size=32, threads=1)
    config = config.replace(optimizer="adam", learning_rate=0.003, epochs=2)
    found = [row["bleu"] for row in validations(tmp_path, config)]
    held = open_examples("libreoffice-help-en-de", split="test", cache=tmp_path / PREPARED, **options)
    copies = bleu_of_copies(held, source_vocabulary=held, vocabulary=held, most_sentences=config.bleu_sentences)
    assert found[0] < found[-1] > copies["bleu"], (found, copies)
