"""Averages between pipelines over real sockets: what each rule's arithmetic must come to."""

import time
import zlib
from functools import partial

import pytest
import torch
from exchanging_pipelines import SIZES, TIMEOUT, Board, Trained, at_once, network, same_bits, stage
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from processes import until

from sparsepipe.runtime.replication.between_pipelines.messages import Exact, Layout
from sparsepipe.runtime.replication.between_pipelines.opening import open_averagers
from sparsepipe.runtime.replication.between_pipelines.reduction import Part, Share
from sparsepipe.values.replication import RULES
from sparsepipe.values.replication.base import Merge


def gradients_of(seed, pipeline):
    """A gradient that differs by pipeline and update, and by the weight itself."""

    def gradient(name, weight, update):
        draw = torch.Generator().manual_seed(zlib.crc32(f"{seed} {pipeline} {update} {name}".encode()))
        return weight * 0.1 + torch.randn(weight.shape, generator=draw)

    return gradient


def train(
    rule, num_pipelines, *, updates, cuts=None, seed=0, momentum=0.0, finish=True, sizes=SIZES, seconds=0.0, enough=None
):
    """Train pipelines in threads, without `finish` further until `enough(board)`. Returns them, and the board."""
    layers, weights, buffers = network(seed, sizes)
    cuts = cuts or [()] * num_pipelines
    board = Board(rule, num_pipelines, num_holders={p: len(cuts[p]) + 1 for p in range(num_pipelines)})
    trained = []
    for p in range(num_pipelines):
        of_buffers = {name: tensor + p if tensor.is_floating_point() else tensor for name, tensor in buffers.items()}
        trained.append(Trained(board, p, layers, weights, of_buffers, cuts=cuts[p], momentum=momentum))

    def step(one):
        gradient = gradients_of(seed, one.client.pipeline)
        one.step(lambda name, weight: gradient(name, weight, one.update))
        time.sleep(seconds * (1 + one.client.pipeline))

    def run(one):
        for _ in range(updates):
            step(one)
        if finish:
            one.finish()

    try:
        at_once(*(lambda one=one: run(one) for one in trained))
        if enough:
            train_on(trained, step, lambda: enough(board))
    finally:
        for one in trained:
            one.close()
    return trained, board


def train_on(trained, step, enough):
    """Let all take a step more, together, until there is enough: what a machine exchanges meanwhile is its own."""
    until(
        lambda: enough() or (at_once(*(lambda one=one: step(one) for one in trained)) and enough()), "enough averages"
    )


def by_hand(num_pipelines, *, updates, seed=0, rate=0.1, average=True):
    """The same in one thread: each pipeline's SGD, then the plain average in ascending order."""
    _, weights, _ = network(seed)
    own = [dict(weights) for _ in range(num_pipelines)]
    for update in range(updates):
        for p in range(num_pipelines):
            gradient = gradients_of(seed, p)
            own[p] = {name: torch.add(w, gradient(name, w, update), alpha=-rate) for name, w in own[p].items()}
        if average:
            mean = {name: weight * (1 / num_pipelines) for name, weight in own[0].items()}
            for one in own[1:]:
                mean = {name: weight + one[name] * (1 / num_pipelines) for name, weight in mean.items()}
            own = [dict(mean) for _ in range(num_pipelines)]
    return own


@pytest.mark.parametrize(
    "rule",
    [
        RULES["partial-reduce"](wait=10, overlap=False),
        RULES["quorum"](quorum=3, grace=10, overlap=False),
        RULES["local-sgd"](every=1, overlap=False),
    ],
    ids=lambda rule: rule.name,
)
def test_where_all_are_ready_weights_are_their_plain_average_to_the_bit(rule):
    """Under plain SGD, in ascending order of pipelines; there is no process group."""
    trained, board = train(rule, 3, updates=4, finish=False)
    (expected, *_) = by_hand(3, updates=4)
    for one in trained:
        assert same_bits(one.weights(), expected)
    assert not torch.distributed.is_initialized()
    assert {len(merge.members) for _, merge, _ in board.facts} == {3}
    assert all(facts["applied"] and facts["staleness"] == 0 for _, _, facts in board.facts)


def mean_of(weights):
    return {name: sum(one[name].double() for one in weights) / len(weights) for name in weights[0]}


def close(left, right, *, tolerance=1e-5):
    assert left.keys() == right.keys()
    for name in left:
        torch.testing.assert_close(left[name].double(), right[name].double(), rtol=tolerance, atol=tolerance)


UNLIKE_CUTS = [(1, 4), (2,), (), (1, 2, 3)]


