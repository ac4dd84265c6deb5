"""Averages between pipelines where members die, join, say what they should not, or are several replicas of a stage."""

import json
import socket
import threading
import time
from contextlib import suppress

import pytest
import torch
from exchanging_pipelines import TIMEOUT, Board, Together, Trained, at_once, network, same_bits, stage
from processes import until
from test_runtime_between_pipelines import close, gradients_of, mean_of

from sparsepipe.runtime.pipelines.base import Holder
from sparsepipe.runtime.replication.between_pipelines.opening import open_averagers
from sparsepipe.runtime.replication.between_pipelines.parameter_server import Server, Store
from sparsepipe.runtime.replication.between_pipelines.state import fetch_state
from sparsepipe.runtime.wire.frames import lengths
from sparsepipe.runtime.wire.handshake import call
from sparsepipe.values.replication import RULES
from sparsepipe.values.replication.base import SERVER


def still(name, weight):
    return torch.zeros_like(weight)


def away(weights, count):
    """Weights of several pipelines, each some way from the others'."""
    return [{name: weight + p for name, weight in weights.items()} for p in range(count)]


# --- members that die ------------------------------------------------------------------------------------------------


def test_who_dies_in_the_middle_leaves_the_others_whole():
    """Its merge comes to nothing for the others, at once, and they average with each other from then on."""
    layers, weights, _ = network(1)
    begun = away(weights, 3)
    board = Board(RULES["local-sgd"](every=1, overlap=False), 3)
    trained = [Trained(board, p, layers, begun[p], cuts=[(2,), (), (1, 3)][p]) for p in range(3)]
    killed: list[float] = []

    def die():
        until(lambda: board.merge_after(0, 0), "the merge of all three")
        time.sleep(0.5)  # the others wait for its part
        board.kill(2)
        killed.append(time.monotonic())
        trained[2].close()

    try:
        board.of(2).contribute(0, samples=4)  # and no rank of it ever sends its part
        at_once(*(lambda one=one: one.step(still) for one in trained[:2]), die)
        assert time.monotonic() - killed[0] < TIMEOUT / 2, "at once, not when time is up"
        for p in range(2):
            assert same_bits(trained[p].weights(), begun[p])
        at_once(*(lambda one=one: one.step(still) for one in trained[:2]))
        for one in trained[:2]:
            close(one.weights(), mean_of(begun[:2]))
    finally:
        for one in trained:
            one.close()
    applied = [(merge.members, facts["applied"]) for _, merge, facts in board.facts]
    assert set(applied) == {((0, 1, 2), False), ((0, 1), True)}
    assert all(facts["why"] for _, _, facts in board.facts if not facts["applied"])


def test_overlapped_nobody_waits_for_the_dead():
    layers, weights, _ = network(1)
    board = Board(RULES["partial-reduce"](wait=5), 3)
    trained = [Trained(board, p, layers, weights) for p in range(3)]
    board.of(2).contribute(0, samples=4)
    try:
        at_once(*(lambda one=one: one.step(still) for one in trained[:2]))
        start = time.monotonic()
        for _ in range(5):
            at_once(*(lambda one=one: one.step(still) for one in trained[:2]))
        assert time.monotonic() - start < 4, "they train on while the merge with the third hangs"
        board.kill(2)
        trained[2].close()
        until = time.monotonic() + TIMEOUT
        while not any(merge.members == (0, 1) and f["applied"] for _, merge, f in board.facts):
            assert time.monotonic() < until
            at_once(*(lambda one=one: one.step(still) for one in trained[:2]))
            time.sleep(0.01)
        at_once(*(one.finish for one in trained[:2]))
    finally:
        for one in trained:
            one.close()
    for one in trained[:2]:
        close(one.weights(), weights, tolerance=1e-6)


def test_a_dead_partner_of_a_pair_costs_nothing():
    layers, weights, _ = network(2)
    board = Board(RULES["ad-psgd"](), 2)
    first, second = (Trained(board, p, layers, weights) for p in range(2))
    second.close()  # the coordinator does not know yet
    try:
        failed = lambda: any(facts["applied"] is False for _, _, facts in board.facts)  # noqa: E731
        until(lambda: first.step(still) or failed(), "an average that came to nothing")
    finally:
        first.close()
    assert same_bits(first.weights(), weights)


