"""Closed forms for pipelines of unlike stages, as properties of the simulator.

With τ the seconds of a stage, d those of the transfer behind it, M minibatches (the first is heteropipe's):
    forwards alone          Σ τ + Σ d + (M − 1) max(τ, d)            transfers run beside computation
    gpipe                   the same for forwards, and once more for backwards
    sequential              M (Σ τ + 2 Σ d), forward and backward of a stage together
    any asynchronous order  at least Σ τ + 2 Σ d + (M − 1) max τ of forward and backward together
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_simulator import pipeline

from sparsepipe import simulate
from sparsepipe.values.schedule_rules import SCHEDULE_RULES, WEIGHT_RULES

SECONDS = st.floats(0.01, 10.0)
ASYNCHRONOUS = sorted(
    name
    for name, rules in SCHEDULE_RULES.items()
    if not WEIGHT_RULES[rules.weights[0]].flushes and rules.stages_per_rank[0] == 1
)


@st.composite
def stages(draw):
    """Seconds of 1 to 6 stages forwards and backwards, of the transfers between them, and how many minibatches."""
    count = draw(st.integers(1, 6))
    forward, backward = (draw(st.lists(SECONDS, min_size=count, max_size=count)) for _ in range(2))
    transfer = draw(st.lists(st.just(0.0) | SECONDS, min_size=count - 1, max_size=count - 1))
    return forward, backward, transfer, draw(st.integers(1, 12))


def one_way(seconds, transfers, minibatches):
    return sum(seconds) + sum(transfers) + (minibatches - 1) * max(*seconds, *transfers, 0.0)


def run(forward, backward, transfer, minibatches, schedule, **more):
    plan, profile, cluster = pipeline(forward, backward, transfer, schedule=schedule, **more)
    return simulate(plan, profile, cluster, [1] * minibatches)


@settings(max_examples=40)
@given(stages())
def test_gpipe_takes_the_slowest_stage_or_transfer_once_more_for_each_minibatch_each_way(drawn):
    forward, backward, transfer, minibatches = drawn
    trace = run(forward, backward, transfer, minibatches, "gpipe", num_microbatches=minibatches)
    last = max(span.end for span in trace.spans if span.kind == "forward")
    assert last == pytest.approx(one_way(forward, transfer, minibatches))
    assert trace.makespan == pytest.approx(last + one_way(backward, transfer, minibatches))


@settings(max_examples=20)
@given(stages())
def test_one_minibatch_at_a_time_takes_all_of_it_each_time(drawn):
    forward, backward, transfer, minibatches = drawn
    trace = run(forward, backward, transfer, minibatches, "sequential")
    assert trace.makespan == pytest.approx(minibatches * (sum(forward) + sum(backward) + 2 * sum(transfer)))


@settings(max_examples=40)
@given(stages(), st.sampled_from(ASYNCHRONOUS))
def test_no_asynchronous_order_is_faster_than_its_slowest_stage(drawn, schedule):
    forward, backward, transfer, minibatches = drawn
    trace = run(forward, backward, transfer, minibatches, schedule)
    both = [f + b for f, b in zip(forward, backward, strict=True)]
    first = sum(both) + 2 * sum(transfer)  # of the first minibatch: there and back
    slowest = max(range(len(both)), key=lambda k: both[k])
    # The slowest stage works through all of them, behind the way to it and before the way from it.
    around = sum(forward[:slowest]) + sum(backward[:slowest]) + 2 * sum(transfer[:slowest])
    assert trace.makespan >= max(first, around + minibatches * both[slowest]) * (1 - 1e-9)