@pytest.mark.parametrize(
    "rule",
    [
        RULES["local-sgd"](every=2, overlap=False),
        RULES["all-reduce"](),
        RULES["diloco"](every=2, overlap=False),
        RULES["diloco"](every=2, overlap=False, bits=8),
    ],
    ids=str,
)
def test_unlike_cuts_give_the_bits_of_equal_ones(rule):
    equal, _ = train(rule, 4, updates=4, cuts=[(2,)] * 4)
    unlike, _ = train(rule, 4, updates=4, cuts=UNLIKE_CUTS)
    for one, other in zip(equal, unlike, strict=True):
        assert same_bits(one.weights(), other.weights()) and same_bits(one.buffers(), other.buffers())
        assert same_bits(one.weights(), equal[0].weights())


def test_gradients_are_averaged_before_the_step():
    """Each pipeline steps with the mean, momentum and all, as one that has all their minibatches."""
    trained, board = train(RULES["all-reduce"](), 3, updates=5, momentum=0.9)
    _, weights, buffers = network(0)
    velocity = {name: torch.zeros_like(weight, dtype=torch.float64) for name, weight in weights.items()}
    expected = {name: weight.double() for name, weight in weights.items()}
    for update in range(5):
        for name in weights:
            mean = sum(gradients_of(0, p)(name, expected[name].float(), update).double() for p in range(3)) / 3
            velocity[name] = velocity[name] * 0.9 + mean
            expected[name] = expected[name] - 0.1 * velocity[name]
    for one in trained:
        close(one.weights(), expected)
        assert same_bits(one.weights(), trained[0].weights())
        found = {key: tensor for own in one.stages for key, tensor in own.tensors().items()}
        close({name: found[f"velocity:{name}"] for name in velocity}, velocity)
    updates = [facts["update"] for pipeline, _, facts in board.facts if pipeline == 1 and not facts.get("last")]
    assert updates == [0, 1, 2, 3, 4]


def test_a_weight_is_stepped_if_the_loss_of_any_pipeline_reaches_it():
    """The first weight is reached in one pipeline, in update 0 alone: momentum takes it no further. The last is reached
    in none."""
    layers, weights, _ = network(5)
    first, *others, last = sorted(weights)
    board = Board(RULES["all-reduce"](), 2)
    trained = [Trained(board, p, layers, weights, cuts=cuts, momentum=0.9) for p, cuts in enumerate([(), (2,)])]

    def gradient(one, name, weight):
        alone = name == first and one.client.pipeline == 0 and one.update == 0
        return torch.ones_like(weight) if name in others or alone else None

    try:
        at_once(*(lambda one=one: [one.step(partial(gradient, one)) for _ in range(2)] for one in trained))
        at_once(*(one.finish for one in trained))
    finally:
        for one in trained:
            one.close()
    moved = dict.fromkeys(others, 0.1 * (1 + 1.9)) | {first: 0.1 * 0.5, last: 0.0}
    for one in trained:
        close(one.weights(), {name: weight - moved[name] for name, weight in weights.items()})
        kept = {key for own in one.stages for key in own.tensors() if key.startswith("velocity:")}
        assert kept == {f"velocity:{name}" for name in (first, *others)}


def test_buffers_are_averaged_and_counts_stay_local():
    _, _, buffers = network(0)
    for rule in (RULES["local-sgd"](every=1, overlap=False), RULES["all-reduce"](), RULES["diloco"](every=1)):
        trained, _ = train(rule, 3, updates=2)
        for one in trained:
            for name, buffer in one.buffers().items():
                mean = buffers[name] + 1 if buffer.is_floating_point() else buffers[name]  # they began at +0, +1, +2
                torch.testing.assert_close(buffer, mean)


def test_an_outer_step_of_each_update_without_momentum_is_an_average():
    """H = 1, outer rate 1: equal but for rounding, 1e-6 of numbers near 1."""
    rule = RULES["diloco"](every=1, outer_rate=1.0, momentum=0.0, overlap=False)
    trained, _ = train(rule, 3, updates=4, finish=False)
    (expected, *_) = by_hand(3, updates=4)
    for one in trained:
        close(one.weights(), expected, tolerance=1e-6)
        assert same_bits(one.weights(), trained[0].weights())


