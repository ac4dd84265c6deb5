"""Commands to a running job: who is listened to, when they are due, and that a run that stopped goes on as if not."""

import json
import os
import threading
from dataclasses import replace

import pytest
import torch
from coded import raises
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from processes import ENOUGH
from runtime_jobs import NORMED, PLAIN, Job, plan_of, run_jobs, shapes
from runtime_jobs import settings as quick

from sparsepipe.errors import InputError
from sparsepipe.runtime import commands
from sparsepipe.runtime.processes.ballot import Announcement
from sparsepipe.runtime.processes.process import Process
from sparsepipe.runtime.worker.control import Control, Horizon
from sparsepipe.values.graph import Layer, LayerGraph
from sparsepipe.values.plan import Plan, Stage
from sparsepipe.values.schedule import Action, Op, Program, check_runs, compile, compile_until_steady
from sparsepipe.values.schedule_rules import SCHEDULE_RULES

# --- who is listened to --------------------------------------------------------------------------------------------


def test_a_command_is_asked_for_taken_up_and_carried_out(tmp_path):
    assert commands.requested(tmp_path) is None and commands.taken(tmp_path) is None
    commands.ask(tmp_path, commands.STOP)
    assert commands.requested(tmp_path) == commands.requested(tmp_path) == "stop", "it stays until it is carried out"
    assert (tmp_path / "control").stat().st_mode & 0o077 == 0
    commands.take(tmp_path, "stop", 12)
    assert commands.requested(tmp_path) is None and commands.taken(tmp_path) == ("stop", 12)
    commands.ask(tmp_path, commands.STOP)
    commands.clear(tmp_path)
    assert commands.requested(tmp_path) is None and commands.taken(tmp_path) is None


def test_a_run_that_cannot_be_asked_is_named(tmp_path):
    with raises("command.unknown", "stop", command="dance"):
        commands.ask(tmp_path, "dance")
    with raises("command.undeliverable", "gone", "No such file or directory", command="stop"):
        commands.ask(tmp_path / "gone", "stop")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "Expecting value"),
        (b"[]", "expected an object"),
        (b"{}", "has no 'command'"),
        (b'{"command": "dance"}', "expected one of stop"),
        (b'{"command": ["stop"]}', "expected one of stop"),
        (b'{"command": "stop", "minibatch": -1}', "expected a whole number"),
        (b"\xff", "codec"),
        (b"[" * 4000, "recursion"),
        (b'{"command": "stop"}' + b" " * 70_000, "at most 65536 bytes"),
    ],
)
def test_what_is_no_command_is_put_aside_and_said(tmp_path, content, reason):
    path = tmp_path / "control/request.json"
    path.parent.mkdir()
    path.write_bytes(content)
    assert commands.requested(tmp_path) is None
    assert not path.exists() and path.with_name("request.json.refused").read_bytes() == content
    assert reason in json.loads((tmp_path / "control/refused.json").read_text())["reason"]
    commands.ask(tmp_path, "stop")
    assert commands.requested(tmp_path) == "stop", "the next one is heard"


def test_what_is_no_file_is_never_waited_for(tmp_path):
    folder = tmp_path / "control"
    folder.mkdir()
    os.mkfifo(folder / "request.json")
    assert commands.requested(tmp_path) is None and not (folder / "request.json").exists()
    (tmp_path / "elsewhere").write_text('{"command": "stop"}')
    (folder / "request.json").symlink_to(tmp_path / "elsewhere")
    assert commands.requested(tmp_path) is None, "no link is followed"
    (folder / "request.json").mkdir()
    assert commands.requested(tmp_path) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_another_user_is_not_listened_to(tmp_path):
    commands.ask(tmp_path, "stop")
    os.chown(tmp_path / "control/request.json", 12345, 12345)
    assert commands.requested(tmp_path) is None
    assert "user 12345" in json.loads((tmp_path / "control/refused.json").read_text())["reason"]


