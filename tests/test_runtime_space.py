"""Runs whose ranks share each scene: losses, weights and validations of one process; what cannot share is refused."""

from dataclasses import replace

import pytest
import torch
from runtime_jobs import Job, plan_of, run_jobs, settings, shapes

from sparsepipe.data import make_shapes


def shared(model, num_ranks, **options):
    plan = plan_of(model, [tuple(range(num_ranks))], **options)
    return replace(plan, stages=(replace(plan.stages[0], sharding="space"),))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("space")
    data = shapes(folder)
    unet, vgg = "minkunet14a-narrow", "minkvgg11bn-narrow"
    config = settings(data, model=unet, validate=True, momentum=0.9, clip_norm=1.0)
    jobs = [
        Job("one", plan_of(unet, [(0,)]), config),
        Job("two", shared(unet, 2), config),
        Job("step", plan_of(unet, [(0,)], schedule="gpipe", num_microbatches=2), config),
        Job("step-two", shared(unet, 2, schedule="gpipe", num_microbatches=2, recompute=True), config),
        Job("vgg", plan_of(vgg, [(0,)]), replace(config, model=vgg)),
        Job("vgg-two", shared(vgg, 2, shares={0: (2, 1)}), replace(config, model=vgg)),
    ]
    return run_jobs(folder, jobs)


@pytest.mark.parametrize("pair", [("one", "two"), ("step", "step-two"), ("vgg", "vgg-two")])
def test_ranks_that_share_scenes_train_as_one(runs, pair):
    one, two = (runs[name] for name in pair)
    torch.testing.assert_close(torch.tensor(two.losses), torch.tensor(one.losses), rtol=2e-4, atol=1e-5)
    for kind in ("weight", "buffer"):
        expected = one.tensors(kind)
        for name, tensor in two.tensors(kind).items():
            error = float((tensor.double() - expected[name].double()).abs().max())
            assert error <= 2e-3 * max(float(expected[name].double().abs().max()), 1e-2), name
    (before,), (after,) = one.rows("epoch"), two.rows("epoch")
    for name in ("samples", "counted"):
        assert after["validation"][name] == before["validation"][name]
    assert after["validation"]["loss"] == pytest.approx(before["validation"]["loss"], rel=1e-3)
    assert after["train"]["samples"] == before["train"]["samples"]
