"""Schedules as strings, shaped like their diagram."""

from dataclasses import replace
from functools import lru_cache
from itertools import accumulate

import pytest
from coded import raises
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sparsepipe import Action, Op, Plan, Stage, actions, inputs, schedule
from sparsepipe.values.schedule import compile, compile_until_steady, round_length, warmup
from sparsepipe.values.schedule_rules import SCHEDULE_RULES


def check_runs(plan, num_minibatches, **options):
    schedule.check_runs(compile(plan, num_minibatches), **options)


def forward_versions(plan, num_minibatches):
    return compile(plan, num_minibatches).weights


def forward_actions(plan, num_minibatches):
    return compile(plan, num_minibatches).evaluation


def round_minibatches(plan, stage, index, num_minibatches):
    return compile(plan, num_minibatches).members(stage, index)


INPUT_GRADIENTS, WEIGHT_GRADIENTS = (Op.BACKWARD, Op.BACKWARD_INPUT), (Op.BACKWARD, Op.BACKWARD_WEIGHT)

steady = lru_cache(compile_until_steady)  # every stage and rank of a plan is asked for


def in_flight(plan, stage, rank):
    return steady(plan).in_flight(stage, rank)


def num_versions(plan, stage, rank):
    return steady(plan).num_versions(stage, rank)


def pipeline(*replicas, schedule="1f1b", num_microbatches=1, warmups=None) -> Plan:
    """A plan whose stage k has `replicas[k]` ranks, or ranks with the shares of a tuple."""
    stages, rank = [], 0
    for k, given_shares in enumerate(replicas):
        shares = given_shares if isinstance(given_shares, tuple) else (1,) * given_shares
        depth = warmups[k] if warmups else None
        stages.append(Stage((f"l{k}",), tuple(range(rank, rank + len(shares))), shares, warmup=depth))
        rank += len(shares)
    return Plan(tuple(stages), schedule, num_microbatches=num_microbatches)


def spell(plan, num_minibatches):
    return {rank: " ".join(map(str, todo)) for rank, todo in actions(plan, num_minibatches).items()}


def test_1f1b_two_stages():
    assert spell(pipeline(1, 1), 3) == {
        0: "0F0 0F1 0B0 0U0 0F2 0B1 0U1 0B2 0U2",
        1: "1F0 1B0 1U0 1F1 1B1 1U1 1F2 1B2 1U2",
    }


def test_1f1b_three_stages():
    assert spell(pipeline(1, 1, 1), 4) == {
        0: "0F0 0F1 0F2 0B0 0U0 0F3 0B1 0U1 0B2 0U2 0B3 0U3",
        1: "1F0 1F1 1B0 1U0 1F2 1B1 1U1 1F3 1B2 1U2 1B3 1U3",
        2: "2F0 2B0 2U0 2F1 2B1 2U1 2F2 2B2 2U2 2F3 2B3 2U3",
    }


def test_1f1b_flush_steps_of_four():
    assert spell(pipeline(1, 1, schedule="1f1b-flush", num_microbatches=4), 4) == {
        0: "0F0 0F1 0B0 0F2 0B1 0F3 0B2 0B3 0U0",
        1: "1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3 1U0",
    }


def test_gpipe_with_a_last_partial_step():
    assert spell(pipeline(1, 1, schedule="gpipe", num_microbatches=2), 3) == {
        0: "0F0 0F1 0B0 0B1 0U0 0F2 0B2 0U1",
        1: "1F0 1F1 1B0 1B1 1U0 1F2 1B2 1U1",
    }


def test_zero_bubble_fills_the_waiting_with_weight_gradients():
    """Drawn in zero_bubble.py: nobody waits for the first stage, so its backwards are whole."""
    assert spell(pipeline(1, 1, schedule="zero-bubble", num_microbatches=4), 4) == {
        0: "0F0 0F1 0B0 0F2 0B1 0F3 0B2 0B3 0U0",
        1: "1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1F3 1I3 1W2 1W3 1U0",
    }


def test_zero_bubble_holds_no_more_than_1f1b_does_in_its_first_stage():
    plan = pipeline(1, 1, 1, 1, schedule="zero-bubble", num_microbatches=8)
    assert [in_flight(plan, k, k) for k in range(4)] == [4, 4, 4, 4]