# --- when it is due ------------------------------------------------------------------------------------------------


def test_an_announcement_is_whole_wherever_it_is_seen(tmp_path):
    path = tmp_path / "announcement"
    made, seen = Announcement(path), Announcement(path, blank=False)
    found = []

    def look() -> None:
        while (announced := seen.read()) is None:
            pass
        found.append(announced)

    thread = threading.Thread(target=look)
    thread.start()
    made.make(3, 10**15)
    thread.join(timeout=ENOUGH)
    assert found == [(3, 10**15)] and made.read() == seen.read() == (3, 10**15)
    assert Announcement(path).read() is None is seen.read(), "the next attempt's rank 0 makes it blank"
    seen.close()
    made.close()
    assert not path.exists()


def begun_before(program: Program, leader: int) -> list[tuple[int, int]]:
    """For each forward of rank `leader`: the last minibatch that it has begun with it, and that any other rank can have
    begun while it has not begun that forward. A rank begins an action before it has what the action needs."""
    lists = program.actions
    place, done, begun = dict.fromkeys(lists, 0), set(), dict.fromkeys(lists, -1)
    found = []

    def run_on(until: int) -> None:
        moved = True
        while moved:
            moved = False
            for rank, todo in lists.items():
                while place[rank] < (until if rank == leader else len(todo)):
                    action = todo[place[rank]]
                    if action.op is not Op.UPDATE:
                        begun[rank] = max(begun[rank], action.minibatch)
                    if not done.issuperset(program.inputs(action)):
                        break
                    done.add(action)
                    place[rank] += 1
                    moved = True

    latest = -1
    for at, action in enumerate(lists[leader]):
        if action.op is Op.FORWARD:
            run_on(at)
            latest = max(latest, action.minibatch)
            found.append((latest, max(begun.values())))
    return found


@st.composite
def any_plan(draw) -> Plan:
    """A plan that can run, of any schedule: stages on ranks of their own, in a loop or in a V, ranks in any order."""
    schedule = draw(st.sampled_from(sorted(SCHEDULE_RULES)))
    if draw(st.booleans()):
        sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
        ranks = iter(draw(st.permutations(range(sum(sizes)))))
        groups = [tuple(next(ranks) for _ in range(size)) for size in sizes]
        shares = [tuple(draw(st.integers(1, 2)) for _ in group) for group in groups]
        warmups = [draw(st.sampled_from((None, None, 0, 3))) for _ in groups]
    else:
        size, count = draw(st.integers(1, 2)), draw(st.integers(1, 3))
        order = draw(st.permutations(range(size * count)))
        once = [tuple(order[k * size : (k + 1) * size]) for k in range(count)]
        groups = once + draw(st.sampled_from((once, once[::-1])))
        shares, warmups = [()] * len(groups), [None] * len(groups)
    stages = tuple(
        Stage((f"layer{k}",), own, share, warmup=warmup)
        for k, (own, share, warmup) in enumerate(zip(groups, shares, warmups, strict=True))
    )
    count = draw(st.sampled_from((1, 2, 4, 6)))
    plan = Plan(stages, schedule, num_microbatches=count, accumulation=draw(st.sampled_from((1, 1, 2))))
    layers = tuple(Layer(f"layer{k}") for k in range(len(stages)))
    graph = LayerGraph(layers, tuple((k, k + 1) for k in range(len(layers) - 1)))
    assume(not plan.violations(graph))
    return plan


few = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


@few
@given(any_plan(), st.integers(0, 100))
def test_no_rank_can_have_begun_what_a_command_is_due_before(plan, who):
    """By brute force: the lists of all ranks are run as far as they go without the leader's next forward."""
    try:
        program = compile(plan, 24)
        check_runs(program)
    except InputError:
        assume(False)
    leader = sorted(plan.ranks)[who % len(plan.ranks)]
    horizon = Horizon.of(compile_until_steady(plan))
    for latest, elsewhere in begun_before(program, leader):
        end = horizon.end(latest, 24)
        assert elsewhere < end or end == 24, f"{elsewhere} has begun when {leader} begins {latest}: due before {end}"


