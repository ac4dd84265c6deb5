"""The law of a plan that changes while it runs: training goes on as if it never had, each minibatch trained once.

What a run has after any sequence of plans is compared with a run that never moved: to the bit where sums are the same,
and where replicas add up in another order within tolerance. Schedules that do not flush drain at a move: they are
compared with runs of their own, each resumed from the checkpoint of the one before where a plan began.
"""

import gc
import json
import os
import random
import weakref
from dataclasses import replace

import pytest
import torch
from coded import raises
from processes import ENOUGH
from replan_jobs import Moves, ask_all
from runtime_jobs import NORMED, PLAIN, Job, Result, plan_of, run_jobs, settings, shapes
from test_runtime_laws import CLOSE, FULL, HALF, _has_minkowski

from sparsepipe.networks import network
from sparsepipe.records.run_progress import begin_plan, followed_plans, plan_at, went_back
from sparsepipe.runtime import commands
from sparsepipe.runtime.processes.ballot import Answer, Ballot
from sparsepipe.runtime.transport.state_transfer import packed, unpacked
from sparsepipe.runtime.worker.join import layers_of, source_of
from sparsepipe.runtime.worker.replanning import Moment, Pause, last_end, usual_gap
from sparsepipe.runtime.worker.run import run
from sparsepipe.runtime.worker.worker import Worker
from sparsepipe.values.plan import Plan

TWO = {"schedule": "1f1b-flush", "num_microbatches": 2}
FLUSHES = ("1f1b-flush", "gpipe", "zero-bubble", "looped-bfs", "interleaved-zero-bubble")
NEXT = plan_of(PLAIN, [[1], [0]], cuts=(9,), **TWO)

# --- who is asked, and who answers -----------------------------------------------------------------------------------


def test_a_plan_is_handed_over_once(tmp_path):
    told = {"predicted_gain_seconds": 3.0, "memory_bytes": (5.4, 7.0)}
    token = commands.leave(tmp_path, NEXT, reason="rank 1\nis slow", **told)
    found = commands.request(tmp_path)
    assert found == ("replan", token, "rank 1 is slow", 3.0, [5, 7]) and commands.read(tmp_path, token) == NEXT
    with raises("replan.asked_already"):
        commands.leave(tmp_path, NEXT)
    assert len(list((tmp_path / "control").glob("*.json"))) == 2, "of the second nothing is left"
    commands.take(tmp_path, commands.REPLAN, 40, plan=token)
    commands.forget(tmp_path, token)
    assert commands.taken(tmp_path) == ("replan", 40) and commands.taken_plan(tmp_path, token) == 40
    assert commands.taken_plan(tmp_path, "0" * 8) is None is commands.request(tmp_path)
    token = commands.leave(tmp_path, NEXT)
    commands.ask(tmp_path, commands.STOP)
    commands.refuse(tmp_path, "it stops", plan=token)
    assert commands.requested(tmp_path) == "stop", "what has taken the place of a request stays"
    assert commands.refused_plan(tmp_path, token) == "it stops"


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", ("replan.request_malformed", "Expecting value")),
        (b"[]", ("replan.request_malformed", "not a plan")),
        (b"[" * 10**5, ("replan.request_malformed", "recursion")),
        (b"{" + b" " * 2**24, ("replan.request_malformed", "at most")),
    ],
)
def test_a_plan_that_cannot_be_read_is_told_in_one_line(tmp_path, content, error):
    (tmp_path / "control").mkdir()
    (tmp_path / "control/plan-01234567.json").write_bytes(content)
    with raises(*error):
        commands.read(tmp_path, "01234567")


def test_a_plan_is_no_link_and_no_pipe(tmp_path):
    (tmp_path / "control").mkdir()
    path = tmp_path / "control/plan-01234567.json"
    NEXT.save(tmp_path / "elsewhere.json")
    path.symlink_to(tmp_path / "elsewhere.json")
    with raises("file.unreadable"):
        commands.read(tmp_path, "01234567")
    path.unlink()
    os.mkfifo(path)
    with raises("replan.request_malformed", "expected a file"):
        commands.read(tmp_path, "01234567")


@pytest.mark.parametrize("plan", [None, "../plan", "1234567", 7])
def test_a_request_names_a_plan_in_its_folder(tmp_path, plan):
    (tmp_path / "control").mkdir()
    (tmp_path / "control/request.json").write_text(json.dumps({"command": "replan", "plan": plan}))
    assert commands.request(tmp_path) is None
    assert "plan" in json.loads((tmp_path / "control/refused.json").read_text())["reason"]