# --- who joins -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cuts", [(), (2,), (1, 4)])
def test_who_joins_gets_the_state_of_one_update(cuts):
    """Weights, momentum and buffers of a pipeline in training, cut elsewhere, are all of the same of its updates."""
    layers, weights, buffers = network(4)
    board = Board(RULES["local-sgd"](every=10**6), 2)
    one, expected, stop = Trained(board, 0, layers, weights, buffers, cuts=cuts, momentum=0.9), [], threading.Event()
    gradient = gradients_of(4, 0)

    def run():
        while not stop.is_set():
            one.step(lambda name, weight: gradient(name, weight, one.update))
            found = {key: tensor.clone() for own in one.stages for key, tensor in own.tensors().items()}
            expected.append(found)

    def fetch():
        try:
            return [fetch_state(board.of(1), part, timeout=TIMEOUT) for part in (layers[:3], layers[3:])]
        finally:
            stop.set()

    try:
        _, fetched = at_once(run, fetch)
    finally:
        one.close()
    for part, found in zip((layers[:3], layers[3:]), fetched, strict=True):
        names = {key for key in expected[0] if key.split(":")[1].split(".")[0] in part}
        assert names <= found.keys()
        assert any(all(torch.equal(found[key], state[key]) for key in names) for state in expected)
    taken = stage(layers[:3], weights, buffers, momentum=0.9)
    taken.load_tensors(fetched[0])
    assert torch.equal(taken.tensors()["velocity:b.w"], fetched[0]["velocity:b.w"])
    assert torch.equal(taken.tensors()["buffer:a.running_mean"], fetched[0]["buffer:a.running_mean"])


def test_who_joins_where_nobody_lives_gets_nothing():
    assert fetch_state(Board(RULES["quorum"](), 2).of(1), ["a"], timeout=1.0) is None


def test_who_joins_takes_the_outer_parameters_and_who_missed_a_step_too():
    """All have the same outer parameters after the next merge, though the third's outer step number one was missed."""
    layers, weights, _ = network(6)
    rule = RULES["diloco"](every=1, overlap=False)
    board = Board(rule, 3)
    first, second = (Trained(board, p, layers, weights, cuts=[(2,), ()][p]) for p in range(2))
    board.kill(2)
    gradients = [gradients_of(6, p) for p in range(3)]

    def step(one):
        one.step(lambda name, weight: gradients[one.client.pipeline](name, weight, one.update))

    late = None
    try:
        for _ in range(3):
            at_once(lambda: step(first), lambda: step(second))
        late = Trained(board, 2, layers, weights, cuts=(1, 3))  # with weights and outer parameters of the beginning
        board.revive(2)
        at_once(*(lambda one=one: step(one) for one in (first, second, late)))
        states = [
            dict(pair for averager in one.averagers for pair in averager.state().items()) for one in (first, late)
        ]
        assert same_bits(*states) and states[0].keys() >= {"outer:a.w", "outer_velocity:e.w"}
        assert same_bits(first.weights(), late.weights()) and same_bits(first.weights(), second.weights())
    finally:
        for one in filter(None, (first, second, late)):
            one.close()


# --- a parameter server ----------------------------------------------------------------------------------------------


def serve(board):
    server = Server("127.0.0.1", {}, {"push": (store := Store())}, timeout=TIMEOUT)
    board._holders[SERVER] = [Holder(SERVER, 0, (), server.address)]
    return server, store


@pytest.mark.parametrize("overlap", [False, True])
def test_changes_are_added_up_at_the_server_and_none_is_lost(overlap):
    """Gradients that do not depend on weights: the server ends where plain SGD with all of them would."""
    layers, weights, buffers = network(7)
    board = Board(RULES["wsp"](every=2, overlap=overlap), 3)
    server, store = serve(board)
    trained = [Trained(board, p, layers, weights, buffers, cuts=[(2,), (), (1, 4)][p]) for p in range(3)]

    def run(one):
        p = one.client.pipeline
        step = lambda: one.step(lambda name, w: gradients_of(7, p)(name, torch.zeros_like(w), one.update))  # noqa: E731
        for _ in range(12):
            step()
        if overlap:  # all may be made before anything has come
            until(lambda: waves(p) or step(), f"a wave that pipeline {p} takes")
        one.finish()

    def waves(pipeline):
        return sum(p == pipeline and f["applied"] and not f.get("last") for p, _, f in board.facts)

    try:
        at_once(*(lambda one=one: run(one) for one in trained))
    finally:
        for one in trained:
            one.close()
        server.close()
    assert overlap or list(map(waves, range(3))) == [12, 6, 18], "6 of each stage"
    for name, weight in weights.items():
        assert same_bits(trained[0].weights(), trained[1].weights())
        changes = (gradients_of(7, p)(name, torch.zeros_like(weight), u).double() for p in range(3) for u in range(12))
        expected, found = weight - 0.1 * sum(changes) / 3, store._tensors[f"weight:{name}"].double()
        if not overlap:  # else a wave that came while another was under way is in the next, and the last in none
            torch.testing.assert_close(found, expected.reshape(-1), rtol=1e-4, atol=1e-5)


def test_a_server_that_was_started_again_gets_what_failed_before():
    layers, weights, _ = network(8)
    board = Board(RULES["wsp"](every=1, overlap=False, scale=1), 2)
    server, _ = serve(board)
    one = Trained(board, 0, layers, weights)
    try:
        one.step(lambda name, weight: torch.ones_like(weight))
        server.close()
        one.step(lambda name, weight: torch.ones_like(weight))
        assert board.facts[-1][2]["applied"] is False
        server, store = serve(board)
        one.step(lambda name, weight: torch.ones_like(weight))
    finally:
        one.close()
        server.close()
    for name, weight in weights.items():
        torch.testing.assert_close(store._tensors[f"weight:{name}"], (weight - 0.3).reshape(-1), rtol=0, atol=1e-5)
    close(one.weights(), {name: weight - 0.3 for name, weight in weights.items()})


