"""Options that were dropped in silence are told in a line, each with why it has no effect."""

import pytest
from coded import mentions
from command_line import sparsepipe

from sparsepipe import Plan, Stage
from sparsepipe.cli.command import parser
from sparsepipe.cli.launches import settings_of
from sparsepipe.cli.without_effect import kind_of_data, without_effect
from sparsepipe.data import make_shapes
from sparsepipe.networks import network
from sparsepipe.runtime.workloads.resolved import resolve
from sparsepipe.values.replication import parse_rule

MODEL = "minkvgg11bn-narrow"
IDS = tuple(row.id for row in network(MODEL, num_classes=2).rows)
TWO_STAGES = Plan((Stage(IDS[:9], (0,)), Stage(IDS[9:], (1,))))
REPLICAS = Plan((Stage(IDS, (0, 1)),))


@pytest.fixture(scope="module")
def shapes(tmp_path_factory):
    return make_shapes(tmp_path_factory.mktemp("data") / "shapes", num_train=1, num_test=1, seed=0)


def told(words, data, *, plan=TWO_STAGES, model=MODEL):
    given = parser().parse(["run", "plan.json", "--model", model, "--data", str(data), *words.split()])
    return list(without_effect(given, resolve(settings_of(given)), plan))


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--epochs 3 --minibatches 4", "--epochs has no effect: --minibatches determines the end of the run"),
        ("--decay-epochs 2", "--decay-epochs has no effect: it requires --learning-rate-schedule step, exponential"),
        ("--decay-epochs 2 --learning-rate-schedule polynomial", "--decay-epochs has no effect"),
        ("--learning-rate-decay 2 --learning-rate-schedule cosine", "--learning-rate-decay has no effect"),
        ("--optimizer adam --momentum 0.5", "--momentum has no effect: it requires --optimizer sgd"),
        ("--loss-scale 8", "--loss-scale has no effect: it requires --precision float16"),
        ("--bleu-sentences 8", "--bleu-sentences has no effect: the data are not sentence pairs"),
        ("--synchronised-batch-norm", "--synchronised-batch-norm has no effect: no stage of the plan has replicas"),
        ("--validation-split train --no-validation", "--validation-split has no effect: nothing is validated"),
        ("--checkpoint-every 0 --keep-checkpoints 3", "--keep-checkpoints has no effect: no checkpoints are written"),
        ("--checkpoint-every 0 --asynchronous-checkpoints", "--asynchronous-checkpoints has no effect"),
        ("--on-lost-host wait", "--on-lost-host has no effect: without restarts"),
        ("--model-args {}", "--model-args has no effect: they apply to torch modules"),
        ("--data-args {}", "--data-args has no effect: point clouds"),
    ],
)
def test_an_option_with_nothing_to_do_is_told(words, why, shapes):
    (found,) = told(words, shapes)
    assert found.startswith(why), found


def test_what_the_plan_the_model_or_the_data_leave_nothing_to_do_is_told(shapes, tmp_path):
    (found,) = told("--compression int8", shapes, plan=REPLICAS)
    assert mentions(found, "--compression")
    together = Plan.alike(REPLICAS, 2, parse_rule("partial-reduce"))
    assert len(told("--compression int8", shapes, plan=together)) == 1
    (found,) = told("--synchronised-batch-norm", shapes, plan=REPLICAS, model="minkvgg11")
    assert mentions(found, "--synchronised-batch-norm")
    for split in ("train", "test"):
        (tmp_path / "text" / split).mkdir(parents=True)
        (tmp_path / "text" / split / "a.txt").write_text("some words")
    assert kind_of_data(str(tmp_path / "text")) == "text" and kind_of_data("own.py:words") is None
    found = told("--voxel-size 0.1 --num-points 3 --bleu-sentences 2", tmp_path / "text")
    assert [line.split()[0] for line in found] == ["--voxel-size", "--num-points", "--bleu-sentences"]
    _, _, errors = sparsepipe("data", "check", tmp_path / "text", "--voxel-size", 0.1)
    assert mentions(errors[0], "--voxel-size")


def test_what_has_an_effect_and_what_was_not_given_is_not_told(shapes):
    more = "--loss-scale 8 --precision float16 --decay-epochs 3 --learning-rate-schedule step --momentum 0.5"
    assert told(f"{more} --epochs 3 --compression int8 --voxel-size 0.1 --keep-checkpoints 2", shapes) == []
    assert told("--synchronised-batch-norm", shapes, plan=REPLICAS) == [] == told("", shapes)
    assert told("--bleu-sentences 8", "own.py:words") == [], "what it gives is not known"