def interleaved(lap, laps, num_microbatches=1, *, replicas=1, schedule="1f1b-flush") -> Plan:
    """A plan of `lap` positions, each with `laps` stages, placed as the schedule says."""
    teams = [tuple(range(k * replicas, (k + 1) * replicas)) for k in range(lap)]
    place = SCHEDULE_RULES[schedule].position
    stages = (Stage((f"l{k}",), teams[place(k, lap)]) for k in range(lap * laps))
    return Plan(tuple(stages), schedule, num_microbatches=num_microbatches)


def test_interleaved_stages_go_lap_by_lap():
    """Narayanan et al., SC 2021, figure 4: groups of as many minibatches as ranks, the later lap's backwards first."""
    assert spell(interleaved(2, 2, 4), 4) == {
        0: "0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3 0U0 2U0",
        1: "1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3 1U0 3U0",
    }


def test_a_v_turns_round_on_the_last_rank():
    """Drawn in zbv.py and dualpipe_v.py; torch's own lists are in test_schedule_torch.py."""
    assert spell(interleaved(2, 2, 3, schedule="zbv"), 3) == {
        0: "0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 3F2 3I2 3W2 0I1 0W1 0I2 0W2 0U0 3U0",
        1: "1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1I1 2I2 1I2 1W1 2W2 1W2 1U0 2U0",
    }
    assert spell(interleaved(1, 2, 2, schedule="dualpipe-v"), 2) == {0: "0F0 1F0 0F1 1B0 1F1 0B0 1B1 0I1 0W1 0U0 1U0"}


def test_breadth_first_runs_a_stage_on_all_minibatches():
    assert spell(interleaved(2, 2, 2, schedule="looped-bfs"), 2) == {
        0: "0F0 0F1 2F0 2F1 2B1 2B0 0B1 0B0 0U0 2U0",
        1: "1F0 1F1 3F0 3F1 3B1 3B0 1B1 1B0 1U0 3U0",
    }


def test_interleaved_zero_bubble_puts_weight_gradients_off_by_the_ranks_before():
    assert spell(interleaved(2, 2, 2, schedule="interleaved-zero-bubble"), 2) == {
        0: "0F0 0F1 2F0 2F1 2I0 2W0 2I1 2W1 0I0 0W0 0I1 0W1 0U0 2U0",
        1: "1F0 1F1 3F0 3I0 3F1 3I1 3W0 1I0 3W1 1I1 1W0 1W1 1U0 3U0",
    }


def test_interleaved_stages_of_one_rank_need_nobody_else():
    assert spell(interleaved(1, 2, 2), 2) == {0: "0F0 1F0 1B0 0F1 0B0 1F1 1B1 0B1 0U0 1U0"}


FLUSHING = [name for name, rules in SCHEDULE_RULES.items() if rules.interleaves and rules.weights == ("flush",)]


def test_schedules_of_interleaved_stages_that_flush():
    assert FLUSHING == ["1f1b-flush", "interleaved-zero-bubble", "zbv", "dualpipe-v", "looped-bfs"]