# --- 8 bits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error_feedback", [True, False])
def test_what_8_bits_lose_is_made_good_by_the_next(error_feedback):
    """One weight's change is 1000 times the others': a rounding step is more than all that these change by."""
    weights = {"a.w": torch.zeros(64)}
    gradient = torch.full((64,), 0.01)
    gradient[0] = 10.0
    rule = RULES["diloco"](every=1, outer_rate=1, momentum=0, bits=8, error_feedback=error_feedback, overlap=False)
    board = Board(rule, 2)
    trained = [Trained(board, p, ["a"], weights) for p in range(2)]
    try:
        for _ in range(100):
            at_once(*(lambda one=one: one.step(lambda name, weight: gradient) for one in trained))
    finally:
        for one in trained:
            one.close()
    expected, step = -0.1 * 100 * gradient, 0.1 * 10 / 127
    assert same_bits(trained[0].weights(), trained[1].weights())
    off = (trained[0].weights()["a.w"] - expected).abs()[1:32]  # of the share that has the large one
    assert off.max() < 4 * step if error_feedback else off.min() > 10 * step
    most = max(facts["bytes"] for _, _, facts in board.facts)
    assert most < 64 * 4 + 1000, "facts and 64 bytes"


# --- replicas of a stage, strangers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [RULES["local-sgd"](every=2), RULES["all-reduce"](), RULES["ad-psgd"]()], ids=str)
def test_all_replicas_of_a_stage_take_what_the_first_exchanges(rule):
    layers, weights, buffers = network(9)
    board = Board(rule, 2)
    together = Together(2)
    replicas = [
        stage(layers, weights, buffers, rank=rank, ranks=(1, 0), replication=together.of(rank)) for rank in range(2)
    ]
    averagers = [open_averagers(board.of(0), rule, [replica], timeout=TIMEOUT)[0] for replica in replicas]
    other = Trained(board, 1, layers, {name: weight + 1 for name, weight in weights.items()}, buffers)

    def run(rank):
        own, averager = replicas[rank], averagers[rank]
        for update in range(8):
            gradients = [torch.ones_like(weight) for weight in own.weights.newest.tensors.values()]
            own.weights.update(averager.before_step(gradients, update, samples=2), 0.1)
            averager.after_step(update, samples=2)
        together.meet()
        averager.finish()

    def run_other():
        for _ in range(8):
            other.step(lambda name, weight: 2 * torch.ones_like(weight))
        other.finish()

    try:
        at_once(lambda: run(0), lambda: run(1), run_other)
    finally:
        for one in (*averagers, other):
            one.close()
    first, second = ({name: t.detach() for name, t in one.weights.newest.tensors.items()} for one in replicas)
    assert same_bits(first, second)
    if rule.name == "all-reduce":
        close(first, {name: weight - 8 * 0.15 for name, weight in weights.items()})
    else:
        assert same_bits(first, other.weights())


def test_strangers_at_the_port_change_nothing():
    layers, weights, _ = network(10)
    board = Board(RULES["local-sgd"](every=1, overlap=False), 2)
    trained = [Trained(board, p, layers, away(weights, 2)[p]) for p in range(2)]
    address = board.of(0).holders(1)[0].address
    secret = bytes.fromhex(address.secret)

    def message(facts, payload=b"", length=None):
        said = facts if isinstance(facts, bytes) else json.dumps(facts).encode()
        length = len(payload) if length is None else length
        return lengths(len(said), length) + said + payload

    part = {"what": "reduce", "merge": 0, "pipeline": 0, "version": -1, "index": 0, "count": 2, "names": ["weight:a.w"]}
    strangers = [b"GET / HTTP/1.1\r\n\r\n", b"x" * 72 + message(part)]
    said = [
        b"\0" * 64,
        message(b"{", b""),
        message([1]),
        message({"what": "shutdown"}),
        message(part, length=2**62),
        message(part | {"names": ["weight:zzz"]}),
        message(part | {"names": [["weight:a.w"]]}),
        message(part | {"count": 0}),
        message({"what": "state", "update": "soon"}),
        lengths(2**31, 0),
    ]
    connections = []
    try:
        for words in strangers:
            connections.append(socket.create_connection(address[:2]))
            connections[-1].sendall(words)
        for words in said:
            connections.append(call(address.host, address.port, secret, (0, 0, 0), deadline=time.monotonic() + TIMEOUT))
            connections[-1].sendall(words)
        at_once(*(lambda one=one: one.step(still) for one in trained))
        for one in trained:
            close(one.weights(), mean_of(away(weights, 2)))
        for connection in connections[1:]:
            connection.settimeout(TIMEOUT)
            with suppress(ConnectionResetError):
                while connection.recv(2**16):
                    pass  # the tensors' names, to those with the secret; then it is shut
    finally:
        for connection in connections:
            connection.close()
        for one in trained:
            one.close()
