"""The law of steps: the minibatches of a step, each with what it weighs, are one minibatch of all their samples."""

import pytest
import torch
from test_runtime_modules import BERT, GNMT, PICTURES, WORDS, settings

from sparsepipe.networks.traced.building import build_module
from sparsepipe.runtime.worker.targets import TargetReader
from sparsepipe.runtime.workloads.learning import Learning
from sparsepipe.util.io.fields import json_object

STEP = range(3)


def opened(**changes) -> tuple[Learning, dict]:
    workload = Learning.open(settings(**changes))
    return workload, dict(enumerate(workload.order(0)))


def gradients(workload: Learning, indices, targets=None) -> tuple[list[torch.Tensor], object]:
    """Of the loss of these samples, by the user's module in one piece."""
    config, samples = workload.config, workload.training
    args = json_object(config.model_args, "model_args")
    module = build_module(config.model, args, samples.facts, seed=3).double()
    batch = samples.batch(indices)
    given = {k: v.double() if v.is_floating_point() else v for k, v in batch.inputs.items()}
    labels, weights = (batch.target, None) if targets is None else targets[:2]
    loss, outcome = workload.loss(module(**given), labels, samples=len(indices), weights=weights)
    found = torch.autograd.grad(loss, list(module.parameters()), allow_unused=True, materialize_grads=True)
    return list(found), outcome


@pytest.mark.parametrize("own", [GNMT, BERT], ids=["tokens", "masked words"])
def test_a_step_is_one_minibatch_of_all_its_samples(own) -> None:
    workload, batches = opened(**own)
    reader = TargetReader(workload, workload.training, batches.__getitem__, step_of=lambda m: STEP)
    parts = [gradients(workload, batches[m], reader.read(m)[0]) for m in STEP]
    counted = [outcome.counted for _, outcome in parts]
    assert len(set(counted)) > 1, "the minibatches differ in what they count"
    whole, outcome = gradients(workload, [k for m in STEP for k in batches[m]])
    assert outcome.counted == sum(counted)
    for k, tensor in enumerate(whole):
        mean = sum(found[k] for found, _ in parts) / len(STEP)
        torch.testing.assert_close(mean, tensor, rtol=1e-5, atol=1e-7)  # losses are of single precision


def test_the_parts_of_a_split_minibatch_weigh_together_as_much_as_it() -> None:
    fitting = {"memory_limit": 1e12, "fitting_sizes": '{"largest": 1, "part": 1e-9}'}  # a part for each sample
    (whole, batches), (split, _) = opened(**BERT), opened(**BERT, **fitting)
    for in_step in (None, lambda m: STEP):
        expected = TargetReader(whole, whole.training, batches.__getitem__, step_of=in_step).read(0)
        parts = TargetReader(split, split.training, batches.__getitem__, step_of=in_step).read(0)
        assert [part.samples for part in parts] == [1] * len(batches[0])
        tensors, _ = gradients(whole, batches[0], expected[0])
        each = [gradients(split, [k], part)[0] for k, part in zip(batches[0], parts, strict=True)]
        for k, tensor in enumerate(tensors):
            torch.testing.assert_close(sum(found[k] for found in each), tensor, rtol=1e-5, atol=1e-7)


def test_a_replica_weighs_its_minibatches_as_one_that_has_them_all() -> None:
    workload, batches = opened(**BERT)
    every = TargetReader(workload, workload.training, batches.__getitem__, step_of=lambda m: STEP)
    some = TargetReader(workload, workload.training, batches.__getitem__, step_of=lambda m: STEP)
    assert some.read(1)[0].weights == [every.read(m)[0] for m in STEP][1].weights


def test_what_no_target_tells_weighs_by_samples() -> None:
    workload, batches = opened(**PICTURES)
    short = {**batches, 2: batches[2][:1]}
    reader = TargetReader(workload, workload.training, short.__getitem__, step_of=lambda m: STEP)
    assert [reader.read(m)[0].weights for m in STEP] == [(9 / 7,), (9 / 7,), (3 / 7,)]
    workload, batches = opened(**WORDS)  # a loss of the user's
    reader = TargetReader(workload, workload.training, batches.__getitem__, step_of=lambda m: STEP)
    assert {reader.read(m)[0].weights for m in STEP} == {(1.0,)}


def test_a_minibatch_alone_has_no_weights() -> None:
    workload, batches = opened(**BERT)
    for step_of in (None, lambda m: range(m, m + 1)):
        reader = TargetReader(workload, workload.training, batches.__getitem__, step_of=step_of)
        assert reader.read(0)[0].weights is None


def test_steps_of_which_nothing_counts_weigh_as_they_are() -> None:
    workload, batches = opened(**{**BERT, "data_args": '{"kind": "masked", "mask": false}'})
    reader = TargetReader(workload, workload.training, batches.__getitem__, step_of=lambda m: STEP)
    assert [reader.read(m)[0].weights for m in STEP] == [(1.0, 1.0)] * 3


def test_a_reader_goes_ahead_by_its_own_share_of_a_step() -> None:
    workload, batches = opened(**BERT)
    reader = TargetReader(
        workload, workload.training, batches.__getitem__, step_of=lambda m: range(m - m % 4, m - m % 4 + 4)
    )
    assert (reader.ahead([0, 2, 4, 6]), reader.ahead(range(8)), reader.ahead([])) == (4, 6, 2)
    assert TargetReader(workload, workload.training, batches.__getitem__).ahead(range(8)) == 2