@pytest.mark.parametrize("schedule", FLUSHING)
@settings(max_examples=40)
@given(st.integers(1, 5), st.integers(2, 4), st.integers(1, 3), st.integers(1, 12), st.integers(1, 25))
def test_interleaved_stages_never_wait_for_themselves(schedule, lap, laps, replicas, num_microbatches, num_minibatches):
    laps = SCHEDULE_RULES[schedule].stages_per_rank[1] or laps
    plan = interleaved(lap, laps, num_microbatches, replicas=replicas, schedule=schedule)
    check_runs(plan, num_minibatches, synchronised=num_microbatches % replicas == 0)
    lists = actions(plan, num_minibatches)
    for s, stage in enumerate(plan.stages):
        for ops in ([Op.FORWARD], INPUT_GRADIENTS, WEIGHT_GRADIENTS):
            seen = [a.minibatch for rank in stage.ranks for a in lists[rank] if a.op in ops and a.stage == s]
            assert sorted(seen) == list(range(num_minibatches))
        for rank in stage.ranks:
            own = [action for action in lists[rank] if action.stage == s]
            rounds = [action.minibatch for action in own if action.op is Op.UPDATE]
            assert rounds == list(range(-(-num_minibatches // num_microbatches)))
            held = [(a.op is Op.FORWARD) - (a.op in WEIGHT_GRADIENTS) for a in own]
            assert max(accumulate(held)) <= in_flight(plan, s, rank)


def test_interleaved_stages_without_flushes():
    """Ends of the pipeline apart, what interleaved.py shows: each rank always has work for one of its stages."""
    lists = spell(interleaved(2, 2, schedule="1f1b"), 9)
    assert "0F5 2F4 2B3 2U3 0B2 0U2 0F6 2F5 2B4 2U4 0B3 0U3" in lists[0]
    assert "1F4 3F3 3B3 3U3 1B2 1U2 1F5 3F4 3B4 3U4 1B3 1U3" in lists[1]
    assert lists[0].startswith("0F0 0F1 2F0 0F2 2F1 0F3 2B0 2U0") and lists[1].endswith("1B7 1U7 1B8 1U8")


def test_a_replica_without_a_minibatch_in_the_last_round_of_interleaved_stages_joins_its_updates():
    lists = spell(interleaved(1, 2, replicas=2, schedule="1f1b"), 3)
    assert lists == {0: "0F0 1F0 1B0 1U0 0B0 0U0 0F2 1F2 1B2 1U1 0B2 0U1", 1: "0F1 1F1 1B1 1U0 0B1 0U0 1U1 0U1"}


weights_of_laps = st.sampled_from(["stash", "vertical-sync"])


@given(st.integers(1, 4), st.integers(2, 4), st.integers(1, 3), st.integers(1, 3), st.integers(1, 25), weights_of_laps)
def test_interleaved_stages_without_flushes_keep_every_promise(lap, laps, replicas, rounds, num_minibatches, weights):
    plan = interleaved(lap, laps, replicas=replicas, schedule="1f1b")
    plan = replace(plan, accumulation=rounds, weights=weights)
    check_runs(plan, num_minibatches, synchronised=True)
    lists, uses = actions(plan, num_minibatches), forward_versions(plan, num_minibatches)
    for s, stage in enumerate(plan.stages):
        updates_of = {rank: [a for a in lists[rank] if a.op is Op.UPDATE] for rank in stage.ranks}
        assert len(set(map(tuple, updates_of.values()))) == 1  # they average: in the same order, or they would hang
        for op in (Op.FORWARD, Op.BACKWARD):
            seen = [a.minibatch for rank in stage.ranks for a in lists[rank] if a.op is op and a.stage == s]
            assert sorted(seen) == list(range(num_minibatches))
        for rank in stage.ranks:
            held: dict[int, int] = {}
            updates, most, flying = 0, num_versions(plan, s, rank), in_flight(plan, s, rank)
            assert flying <= len(plan.stages)
            for _, op, m in [action for action in lists[rank] if action.stage == s]:
                if op is Op.FORWARD:
                    held[m] = uses[s, m]
                    assert held[m] <= updates
                elif op is Op.BACKWARD:
                    del held[m]
                else:
                    assert m == updates
                    updates += 1
                assert len({updates, *held.values()}) <= most and len(held) <= flying
            assert updates == -(-num_minibatches // round_length(plan, s))


def test_sequential_keeps_one_minibatch_in_the_pipeline():
    assert spell(pipeline(1, 1, schedule="sequential"), 2) == {
        0: "0F0 0B0 0U0 0F1 0B1 0U1",
        1: "1F0 1B0 1U0 1F1 1B1 1U1",
    }


def test_replicas_2_1():
    assert spell(pipeline(2, 1), 4) == {
        0: "0F0 0F2 0B0 0U0 0B2 0U1",
        1: "0F1 0F3 0B1 0U0 0B3 0U1",
        2: "1F0 1B0 1U0 1F1 1B1 1U1 1F2 1B2 1U2 1F3 1B3 1U3",
    }


def test_replicas_1_2_in_a_last_partial_round():
    assert spell(pipeline(1, 2), 3) == {
        0: "0F0 0F1 0F2 0B0 0U0 0B1 0U1 0B2 0U2",
        1: "1F0 1B0 1U0 1F2 1B2 1U1",
        2: "1F1 1B1 1U0 1U1",
    }


def test_unequal_shares_2_1():
    assert spell(pipeline((2, 1), 1), 3) == {
        0: "0F0 0B0 0F2 0B2 0U0",
        1: "0F1 0B1 0U0",
        2: "1F0 1B0 1U0 1F1 1B1 1U1 1F2 1B2 1U2",
    }


def test_double_buffering_updates_once_a_step_and_never_drains():
    """1F1B with an update after every second backward; the replicas of 2-1 average in the same two-minibatch steps."""
    assert spell(pipeline(1, 1, schedule="2bw", num_microbatches=2), 6) == {
        0: "0F0 0F1 0B0 0F2 0B1 0U0 0F3 0B2 0F4 0B3 0U1 0F5 0B4 0B5 0U2",
        1: "1F0 1B0 1F1 1B1 1U0 1F2 1B2 1F3 1B3 1U1 1F4 1B4 1F5 1B5 1U2",
    }
    assert spell(pipeline(2, 1, schedule="2bw", num_microbatches=2), 5) == {
        0: "0F0 0F2 0B0 0U0 0F4 0B2 0U1 0B4 0U2",
        1: "0F1 0F3 0B1 0U0 0B3 0U1 0U2",
        2: "1F0 1B0 1F1 1B1 1U0 1F2 1B2 1F3 1B3 1U1 1F4 1B4 1U2",
    }


def spell_forwards(plan, num_minibatches):
    return {rank: " ".join(map(str, todo)) for rank, todo in forward_actions(plan, num_minibatches).items()}


def test_evaluation_is_the_forwards_alone_of_the_same_replicas():
    assert spell_forwards(pipeline(1, 1, schedule="gpipe", num_microbatches=2), 3) == {
        0: "0F0 0F1 0F2",
        1: "1F0 1F1 1F2",
    }
    assert spell_forwards(pipeline(2, (2, 1)), 5) == {
        0: "0F0 0F2 0F4",
        1: "0F1 0F3",
        2: "1F0 1F2 1F3",
        3: "1F1 1F4",
    }


def test_evaluation_of_interleaved_stages_goes_lap_by_lap():
    assert spell_forwards(interleaved(2, 2, 4), 5) == {
        0: "0F0 0F1 2F0 2F1 0F2 0F3 2F2 2F3 0F4 2F4",
        1: "1F0 1F1 3F0 3F1 1F2 1F3 3F2 3F3 1F4 3F4",
    }
    assert spell_forwards(interleaved(2, 2, replicas=2), 4) == {
        0: "0F0 0F2 2F0 2F2",
        1: "0F1 0F3 2F1 2F3",
        2: "1F0 1F2 3F0 3F2",
        3: "1F1 1F3 3F1 3F3",
    }


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.integers(1, 25), st.booleans())
def test_evaluation_reaches_its_end_with_no_more_between_two_stages_of_a_rank_than_a_lap(
    lap, laps, replicas, count, bent
):
    laps, schedule = (2, "zbv") if bent else (laps, "1f1b-flush")
    plan = interleaved(lap, laps, replicas=replicas, schedule=schedule)
    lists = forward_actions(plan, count)
    for s, stage in enumerate(plan.stages):
        assert sorted(a.minibatch for rank in stage.ranks for a in lists[rank] if a.stage == s) == list(range(count))
    for todo in lists.values():
        done = dict.fromkeys(range(len(plan.stages)), 0)
        for s, op, _ in todo:
            assert op is Op.FORWARD
            done[s] += 1
            later = [other for other in plan.stages_of(plan.stages[s].ranks[0]) if other > s]
            assert not later or done[s] - done[later[0]] <= lap
    place, arrived = dict.fromkeys(lists, 0), set()
    while (before := sum(place.values())) < sum(map(len, lists.values())):
        for rank, todo in lists.items():
            while place[rank] < len(todo):
                s, _, m = todo[place[rank]]
                if s > 0 and (s - 1, m) not in arrived:
                    break
                arrived.add((s, m))
                place[rank] += 1
        assert sum(place.values()) > before, "nobody waits for ever"


def test_an_imported_depth_replaces_the_computed_warm_up():
    assert spell(pipeline(1, 1, warmups=[2, 0]), 4)[0] == "0F0 0F1 0F2 0B0 0U0 0F3 0B1 0U1 0B2 0U2 0B3 0U3"


def test_warm_up_counts_later_ranks():
    # PipeDream: floor((ranks - 1 - ranks of earlier stages) / own ranks) = ceil(later ranks / own ranks) as integers go
    plan = pipeline(3, 1, 2)
    assert [warmup(plan, k, stage.ranks[0]) for k, stage in enumerate(plan.stages)] == [1, 2, 0]


def test_versions_a_rank_holds():
    assert [num_versions(pipeline(1, 1, 1, 1), k, k) for k in range(4)] == [4, 3, 2, 1]
    assert num_versions(pipeline(1, 1, schedule="gpipe", num_microbatches=4), 0, 0) == 1
    assert in_flight(pipeline(1, 1, schedule="gpipe", num_microbatches=4), 0, 0) == 4
    assert in_flight(pipeline(1, 1, 1), 0, 0) == 3


def test_two_versions_do_for_double_buffering():
    plan = pipeline(1, 1, 1, schedule="2bw", num_microbatches=4)
    assert [num_versions(plan, k, k) for k in range(3)] == [2, 2, 2]
    # Steps of 4: the first two use the initial weights, the third those of the first update, in every stage.
    assert forward_versions(plan, 16) == {(s, m): max(0, m // 4 - 1) for s in range(3) for m in range(16)}


def test_vertical_sync_uses_the_first_stages_weights_everywhere():
    plan = replace(pipeline(1, 1, 1), weights="vertical-sync")
    expected = {0: 0, 1: 0, 2: 0, 3: 1, 4: 2, 5: 3}
    assert forward_versions(plan, 6) == {(s, m): count for s in range(3) for m, count in expected.items()}
    assert [num_versions(plan, k, k) for k in range(3)] == [3, 3, 3]


def test_stashed_weights_are_the_newest_of_each_stage():
    versions = forward_versions(pipeline(1, 1), 4)
    assert versions == {(s, m): max(0, m + s - 1) for s in range(2) for m in range(4)}


def test_gradients_gather_over_rounds():
    plan = replace(pipeline(2, 1), accumulation=2)
    assert [round_length(plan, k) for k in range(2)] == [4, 2]
    assert spell(plan, 4)[2] == "1F0 1B0 1F1 1B1 1U0 1F2 1B2 1F3 1B3 1U1"
    assert spell(plan, 4)[0] == "0F0 0F2 0B0 0B2 0U0"


shares = st.integers(1, 3) | st.lists(st.integers(1, 3), min_size=1, max_size=3).map(tuple)
plans = st.builds(
    lambda replicas, schedule, count: pipeline(*replicas, schedule=schedule, num_microbatches=count),
    st.lists(shares, min_size=1, max_size=4),
    st.sampled_from(sorted(name for name, rules in SCHEDULE_RULES.items() if rules.stages_per_rank[0] == 1)),
    st.integers(1, 6),
)


@given(plans, st.integers(1, 20))
def test_every_minibatch_once_forward_then_backward_then_update(plan, num_minibatches):
    check_runs(plan, num_minibatches)
    for s, stage in enumerate(plan.stages):
        lists = {rank: actions(plan, num_minibatches)[rank] for rank in stage.ranks}
        for ops in ([Op.FORWARD], INPUT_GRADIENTS, WEIGHT_GRADIENTS):
            seen = sorted(a.minibatch for todo in lists.values() for a in todo if a.op in ops)
            assert seen == list(range(num_minibatches))
        for todo in lists.values():
            place = {action: k for k, action in enumerate(todo)}
            updates = [a for a in todo if a.op is Op.UPDATE]
            assert [u.minibatch for u in updates] == list(range(len(updates)))  # replicas agree on every round
            covered = [m for u in updates for m in round_minibatches(plan, s, u.minibatch, num_minibatches)]
            assert covered == list(range(num_minibatches))
            for action in todo:
                own = [a for a in inputs(action, plan, num_minibatches) if a in place]
                assert all(place[a] < place[action] for a in own)
                if plan.weights == "flush" and action.op is Op.FORWARD:  # no forward before the earlier step's update
                    step = action.minibatch // plan.num_microbatches
                    assert all(place[u] < place[action] for u in updates if u.minibatch < step)


@given(plans, st.integers(1, 20))
@example(pipeline((2, 2, 3), 1, schedule="2bw", num_microbatches=1), 8)  # updates that are no whole rounds of replicas
@example(pipeline((2, 1), (2, 1), (1, 2, 1), schedule="zero-bubble", num_microbatches=5), 60)  # nor are the steps
def test_no_more_in_flight_than_said(plan, num_minibatches):
    for s, stage in enumerate(plan.stages):
        for rank in stage.ranks:
            flying = most = 0
            for action in actions(plan, num_minibatches)[rank]:
                flying += (action.op is Op.FORWARD) - (action.op in WEIGHT_GRADIENTS)
                most = max(most, flying)
            assert most <= in_flight(plan, s, rank)


@given(plans, st.integers(1, 30))
def test_no_forward_meets_weights_that_are_not_there_yet_or_any_more(plan, num_minibatches):
    uses = forward_versions(plan, num_minibatches)
    for s, stage in enumerate(plan.stages):
        for rank in stage.ranks:
            updates, most = 0, num_versions(plan, s, rank)
            held: dict[int, int] = {}
            for action in actions(plan, num_minibatches)[rank]:
                if action.op is Op.FORWARD:
                    held[action.minibatch] = uses[s, action.minibatch]
                    assert held[action.minibatch] <= updates
                elif action.op in WEIGHT_GRADIENTS:
                    del held[action.minibatch]
                updates += action.op is Op.UPDATE
                assert len({updates, *held.values()}) <= most


def test_a_schedule_that_waits_for_itself_is_refused():
    # Stage 0 wants its first backward before it has sent the forward that stage 1 runs first.
    plan = pipeline(1, 1, schedule="1f1b", warmups=[0, 3])
    with raises("schedule.deadlock", "0B0", "1F1"):
        check_runs(plan, 4)


def test_an_imported_warm_up_may_deadlock_in_long_epochs_alone():
    """So a worker checks the lists of its own epochs, not a short one's in their place."""
    plan = Plan((Stage(("a",), (0, 1)), Stage(("b",), (2,), warmup=3)), "1f1b", accumulation=3)
    check_runs(plan, 8)
    with raises("schedule.deadlock"):
        check_runs(plan, 9)


def test_replicas_that_wait_for_each_other_within_a_pass_need_both_minibatches_sent():
    check_runs(pipeline(1, 2, 1), 7, synchronised=True)
    check_runs(pipeline(2, 2, schedule="zero-bubble", num_microbatches=4), 8, synchronised=True)
    with raises("schedule.deadlock", "0B0", "1F0"):  # the first stage sends one and waits for its return
        check_runs(pipeline(1, 2, schedule="sequential"), 4, synchronised=True)


def test_actions_parse_what_they_print():
    assert Action.parse("12B345") == Action(12, Op.BACKWARD, 345)
    assert str(Action.parse("1F3")) == "1F3"
    with raises("schedule.action_malformed", "1X3"):
        Action.parse("1X3")


def test_unequal_replicas_do_not_wait_for_what_earlier_stages_hold_back():
    """Shares (1, 3): rounding its warm-up up let rank 1 wait for minibatch 5 before it gave minibatch 1 back."""
    plan = pipeline(1, (1, 3), 1)
    check_runs(plan, 14)
    assert spell(plan, 6)[1] == "1F1 1B1 1U0 1F5 1B5 1U1"


def test_forwards_that_later_stages_look_ahead_to_come_before_an_update():
    """Rank 0 waits at its update for rank 2, whose backward waits for stages that want rank 0's next forward first."""
    check_runs(pipeline((1, 1, 2), 3, (4, 3)), 20)