def test_all_ranks_see_what_is_proposed_and_how_far_each_is(tmp_path):
    first, second = (Ballot(tmp_path / "ballot", 2, blank=blank) for blank in (True, False))
    assert second.proposed == 0
    first.propose(1)
    assert second.proposed == 1 and second.stands(1)
    second.answer(1, 1, Answer.CHECKED)
    assert first.answers(1) == [Answer.NONE, Answer.CHECKED]
    first.answer(0, 1, Answer.READY)
    second.answer(1, 1, Answer.FAILED)
    assert first.answers(1) == [Answer.READY, Answer.FAILED]
    first.withdraw(1)
    assert not second.stands(1) and second.proposed == 1
    first.propose(2)
    assert second.answers(2) == [Answer.NONE, Answer.NONE], "answers are to a proposal"
    first.close()
    assert not (tmp_path / "ballot").exists()


# --- what travels ----------------------------------------------------------------------------------------------------


def test_layers_come_from_a_rank_that_has_them():
    before, after = plan_of(PLAIN, [[0, 1], [2]], **TWO), plan_of(PLAIN, [[2], [1, 0]], **TWO)
    assert [source_of(0, target, before) for target in range(3)] == [0, 1, 0], "itself, where it has them"
    assert [source_of(1, target, before) for target in range(3)] == [2, 2, 2]
    assert layers_of(1, after) == layers_of(0, after) == list(after.stages[1].layers)


def test_tensors_of_any_kind_are_packed_and_unpacked():
    tensors = {
        "weight:a.kernel": torch.randn(3, 5)[:, ::2],
        "steps:a": torch.tensor(7.0),
        "buffer:b": torch.tensor([1, 2, 3]),
        "half": torch.randn(7).bfloat16(),
        "none": torch.zeros(0, 4),
        "flag": torch.tensor([True, False]),
    }
    found = unpacked(packed(tensors))
    assert list(found) == list(tensors)
    for key, tensor in tensors.items():
        assert found[key].dtype == tensor.dtype and torch.equal(found[key], tensor), key


def test_the_parts_of_a_pause_add_up():
    table = torch.zeros(7, 5, dtype=torch.float64)
    table[:, 0] = torch.tensor([1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 9.0])
    assert last_end(table) == 9.0 and usual_gap(table, 2) == 3.0 and usual_gap(table, 7) == 0.0
    moment = Moment(commands.Request("replan", "01234567", "why", 2.0), 7, 100, (110.5, 112.0, 112.25))
    row = Pause(moment, since=9.0, usual=3.0, ahead=100.0).row(17.25)
    assert row["parts"] == {"drain": 1.5, "transfer": 1.5, "reconnect": 0.25, "fill": 2.0}
    assert row["pause_seconds"] == 5.25 == sum(row["parts"].values()) and row["predicted_gain_seconds"] == 2.0
    assert (row["minibatch"], row["moved_bytes"], row["reason"]) == (7, 100, "why")


@pytest.mark.parametrize(
    ("usual", "parts"),
    [
        (3.0, [1.5, 1.5, 0.25, 0.0]),  # what is usual is taken out of the last parts first
        (4.0, [1.5, 0.75, 0.0, 0.0]),
        (6.0, [0.25, 0.0, 0.0, 0.0]),
        (7.0, [0.0, 0.0, 0.0, 0.0]),
    ],
)
def test_a_pause_is_never_below_zero(usual, parts):
    """The first update came no later than usual: told negative once, as if the change had given time back."""
    moment = Moment(commands.Request("replan", "01234567", "", None), 7, 100, (110.5, 112.0, 112.25))
    row = Pause(moment, since=9.0, usual=usual, ahead=100.0).row(15.25)
    assert list(row["parts"].values()) == parts and row["pause_seconds"] == sum(parts)


def test_a_run_that_goes_back_does_the_rest_again_under_its_newest_plan(tmp_path):
    first = plan_of(PLAIN, [[0], [1]], **TWO)
    went_back(tmp_path, 3)
    begin_plan(tmp_path, first, 0)
    begin_plan(tmp_path, NEXT, 40)
    went_back(tmp_path, 40)
    assert followed_plans(tmp_path) == ((0, first), (40, NEXT))
    went_back(tmp_path, 36)
    assert followed_plans(tmp_path) == ((0, first), (36, NEXT))
    assert plan_at(followed_plans(tmp_path), 35) == first and plan_at(followed_plans(tmp_path), 36) == NEXT