@few
@given(any_plan(), st.integers(1, 6))
def test_what_is_left_of_a_program_that_ends_early_is_the_shorter_program(plan, times):
    """Every action up to a whole update and none after, in an order that does not deadlock, with the same weights."""
    whole = Horizon.of(compile_until_steady(plan)).whole
    end, count = times * whole, (times + 2) * whole
    assume(count <= 64)
    try:
        long, short = compile(plan, count), compile(plan, end)
        check_runs(short)
    except InputError:
        assume(False)
    control = Control.__new__(Control)  # announced already: only what it leaves out is asked
    control._count, control.end = count, end
    left = {rank: [a for a in todo if control.trains(a, long)] for rank, todo in long.actions.items()}
    assert {rank: sorted(todo) for rank, todo in left.items()} == {r: sorted(t) for r, t in short.actions.items()}
    if plan.flushes:
        assert left == {rank: list(todo) for rank, todo in short.actions.items()}, "each step is done before the next"
    assert {key: long.weights[key] for key in short.weights} == short.weights
    place, done, moved = dict.fromkeys(left, 0), set(), True
    while moved:
        moved = False
        for rank, todo in left.items():
            while place[rank] < len(todo) and done.issuperset(long.inputs(todo[place[rank]])):
                done.add(todo[place[rank]])
                place[rank] += 1
                moved = True
    assert all(place[rank] == len(todo) for rank, todo in left.items()), "it deadlocks"


def _control(folder) -> tuple[Control, Program]:
    (folder / "logs").mkdir(exist_ok=True)
    plan = Plan((Stage(("a",), (0,)),), "1f1b-flush", num_microbatches=2)
    control = Control(folder, Process(0, 1, torch.device("cpu"), 60), Horizon(ahead=3, whole=2))
    control.begin(100, 20)
    return control, compile(plan, 20)


def test_a_command_is_due_at_the_first_whole_update_beyond_the_horizon(tmp_path):
    control, program = _control(tmp_path)
    done = [action for action in program.actions[0][:10] if control.trains(action, program)]
    assert done[-1].op is Op.UPDATE and control.due is None and control.end == 20
    commands.ask(tmp_path, "stop")
    control._next_look = 0.0  # a tenth of a second has passed
    done += [action for action in program.actions[0][10:] if control.trains(action, program)]
    assert control.end == 8 and Action(0, Op.UPDATE, 3) in done and Action(0, Op.UPDATE, 4) not in done
    assert max(action.minibatch for action in done if action.op is not Op.UPDATE) == 7
    assert control.due == "stop"
    control.carried_out("stop", 108)
    assert commands.taken(tmp_path) == ("stop", 108)


def test_a_command_near_the_end_is_due_where_all_meet(tmp_path):
    control, program = _control(tmp_path)
    assert all(control.trains(action, program) for action in program.actions[0][:-3])
    commands.ask(tmp_path, "stop")
    assert all(control.trains(action, program) for action in program.actions[0][-3:])
    assert control.due is None
    control.close_part()
    assert control.end == 20 and control.due == "stop"


def test_a_rank_that_was_told_too_late_says_so(tmp_path):
    control, program = _control(tmp_path)
    for action in program.actions[0][:10]:
        control.trains(action, program)
    control._announcement.make(0, 102)
    with pytest.raises(RuntimeError, match="minibatch 2"):
        for action in program.actions[0][10:]:
            control.trains(action, program)


