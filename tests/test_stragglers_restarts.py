"""What a kill costs a simulated plan of one pipeline, by closed forms: a restart, and what was trained again."""

import json
from collections import Counter

import pytest
from coded import mentions, raises
from command_line import sparsepipe
from test_simulator import pipeline

from sparsepipe import simulate
from sparsepipe.planning.forecast import forecast
from sparsepipe.planning.replaying import replay, what_if
from sparsepipe.values.stragglers import Stragglers

COUNT, GONE = 12, 20.0


def seconds(count: int) -> float:
    """Of two stages under 1f1b, forwards of 1 s, backwards of 2 s: the second is busy from 1 s on, the first ends."""
    return 3.0 * count + 3.0


@pytest.mark.parametrize("epoch", [None, 12, 4, 5])
@pytest.mark.parametrize(("rank", "at"), [(1, 0), (1, 3), (0, 3), (0, 9), (1, 11)])
def test_all_ranks_train_again_from_the_last_checkpoint(rank, at, epoch):
    plan, profile, cluster = pipeline([1.0, 1.0], [2.0, 2.0])
    kill = Stragglers.parse(f"kill:rank={rank},at={at}")
    found = simulate(
        plan, profile, cluster, [1] * COUNT, stragglers=kill, restart_seconds=GONE, epoch_minibatches=epoch
    )
    every = epoch or COUNT
    epochs = [min(every, COUNT - first) for first in range(0, COUNT, every)]
    whole, within = divmod(at, every)
    # The second stage begins its forward k at 1 + 3 k; the first runs two ahead, then begins one after each backward.
    before = sum(map(seconds, epochs[:whole]))
    died = before + (1 + 3 * within if rank else 3 * within if within > 1 else within)
    restart = found.facts["restart"]
    assert (restart.rank, restart.minibatch, restart.first_minibatch) == (rank, at, whole * every)
    assert restart.killed_at_seconds == pytest.approx(died)
    assert restart.lost_seconds == pytest.approx(died - before + GONE)
    assert found.makespan == pytest.approx(died + GONE + sum(map(seconds, epochs[whole:])))
    assert not [s for s in found.spans if s.start < died + GONE and s.end > died], "nobody is at work meanwhile"
    ends = Counter(s.minibatch for s in found.spans if (s.stage, s.kind) == (0, "backward") and s.start > died)
    assert ends == Counter(range(whole * every, COUNT)), "each once after the last checkpoint"


def test_who_lives_on_is_not_killed_and_others_draw_as_before():
    plan, profile, cluster = pipeline([1.0, 1.0], [2.0, 2.0])
    twice = Stragglers.parse("kill:rank=1,at=3;kill:rank=0,at=9;jitter:p=0.5,seconds=2")
    found = forecast(plan, profile, cluster, [1] * COUNT, stragglers=twice, restart_seconds=GONE)
    assert found.restart is not None and found.restart.minibatch == 3
    calm = forecast(plan, profile, cluster, [1] * COUNT, stragglers=twice.without_kills())
    assert calm.restart is None and calm.minibatches_per_second == found.minibatches_per_second
    assert found.trace.makespan == pytest.approx(calm.trace.makespan + found.restart.lost_seconds)
    parts = found.bubble
    total = parts.imbalance + parts.dependency + parts.communication + parts.restart
    assert total == pytest.approx(found.trace.bubble_fraction)
    assert parts.restart == pytest.approx(GONE / found.trace.makespan)
    with raises("number.malformed", "restart_seconds"):
        simulate(plan, profile, cluster, [1], stragglers=twice, restart_seconds=-1.0)
    with raises("number.below_least", "minibatches", "of an epoch"):
        simulate(plan, profile, cluster, [1], stragglers=twice, epoch_minibatches=0)


def test_the_command_says_what_a_kill_costs(tmp_path):
    plan, profile, _ = pipeline([1.0, 1.0], [2.0, 2.0])
    machine = ("--profile", profile.save(tmp_path / "profile.json"), "--devices", 2, "--minibatches", COUNT)
    words = ("simulate", plan.save(tmp_path / "plan.json"), *machine)
    kill = ("--straggler", "kill:rank=1,at=9", "--restart-seconds", 8, "--epoch-minibatches", 5)
    code, out, errors = sparsepipe(*words, *kill, "--json")
    assert code == 0 and not errors
    told = json.loads(out)
    assert told["restart"]["first_minibatch"] == 5 and told["restart"]["lost_seconds"] == pytest.approx(13 + 8)
    assert told["makespan_seconds"] == pytest.approx(18 + 13 + 8 + 18 + 9)
    code, out, _ = sparsepipe(*words, *kill)
    assert code == 0 and mentions(out, "rank 1", "31 s", "8 s", "minibatch 5")
    alone = {("--restart-seconds", 8): "option.of_killing", ("--epoch-minibatches", 5): "option.of_replanning"}
    for more, error in alone.items():
        code, _, errors = sparsepipe(*words, *more)
        assert code == 2 and len(errors) == 1 and f"[{error}]" in errors[0]


@pytest.mark.parametrize(("epoch", "steps"), [(None, 1), (4, 3)])
def test_of_what_was_trained_again_a_replay_takes_the_last_time(epoch, steps):
    """The steps are those of a run that nobody was killed in: each minibatch counts once."""
    plan, profile, cluster = pipeline([1.0, 1.0], [2.0, 2.0])
    given = {"stragglers": Stragglers.parse("kill:rank=1,at=6"), "restart_seconds": GONE, "epoch_minibatches": epoch}
    found = simulate(plan, profile, cluster, [1] * COUNT, **given)
    replayed = replay(found)
    assert [step.measured_seconds for step in replayed.steps] == pytest.approx([seconds(COUNT // steps)] * steps)
    assert replayed.largest_error < 1e-9
    computed = Counter((s.name, s.minibatch) for s in replayed.trace.spans if s.kind in ("forward", "backward"))
    assert set(computed.values()) == {1} and len(computed) == 4 * COUNT
    assert what_if(found).slowdown == pytest.approx(
        what_if(simulate(plan, profile, cluster, [1] * COUNT)).slowdown, 0.2
    )