def test_outer_steps_are_those_of_torch():
    """torch.optim.SGD with Nesterov momentum, given what weights changed by as a gradient."""
    rule = RULES["diloco"](every=2, outer_rate=0.7, momentum=0.9, overlap=False)
    trained, _ = train(rule, 2, updates=6, finish=False)
    _, weights, _ = network(0)
    outer = {name: weight.clone().requires_grad_() for name, weight in weights.items()}
    stepper = torch.optim.SGD(outer.values(), lr=0.7, momentum=0.9, nesterov=True)
    for first in range(0, 6, 2):
        changes = []
        for p in range(2):
            own = {name: weight.detach().clone() for name, weight in outer.items()}
            for update in (first, first + 1):
                own = {name: w - 0.1 * gradients_of(0, p)(name, w, update) for name, w in own.items()}
            changes.append(own)
        for name, weight in outer.items():
            weight.grad = sum(weight.detach() - own[name] for own in changes) / 2
        stepper.step()
    for one in trained:
        close(one.weights(), {name: weight.detach() for name, weight in outer.items()}, tolerance=2e-5)


@pytest.mark.parametrize("overlap", [False, True])
def test_pairs_preserve_the_mean(overlap):
    """Without training between them: whatever pairs meet, in whatever order, the sum stays, and they come together."""
    rule = RULES["ad-psgd"](overlap=overlap)
    layers, weights, _ = network(3)
    board = Board(rule, 4)
    begun = [{name: weight + 3 * p for name, weight in weights.items()} for p in range(4)]
    trained = [Trained(board, p, layers, begun[p], cuts=UNLIKE_CUTS[p]) for p in range(4)]

    def run(one):
        for _ in range(20):
            one.step(lambda name, weight: torch.zeros_like(weight))

    def apart():
        return max(float((one.weights()["a.w"] - mean_of(begun)["a.w"]).abs().max()) for one in trained)

    try:
        at_once(*(lambda one=one: run(one) for one in trained))
        if overlap:  # a pipeline may be through with its updates before anything has come
            train_on(trained, run, lambda: apart() < 2.0)
        assert apart() < 2.0, "they came together from up to 4.5"
        at_once(*(one.finish for one in trained))
    finally:
        for one in trained:
            one.close()
    for one in trained:
        close(one.weights(), mean_of(begun), tolerance=1e-5)
    partners = [facts for _, _, facts in board.facts if facts.get("role") == "partner"]
    assert partners and all(facts["staleness"] >= 0 for facts in partners)


@pytest.mark.parametrize("rule", ["partial-reduce", "quorum", "local-sgd", "diloco", "ad-psgd"])
def test_what_overlaps_ends_with_the_same_weights_everywhere(rule):
    trained, board = train(RULES[rule](every=1), 3, updates=12, cuts=[(1,), (3,), ()])
    for one in trained:
        assert same_bits(one.weights(), trained[0].weights())
        assert all(bool(weight.isfinite().all()) for weight in one.weights().values())
    assert any(
        facts["applied"] and len(merge.members) + (merge.partner is not None) > 1 for _, merge, facts in board.facts
    )


def test_a_correction_is_what_training_went_on_from_the_mean():
    """Overlapped, with gradients that do not depend on weights: the mean over pipelines is that of plain training."""
    layers, weights, _ = network(5)
    board = Board(RULES["local-sgd"](every=1), 3)
    trained = [Trained(board, p, layers, weights) for p in range(3)]

    def step(one):
        gradient = gradients_of(5, one.client.pipeline)
        one.step(lambda name, weight: gradient(name, torch.zeros_like(weight), one.update))

    try:
        at_once(*(lambda one=one: [step(one) for _ in range(15)] for one in trained))
        train_on(trained, step, lambda: any(facts["staleness"] for _, _, facts in board.facts))
        at_once(*(one.finish for one in trained))
    finally:
        for one in trained:
            one.close()
    made = [(p, update) for p in range(3) for update in range(trained[p].update)]
    steps = {
        name: sum(gradients_of(5, p)(name, torch.zeros_like(w), u).double() for p, u in made) / 3
        for name, w in weights.items()
    }
    close(trained[0].weights(), {name: weight - 0.1 * steps[name] for name, weight in weights.items()})


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_bits_depend_on_no_cuts(data):
    """Of networks of a few tensors of any size, none among them, and pipelines cut anywhere."""
    sizes = data.draw(st.lists(st.lists(st.integers(0, 9), max_size=3), min_size=1, max_size=5))
    num_pipelines = data.draw(st.integers(2, 4))
    everybody = (
        RULES["local-sgd"](every=1, overlap=False),
        RULES["all-reduce"](),
        RULES["diloco"](every=1, overlap=False),
    )
    rule = data.draw(st.sampled_from([*everybody, RULES["diloco"](every=2, overlap=False, bits=8)]))
    places = st.sets(st.integers(1, max(1, len(sizes) - 1)), max_size=len(sizes) - 1)
    cuts = [tuple(sorted(data.draw(places))) for _ in range(num_pipelines)]
    sizes = tuple(map(tuple, sizes))
    unlike, board = train(rule, num_pipelines, updates=2, cuts=cuts, seed=11, sizes=sizes)
    equal, _ = train(rule, num_pipelines, updates=2, seed=11, sizes=sizes)
    for one, other in zip(unlike, equal, strict=True):
        assert same_bits(one.weights(), other.weights()) and same_bits(one.buffers(), other.buffers())
        assert same_bits(one.weights(), unlike[0].weights())
    assert all(facts["applied"] for _, _, facts in board.facts)