# --- the law ---------------------------------------------------------------------------------------------------------


def drawn(chance: random.Random, model: str, count: int, *, replicate: bool) -> Plan:
    """Draw a plan of `count` ranks that steps after two minibatches: cuts, order of ranks, replicas, schedule."""
    ranks = chance.sample(range(count), count)
    bounds = sorted(chance.sample(range(1, count), chance.randrange(count))) if replicate else range(1, count)
    own = [ranks[start:stop] for start, stop in zip([0, *bounds], [*bounds, count], strict=True)]
    schedule, laps, shares = chance.choice(FLUSHES), 1, {}
    if schedule in ("looped-bfs", "interleaved-zero-bubble"):
        laps = 2
    elif replicate:
        shares = {k: tuple(chance.choice((1, 1, 2)) for _ in stage) for k, stage in enumerate(own)}
    num_rows = len(network(model, num_classes=3).rows)
    cuts = sorted(chance.sample(range(1, num_rows), laps * len(own) - 1))
    return plan_of(model, own * laps, cuts=cuts, shares=shares, schedule=schedule, num_microbatches=2)


# name → (model, ranks, replicas too, settings, plans after the first)
FLUSHED: dict[str, tuple] = {
    "2 ranks, sockets, batch norm": (NORMED, 2, False, {**FULL, "batch_size": 2, "shared_memory": False}, 2),
    "4 ranks": (PLAIN, 4, True, {"optimizer": "lamb", "learning_rate": 1e-3}, 1),
    "minkowski": (NORMED, 2, False, {**FULL, "engine": "minkowski"}, 1),
}
# name → (settings, plans): some leave ranks out, the first among them, and others take them back
LEFT_OUT: dict[str, tuple[dict, list[Plan]]] = {
    "left out, loss scale": (
        {**HALF, "validate": True},
        [plan_of(PLAIN, ranks, **TWO) for ranks in ([[0], [1], [2]], [[1]], [[2], [0]])],
    ),
    "left out, clipped": (
        {"clip_norm": 0.3, "shared_memory": False},
        [plan_of(PLAIN, ranks, **TWO) for ranks in ([[0, 1], [2]], [[1, 2]], [[1], [2, 0]])],
    ),
    "in a V, none left out": (
        {},
        [
            plan_of(PLAIN, ranks, schedule=schedule, num_microbatches=2)
            for schedule, ranks in (("zbv", [[0], [1], [1], [0]]), ("sequential", [[1], [0]]))
        ],
    ),
}
DRAINED: dict[str, list[Plan]] = {
    "stash": [
        plan_of(PLAIN, ranks, cuts=cuts, schedule="1f1b", shares=shares)
        for ranks, cuts, shares in (([[0], [1]], (5,), None), ([[0, 1]], (), {0: (2, 1)}))
    ],
    "two versions": [plan_of(PLAIN, [[0], [1]], cuts=(cut,), schedule="2bw", num_microbatches=2) for cut in (5, 9)],
}


@pytest.fixture(scope="module")
def moved(tmp_path_factory) -> dict[str, tuple[Moves, Result]]:
    """All runs that move, in one set of processes."""
    folder = tmp_path_factory.mktemp("moved")
    data = shapes(folder)
    runs = {}
    for number, (name, (model, count, replicate, changes, times)) in enumerate(FLUSHED.items()):
        if "minkowski" in name and not _has_minkowski():
            continue
        chance = random.Random(number)
        first, *plans = (drawn(chance, model, count, replicate=replicate) for _ in range(times + 1))
        if "minkowski" in name:  # which orders voxels anew at a cut: it stays where it is, and the ranks change
            first, *plans = (plan_of(model, own, cuts=(20,), **TWO) for own in ([[0], [1]], [[1], [0]]))
        config = settings(data, **{"batch_size": 1, "model": model, **changes}, epochs=10_000, checkpoint_every=0)
        runs[name] = Moves(Job(name.replace(" ", "-"), first, config), plans)
    for name, (changes, (first, *plans)) in LEFT_OUT.items():
        config = settings(data, **{"batch_size": 1, **changes}, epochs=10_000, checkpoint_every=0)
        runs[name] = Moves(Job(name.replace(" ", "-"), first, config), plans)
    for name, (first, *plans) in DRAINED.items():
        config = settings(data, batch_size=1, epochs=10_000, checkpoint_every=0)
        runs[name] = Moves(Job(name.replace(" ", "-"), first, config), plans)
    # Those of most ranks first: no process waits for others that are still in a job without it.
    runs = dict(sorted(runs.items(), key=lambda item: -len(item[1].job.plan.ranks)))
    asking = ask_all(folder, list(runs.values()))
    found = run_jobs(folder, [run.job for run in runs.values()], limit=240)
    asking.join(timeout=ENOUGH)
    assert not any(run.problem for run in runs.values()), [run.problem for run in runs.values()]
    return {name: (run, found[run.job.name]) for name, run in runs.items()}


