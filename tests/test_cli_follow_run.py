"""A run says how far it is within its epoch, on a terminal and in a log."""

from sparsepipe.cli import output
from sparsepipe.cli.follow_run import RunFollower


def test_a_run_says_how_far_it_is_within_the_epoch(monkeypatch, capsys):
    monkeypatch.setattr(output, "_EVERY_LOG", 0.0)
    follow = RunFollower()
    follow({"event": "start", "epoch_minibatches": 4, "minibatches": 8})
    for k in range(4):
        follow({"event": "step", "epoch": 0, "minibatch": k, "loss": 2.5, "seconds": 10.0 + k, "samples": 16})
    follow({"event": "step", "epoch": 1})  # cut short
    validation = {"accuracy": 0.456}
    follow({"event": "epoch", "epoch": 0, "train": {"loss": 2.0}, "samples_per_second": 16, "validation": validation})
    follow({"event": "step", "epoch": 1, "minibatch": 4, "loss": 1.5, "seconds": 20.0, "samples": 16})
    follow.close()
    assert capsys.readouterr().err.splitlines() == [
        "epoch 1 of 2, minibatch 1 of 4: loss 2.5000",
        "epoch 1 of 2, minibatch 2 of 4: loss 2.5000, 16.0 samples/s",
        "epoch 1 of 2, minibatch 3 of 4: loss 2.5000, 16.0 samples/s",
        "epoch 1 of 2, minibatch 4 of 4: loss 2.5000, 16.0 samples/s",
        "epoch 1: loss 2.0000, 16.0 samples/s, validation accuracy 45.6%",
        "epoch 2 of 2, minibatch 1 of 4: loss 1.5000",
    ]


def test_a_slow_run_has_a_speed_and_a_replay_no_loss(monkeypatch, capsys):
    """A replay of long minibatches said "loss 0.0000, 0 samples/s"."""
    monkeypatch.setattr(output, "_EVERY_LOG", 0.0)
    follow = RunFollower(trains=False)
    for k in range(2):
        follow({"event": "step", "epoch": 0, "minibatch": k, "loss": 0.0, "seconds": 40.0 * k, "samples": 1})
    follow({"event": "epoch", "epoch": 0, "train": {"loss": 0.0}, "samples_per_second": 0.0251})
    assert capsys.readouterr().err.splitlines() == ["epoch 1", "epoch 1: 0.0250 samples/s", "epoch 1: 0.0251 samples/s"]


def test_a_run_that_knows_no_samples_is_told_in_minibatches(monkeypatch, capsys):
    monkeypatch.setattr(output, "_EVERY_LOG", 0.0)
    follow = RunFollower(trains=False, counted="minibatches")
    for minibatch in range(2):
        row = {"epoch": 0, "minibatch": minibatch, "loss": 0.0, "seconds": 40.0 * minibatch, "samples": 1}
        follow({"event": "step", **row})
    follow({"event": "epoch", "epoch": 0, "train": {"loss": 0.0}, "minibatches_per_second": 0.0251})
    _, step, epoch = capsys.readouterr().err.splitlines()
    assert (step, epoch) == ("epoch 1: 0.0250 minibatches/s", "epoch 1: 0.0251 minibatches/s")