@pytest.mark.parametrize("rule", [RULES["all-reduce"](), RULES["local-sgd"](every=1, overlap=False), RULES["quorum"]()])
def test_stages_of_one_rank_come_to_an_update_one_after_the_other(rule):
    """Interleaved, in one thread, the last stage last, while the other pipeline has all layers in one stage."""
    layers, weights, _ = network(12)
    board = Board(rule, 2, num_holders={0: 3, 1: 1})
    parts = [stage(layers[:2], weights, {}, is_last=False), stage(layers[2:3], weights, {}, is_last=False)]
    parts.append(stage(layers[3:], weights, {}))
    averagers = open_averagers(board.of(0), rule, parts, timeout=TIMEOUT)
    other = Trained(board, 1, layers, weights)

    def run():
        for update in range(5):
            for replica, averager in zip(parts, averagers, strict=True):
                gradients = [torch.ones_like(weight) for weight in replica.weights.newest.tensors.values()]
                replica.weights.update(averager.before_step(gradients, update, samples=4), 0.1)
                averager.after_step(update, samples=4)
        for averager in averagers:
            averager.finish()

    def run_other():
        for _ in range(5):
            other.step(lambda name, weight: 2 * torch.ones_like(weight))
        other.finish()

    try:
        at_once(run, run_other)
    finally:
        for one in (*averagers, other):
            one.close()
    found = {name: t.detach() for one in parts for name, t in one.weights.newest.tensors.items()}
    assert same_bits(found, other.weights())
    close(found, {name: weight - 5 * 0.15 for name, weight in weights.items()})


def replayed(board, num_pipelines, *, updates, seed=0, rate=0.1):
    """Work out again what an overlapped run came to, from what was told of its merges: who, when, in which weights."""
    _, weights, _ = network(seed)
    own, done = [dict(weights) for _ in range(num_pipelines)], [0] * num_pipelines
    contributed = {(p, update): board.merge_after(p, update) for p in range(num_pipelines) for update in range(updates)}
    told = [(p, merge, facts) for p, merge, facts in board.facts if len(merge.members) > 1]
    applied = {(p, facts["update"]): merge for p, merge, facts in told if facts["applied"]}
    snapshots = {}
    while min(done) < updates:
        before = list(done)
        for p in range(num_pipelines):
            update, gradient = done[p], gradients_of(seed, p)
            merge = applied.get((p, update))
            if update == updates or (merge and any((merge, k) not in snapshots for k in merge.members)):
                continue
            own[p] = {name: torch.add(w, gradient(name, w, update), alpha=-rate) for name, w in own[p].items()}
            for name in weights if merge else ():
                (first, share), *others = zip(merge.members, merge.weights, strict=True)
                mean = snapshots[merge, first][name] * share
                for k, share in others:
                    mean = mean + snapshots[merge, k][name] * share
                own[p][name] = own[p][name] + (mean - snapshots[merge, p][name])
            snapshots[contributed[p, update], p] = dict(own[p])
            done[p] += 1
        assert done != before, "what is told of the merges has a circle"
    return own


OVERLAPPED = [RULES["partial-reduce"](wait=0.02), RULES["quorum"](quorum=2), RULES["local-sgd"](every=2)]


@pytest.mark.parametrize("rule", OVERLAPPED, ids=lambda rule: rule.name)
def test_a_run_that_overlaps_is_replayed_to_the_bit_from_what_it_told(rule):
    late = lambda board: any(facts["staleness"] for _, merge, facts in board.facts if len(merge.members) > 1)  # noqa: E731
    trained, board = train(rule, 3, updates=25, finish=False, seconds=0.002, enough=late)
    for one, again in zip(trained, replayed(board, 3, updates=trained[0].update), strict=True):
        assert same_bits(one.weights(), again)


def test_of_a_stage_without_weights_nothing_is_reduced_however_many_have_come():
    """A last stage without weights took its own empty part for those of all, and ended a replay of two stages."""
    share = Share(Merge(0, (0, 1), (0, 0), (0.5, 0.5)), 0, Layout({}), Exact())
    for pipeline in (0, 1):
        share.take(Part(pipeline, (), torch.empty(0, dtype=torch.uint8), (0, 2)))
        assert not share.results and not share.missing