@pytest.fixture(scope="module")
def still(tmp_path_factory, moved) -> dict[str, Result]:
    """What each run is compared with: one process, or runs that each end where the next plan began; in one set."""
    jobs = []
    for name, (moves, _) in moved.items():
        config = replace(moves.job.config, checkpoint_every=1)
        if name in DRAINED:
            parts = zip(DRAINED[name], [*moves.minibatches, moves.done], strict=True)
            jobs += [
                Job(name if end == moves.done else f"{name}-{k}", plan, replace(config, minibatches=end), k > 0, name)
                for k, (plan, end) in enumerate(parts)
            ]
        else:
            alone = moves.job.plan if "minkowski" in name else plan_of(config.model, [[0]], **TWO)
            jobs.append(Job(name, alone, replace(config, minibatches=moves.done)))
    jobs.sort(key=lambda job: -len(job.plan.ranks))  # no process waits for others that are in a job without it
    return run_jobs(tmp_path_factory.mktemp("still"), jobs)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [*FLUSHED, *LEFT_OUT])
def test_a_run_that_moved_trained_as_one_that_did_not(moved, still, name):
    """Whatever the plans in between: in one process, never cut, with the same minibatches."""
    if name not in moved:
        pytest.skip("MinkowskiEngine is not installed")
    run, found = moved[name]
    exact = not FLUSHED[name][2] if name in FLUSHED else "clip_norm" not in LEFT_OUT[name][0]
    _same(found, still[name], exact=exact)
    assert len(run.minibatches) == len(run.plans) and len(found.rows("replan")) == len(run.plans)
    assert [row["minibatch"] for row in found.rows("replan")] == run.minibatches


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", DRAINED)
def test_a_schedule_that_does_not_flush_drains_and_goes_on(moved, still, name):
    """As runs that each end where the next plan began, and are resumed under it: to the bit."""
    _same(moved[name][1], still[name], exact=True)


@pytest.mark.slow
def test_what_the_old_plan_held_is_let_go_at_once(tmp_path, monkeypatch):
    """Not when Python looks for garbage: weights of every plan there was would be held until then."""
    held: list[weakref.ref] = []
    let_go, train, alive = Worker.let_go, Worker.train, []

    def note(worker: Worker) -> None:
        held.extend(weakref.ref(replica.runner.module) for replica in worker.replicas.values())
        let_go(worker)

    def look(worker: Worker, done: int):
        alive.append(sum(one() is not None for one in held))
        return train(worker, done)

    monkeypatch.setattr(Worker, "let_go", note)
    monkeypatch.setattr(Worker, "train", look)
    first, second = (plan_of(PLAIN, [[0], [0]], cuts=(cut,), **TWO) for cut in (5, 9))
    config = settings(shapes(tmp_path), batch_size=1, epochs=10_000, checkpoint_every=0)
    moves = Moves(Job("run", first, config), [second, first])
    asking = ask_all(tmp_path, [moves])
    gc.disable()
    try:
        run(tmp_path / "run", first, config)
    finally:
        gc.enable()
    asking.join(timeout=ENOUGH)
    assert not moves.problem and len(held) == 4 and alive == [0, 0, 0]


def _same(found: Result, expected: Result, *, exact: bool) -> None:
    """Assert that two runs had the same losses and left the same state."""
    if exact:
        assert found.losses == expected.losses
    else:
        torch.testing.assert_close(torch.tensor(found.losses), torch.tensor(expected.losses), **CLOSE)
    kinds = ("weight", "velocity", "mean", "square", "steps", "buffer")
    for kind in kinds:
        theirs = expected.tensors(kind)
        ours = found.tensors(kind)
        assert ours.keys() == theirs.keys()
        for key, tensor in theirs.items():
            if exact:
                assert torch.equal(ours[key], tensor), (kind, key)
            else:
                torch.testing.assert_close(ours[key], tensor, **CLOSE, msg=lambda text, key=key: f"{key}: {text}")
    assert expected.tensors("weight")
