"""torch.distributed.pipelining's action lists are the oracle of the schedules that it has, too.

It has no asynchronous ones, and for `zero-bubble` only that of interleaved stages: ours with one stage a rank is timed,
as stages are unlike, so it is its step that is held against torch's.
"""

from functools import cache
from importlib import import_module
from typing import Any

import pytest

from sparsepipe import Action, Plan, Stage
from sparsepipe.values.schedule import Op, actions
from sparsepipe.values.schedule_rules import SCHEDULE_RULES


@cache
def torch_schedules() -> Any:
    """torch's module, which brings its compiler: not for whoever only collects tests, and once for all of this file."""
    return import_module("torch.distributed.pipelining.schedules")


class _Stage:
    """What a schedule asks of a stage before anything runs: where it stands among how many."""

    def __init__(self, stage: int, num_stages: int, size: int) -> None:
        self.stage_index, self.num_stages, self.group_size, self.group_rank = stage, num_stages, size, 0
        self.is_first, self.is_last, self.has_backward = stage == 0, stage == num_stages - 1, True
        self.stage_index_to_group_rank = {k: k % size for k in range(num_stages)}
        self.submod = None


def torchs(name: str, size: int, per_rank: int, count: int) -> dict[int, list[str]]:
    """The compute actions of each rank, as torch writes them: "0F3"."""
    kind = torch_schedules().get_schedule_class(name)
    own = [_Stage(k * size, size * per_rank, size) for k in range(per_rank)]
    if issubclass(kind, torch_schedules().PipelineScheduleMulti):
        lists = kind(own, count).pipeline_order
    else:
        lists = kind(own[0], count)._get_pipeline_order()
    return {rank: [str(part) for todo in lists[rank] for part in _computed(todo)] for rank in range(size)}


def _computed(action):
    """An action that computes, or the two that torch lets overlap."""
    if action is None or action.computation_type == getattr(torch_schedules()._ComputationType, "REDUCE_GRAD", None):
        return ()
    return action.sub_actions or (action,)


def ours(schedule: str, size: int, per_rank: int, count: int, steps: int = 1) -> dict[int, list[str]]:
    rules = SCHEDULE_RULES[schedule]
    stages = tuple(Stage((f"l{k}",), (rules.position(k, size),)) for k in range(size * per_rank))
    plan = Plan(stages, schedule, num_microbatches=count)
    lists = actions(plan, steps * count)
    return {rank: [str(action) for action in lists[rank] if action.op is not Op.UPDATE] for rank in range(size)}


ZBV = [(size, 2, count) for size in (1, 2, 3, 4, 6) for count in (1, 2, 3, 4, 7, 8, 11, 16)]


@pytest.mark.parametrize(("size", "per_rank", "count"), ZBV)
def test_zbv(size, per_rank, count):
    assert ours("zbv", size, per_rank, count) == torchs("ZBVZeroBubble", size, per_rank, count)


GROUPS = [
    (1, 2, 3),
    (2, 2, 2),
    (2, 2, 4),
    (2, 3, 6),
    (3, 2, 6),
    (4, 2, 8),
    (4, 2, 10),
    (4, 3, 4),
    (4, 2, 3),
    (4, 4, 16),
]


@pytest.mark.parametrize(("size", "per_rank", "count"), [*GROUPS, (2, 2, 7), (1, 1, 3), (3, 1, 4)])
def test_looped_bfs(size, per_rank, count):
    assert ours("looped-bfs", size, per_rank, count) == torchs("LoopedBFS", size, per_rank, count)


@pytest.mark.parametrize(("size", "per_rank", "count"), GROUPS)
def test_interleaved_zero_bubble(size, per_rank, count):
    assert ours("interleaved-zero-bubble", size, per_rank, count) == torchs(
        "InterleavedZeroBubble", size, per_rank, count
    )


@pytest.mark.parametrize(("size", "count"), [(1, 2), (1, 5), (2, 4), (2, 5), (3, 6), (3, 9), (4, 8), (4, 11), (6, 13)])
def test_dualpipe_v(size, count):
    assert ours("dualpipe-v", size, 2, count) == torchs("DualPipeV", size, 2, count)


SMALL = [(1, 3), (2, 2), (2, 5), (3, 3), (4, 4), (4, 11)]


@pytest.mark.parametrize(("size", "count"), SMALL)
def test_gpipe(size, count):
    assert ours("gpipe", size, 1, count) == torchs("GPipe", size, 1, count)


@pytest.mark.parametrize(("size", "count"), SMALL)
def test_1f1b(size, count):
    """Torch's list of the last rank, which it runs no step by, counts forwards from 1: F1 to Fn of n minibatches."""
    found, expected = ours("1f1b-flush", size, 1, count), torchs("1F1B", size, 1, count)
    for m in range(count):
        expected[size - 1][2 * m] = f"{size - 1}F{m}"
    assert found == expected


@pytest.mark.parametrize(("size", "per_rank", "count"), [one for one in GROUPS if one[2] % one[0] == 0])
def test_interleaved(size, per_rank, count):
    """Torch makes a round's groups longer where minibatches are no multiple of the ranks; here the last is shorter."""
    assert ours("1f1b-flush", size, per_rank, count) == torchs("Interleaved1F1B", size, per_rank, count)


@pytest.mark.parametrize(("size", "count"), [(1, 3), (2, 2), (3, 3), (3, 6), (4, 4), (4, 8)])
def test_zero_bubble_takes_no_longer(size, count):
    """Equal stages: F, I and W of one second each, B of two."""
    theirs = torchs("InterleavedZeroBubble", size, 1, count)
    assert seconds(ours("zero-bubble", size, 1, count), size) <= seconds(theirs, size)


def seconds(lists: dict[int, list[str]], num_stages: int) -> int:
    """When the last of the actions ends, each begun as soon as its rank is free and its inputs are there."""
    todo = {rank: [Action.parse(name) for name in names] for rank, names in lists.items()}
    free, ends = dict.fromkeys(todo, 0), {("F", -1, m): 0 for m in range(100)}
    while any(todo.values()):
        for rank, (stage, op, m) in [(rank, own[0]) for rank, own in todo.items() if own]:
            kind = {"I": "B"}.get(op, op)
            before = (kind, stage - 1 if op == "F" else stage + 1, m)
            if op == "W" or (kind == "B" and stage == num_stages - 1):
                before = ("F", stage, m)
            if before in ends:
                free[rank] = max(free[rank], ends[before]) + (2 if op == "B" else 1)
                ends[kind, stage, m] = free[rank]
                todo[rank].pop(0)
    return max(free.values())