# --- the law -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_that_stopped_goes_on_as_if_it_never_had(tmp_path):
    """To the bit with schedules that flush, wherever it stops, and under the other plan too; asked for before it
    starts, so that it is stopped at the first minibatch that can be."""
    data = shapes(tmp_path)
    config = quick(data, model=NORMED, batch_size=2, epochs=2, validate=True, checkpoint_every=0)  # 9 an epoch
    flush = {"schedule": "1f1b-flush", "num_microbatches": 2}
    one, two = plan_of(NORMED, [[0]], **flush), plan_of(NORMED, [[1], [0]], **flush)
    runs = {"one": (one, one), "two": (two, two), "switched": (two, one)}  # the plan it stops under, and goes on under
    jobs = [Job("whole", two, replace(config, checkpoint_every=1))]
    for name, (before, after) in runs.items():
        jobs += [Job(f"{name} stops", before, config, folder=name), Job(name, after, config, True, name)]
        (tmp_path / name).mkdir()
        commands.ask(tmp_path / name, "stop")
    found = run_jobs(tmp_path, jobs)
    whole = found["whole"]
    for name, (before, _) in runs.items():
        due = Horizon.of(compile_until_steady(before)).end(0, 9)
        assert 0 < due < 9 and commands.taken(tmp_path / name) == ("stop", due), "within the first epoch"
        assert commands.requested(tmp_path / name) is None
        assert [row["minibatches"] for row in found[name].rows("resume")] == [due]
        assert found[name].losses == whole.losses
        scores = [[row["validation"] for row in run.rows("epoch")] for run in (found[name], whole)]
        assert scores[0] == scores[1] and len(scores[0]) == 2


@pytest.mark.slow
def test_every_schedule_stops_and_goes_on(tmp_path):
    """What was in flight is finished, and each minibatch trained once."""
    data = shapes(tmp_path)
    config = quick(data, batch_size=1, asynchronous_checkpoints=True)  # 18 an epoch
    plans = {
        name: plan_of(PLAIN, ranks, schedule=schedule, num_microbatches=2)
        for name, schedule, ranks in (
            ("stages", "1f1b", [[0], [1]]),
            ("replicas", "1f1b", [[0, 1]]),
            ("two versions", "2bw", [[1], [0]]),
            ("interleaved", "1f1b", [[0], [1], [0], [1]]),
            ("v", "zbv", [[0], [1], [1], [0]]),
        )
    }
    jobs = []
    for name, plan in plans.items():
        (tmp_path / name).mkdir()
        commands.ask(tmp_path / name, "stop")
        jobs += [Job(f"{name} stops", plan, config, folder=name), Job(name, plan, config, True, name)]
    found = run_jobs(tmp_path, jobs)
    for name, plan in plans.items():
        assert commands.taken(tmp_path / name) == ("stop", Horizon.of(compile_until_steady(plan)).end(0, 18))
        assert len(found[name].losses) == 18
        assert [row["minibatches"] for row in found[name].rows("summary")] == [18]


@pytest.mark.slow
def test_a_run_that_ends_first_ends_as_if_it_was_not_asked(tmp_path):
    """A short epoch stops at its end, after its validation; the run's own end is no stop."""
    plan = plan_of(PLAIN, [[0], [1]], schedule="1f1b-flush", num_microbatches=2)
    config = quick(shapes(tmp_path), epochs=2, validate=True, checkpoint_every=0)  # 5 an epoch
    for name in ("stops", "ends"):
        (tmp_path / name).mkdir()
        commands.ask(tmp_path / name, "stop")
    jobs = [Job("stops", plan, config), Job("goes on", plan, config, resume=True, folder="stops")]
    found = run_jobs(tmp_path, [Job("whole", plan, config), Job("ends", plan, replace(config, epochs=1)), *jobs])
    assert commands.taken(tmp_path / "stops") == ("stop", 5) and found["goes on"].losses == found["whole"].losses
    scores = [[row["validation"] for row in found[name].rows("epoch")] for name in ("goes on", "whole", "ends")]
    assert scores[0] == scores[1] and scores[2] == scores[1][:1]
    assert commands.taken(tmp_path / "ends") is None
    assert [row["minibatches"] for row in found["ends"].rows("summary")] == [5]
