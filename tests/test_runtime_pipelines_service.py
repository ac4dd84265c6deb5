"""The coordinator's process and its clients: real processes and sockets, kills, strangers."""

import json
import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import count
from pathlib import Path

import pytest
from pipeline_jobs import pipelines_of
from processes import ENOUGH, until

from sparsepipe.errors import InputError
from sparsepipe.launching.local import coordination
from sparsepipe.launching.local.coordination import Coordination, GoneAttempts
from sparsepipe.records.record_files import read_metrics
from sparsepipe.runtime import commands
from sparsepipe.runtime.failures import DeadlinePassed, PacketMismatch, PeerLost
from sparsepipe.runtime.pipelines.base import Address, Holder, Kind
from sparsepipe.runtime.pipelines.client import connect
from sparsepipe.runtime.pipelines.journal import complete_record, keep_nothing, keep_rows, recorded_pace
from sparsepipe.runtime.pipelines.messages import encoded
from sparsepipe.runtime.pipelines.state import Request, RunOfPipelines, RunState
from sparsepipe.runtime.wire.frames import MOST_BYTES, lengths
from sparsepipe.runtime.wire.handshake import NAME_BYTES, PROOF_BYTES, opening
from sparsepipe.runtime.wire.messages import COORDINATOR, ListenerAddress, Requests
from sparsepipe.util.io.files import read_rows, write_atomic, write_rows

TIMEOUT = 60.0
REPLY_BYTES = NAME_BYTES + PROOF_BYTES


def start(run_dir, *, pipelines=2, rule=None, launch="0", resume=None):
    command = [sys.executable, "-m", "sparsepipe.runtime.pipelines.service", "--run-dir", str(run_dir)]
    command += ["--pipelines", str(pipelines), "--launch", launch]
    command += ["--replication", json.dumps({"rule": rule})] if rule else []
    command += ["--resume", str(resume)] if resume else []
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


@contextmanager
def serving(run_dir, **options):
    run_dir.mkdir(exist_ok=True)
    with start(run_dir, **options) as process:
        try:
            yield process
        finally:
            process.terminate()
            process.wait(timeout=ENOUGH)


def begun(client, *, whole=1, epoch=6, total=12, num_holders=1):
    client.begin(whole=whole, epoch_minibatches=epoch, total_minibatches=total, num_holders=num_holders)
    client.register(Holder(client.pipeline, 0, ("layer",), Address("127.0.0.1", 1, "ab")))
    return client


@contextmanager
def connected(run_dir, pipelines, **told):
    """The first ranks of so many pipelines, which have said what is to be trained."""
    with ExitStack() as stack:
        clients = [connect(run_dir, pipeline=k, rank=0, attempt=0, timeout=TIMEOUT) for k in range(pipelines)]
        for client in clients:
            stack.enter_context(closing(client))
            begun(client, **told)
        yield clients


def train(client, *, pause=0.0, on_done=lambda: None):
    """Do a pipeline's tasks to the end; return what it was told to do and has trained, as (epoch, minibatch)."""
    kinds, trained, number = [], [], 0
    while True:
        task = client.next_task(number)
        kinds.append(task.kind)
        if task.kind is Kind.END:
            return kinds, trained
        if task.kind is Kind.TRAIN:
            for place in range(task.most):
                minibatch = client.take_minibatch(number, place)
                if minibatch is None:
                    break
                client.done(number, place, {"loss": 1.0, "samples": 2})
                trained.append((task.epoch, minibatch))
                time.sleep(pause)
                on_done()
        if task.kind in (Kind.CLOSE_EPOCH, Kind.CLOSE_RUN):
            client.closed(task.epoch, {"validation": {"loss": 0.5, "samples": 1}})
        if task.kind is Kind.FINISH:
            client.merged(client.last_merge(0), {"stage": 0, "last": True})
        number += 1


def together(*clients, **options):
    """Let several pipelines train at once; return the results of `train`."""
    found = [None] * len(clients)

    def one(place):
        found[place] = train(clients[place], **options)

    threads = [threading.Thread(target=one, args=(place,)) for place in range(len(clients))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=ENOUGH)
    return found


def test_two_pipelines_share_a_run(tmp_path) -> None:
    with serving(tmp_path / "run", rule="partial-reduce"), connected(tmp_path / "run", 2) as clients:
        assert clients[0].num_pipelines == 2
        holder = Holder(1, 0, ("layer0", "layer1"), Address("127.0.0.1", 4711, "ab"))
        (known,) = clients[0].holders(1)
        clients[1].register(holder)
        assert clients[0].holders(1) == (known, holder)
        results = together(*clients)
        clients[0].tell("summary", {"epochs": 2})
    trained = sorted(pair for _, pairs in results for pair in pairs)
    assert trained == [(epoch, minibatch) for epoch in range(2) for minibatch in range(6)]
    kinds = [kind for told, _ in results for kind in told]
    assert kinds.count(Kind.CLOSE_EPOCH) == kinds.count(Kind.CLOSE_RUN) == 1 and kinds.count(Kind.FINISH) == 2
    steps = read_rows(tmp_path / "run" / "metrics.jsonl")
    assert sorted(row["minibatch"] for row in steps if row["event"] == "step") == list(range(12))
    (summary,) = (row for row in steps if row["event"] == "summary")
    assert summary["minibatches"] == 12 and summary["replication"]["rule"] == "partial-reduce"
    assert sum(pipeline["minibatches"] for pipeline in summary["replication"]["pipelines"]) == 12
    for name in ("coordinator.json", "coordinator.jsonl"):
        assert (tmp_path / "run" / "control" / name).stat().st_mode & 0o777 == 0o600


@pytest.mark.slow
def test_a_coordinator_that_is_killed_is_replaced_while_pipelines_go_on(tmp_path) -> None:
    """SIGKILL at random moments, again and again: each minibatch is done once, and the record has each once."""
    run_dir, draw, total = tmp_path / "run", random.Random(7), 120
    run_dir.mkdir()
    current, kills, over = [start(run_dir, pipelines=3, rule="partial-reduce")], 0, threading.Event()

    def kill_and_replace():
        nonlocal kills
        while not over.wait(draw.uniform(0.0, 0.5)):
            before = ListenerAddress.read(run_dir / COORDINATOR)
            current[0].send_signal(signal.SIGKILL)
            current[0].communicate()
            current[0] = start(run_dir, pipelines=3, rule="partial-reduce")
            kills += 1
            while ListenerAddress.read(run_dir / COORDINATOR) == before and not over.wait(0.05):
                pass

    with connected(run_dir, 3, epoch=40, total=total, whole=2) as clients:
        killer = threading.Thread(target=kill_and_replace)
        killer.start()
        try:
            results = together(*clients, pause=0.05)
        finally:
            over.set()
            killer.join()
            current[0].terminate()
            current[0].communicate()
    complete_record(run_dir, "0")  # as its launcher does where the last one had not caught up yet
    trained = sorted(pair for _, pairs in results for pair in pairs)
    assert trained == [(m // 40, m % 40) for m in range(total)]
    steps = [row["minibatch"] for row in read_rows(run_dir / "metrics.jsonl") if row["event"] == "step"]
    assert sorted(steps) == list(range(total))
    rows = read_rows(run_dir / "minibatches.jsonl")
    taken = [row["epoch"] * 40 + m for row in rows if row["event"] == "taken" for m in row["minibatches"]]
    assert sorted(taken) == list(range(total))
    assert [row["epoch"] for row in read_rows(run_dir / "metrics.jsonl") if row["event"] == "epoch"] == [0, 1, 2]
    assert kills >= 3


@pytest.mark.parametrize("again", [False, True], ids=["killed", "killed and just started again"])
def test_a_coordinator_that_is_killed_at_the_end_leaves_a_whole_record(tmp_path, again) -> None:
    """Its launcher writes what the journal has and the record has not, and tells another launch's from it."""
    (tmp_path / "logs").mkdir()
    plan = pipelines_of("minkunet14a", [[0]], [[0]], rule="partial-reduce")
    coordination = Coordination(tmp_path, plan, seed=0, timeout=TIMEOUT, launch="mine")
    try:
        with connected(tmp_path, 2, epoch=40, total=80) as clients:
            results = together(*clients)
            clients[0].tell("summary", {"epochs": 2})
            coordination.coordinator.kill()
            coordination.coordinator.wait(timeout=ENOUGH)
            if again:
                until(lambda: coordination.look() or coordination.coordinator.poll() is None, "another takes its place")
    finally:
        coordination.end()
    assert sorted(pair for _, pairs in results for pair in pairs) == [(m // 40, m % 40) for m in range(80)]
    written = {name: (tmp_path / name).read_bytes() for name in ("metrics.jsonl", "minibatches.jsonl", "merges.jsonl")}
    rows = read_rows(tmp_path / "metrics.jsonl")
    assert sorted(row["minibatch"] for row in rows if row["event"] == "step") == list(range(80))
    assert [row["minibatches"] for row in rows if row["event"] == "summary"] == [80]
    for launch in ("mine", "another's"):  # there is nothing left to write
        complete_record(tmp_path, launch)
        assert written == {name: (tmp_path / name).read_bytes() for name in written}


def test_a_pipeline_whose_rank_ends_is_given_up_within_a_second(tmp_path) -> None:
    run_dir = tmp_path / "run"
    code = (
        "import sys, time; from pathlib import Path; from sparsepipe.runtime.pipelines.client import connect\n"
        "c = connect(Path(sys.argv[1]), pipeline=0, rank=1, attempt=0, timeout=200)\n"
        "c.begin(whole=2, epoch_minibatches=6, total_minibatches=6, num_holders=1); c.next_task(0)\n"
        "print('in', flush=True); time.sleep(600)"
    )
    with serving(run_dir), connected(run_dir, 2, total=6, whole=2) as (first, second):
        command = [sys.executable, "-c", code, str(run_dir)]
        with ThreadPoolExecutor(1) as pool, subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as rank:
            task = pool.submit(second.next_task, 0)  # which waits until both are ready
            assert rank.stdout.readline() == "in\n"
            assert task.result(timeout=ENOUGH).most == 4
            rank.kill()
        for place in (0, 1, 2, 3):
            second.take_minibatch(0, place)
            second.done(0, place, {})
        started = time.monotonic()
        task = second.next_task(1)
        assert time.monotonic() - started < 30 and (task.kind, task.most) == (Kind.TRAIN, 2)
        assert [second.take_minibatch(1, place) for place in (0, 1)] == [0, 1], "what the other had"
        with pytest.raises(PeerLost, match="0.*pipeline 0"):
            first.take_minibatch(0, 0)


def test_a_pipeline_that_ends_for_good_while_there_is_no_coordinator_is_told_to_the_next(tmp_path, monkeypatch) -> None:
    """Its parent told the one that had just died, which nobody replaced meanwhile; the others waited for ever. The
    parent goes on at once: it keeps the live pipelines going."""
    monkeypatch.setattr(coordination, "_TO_HEAR", 10 * ENOUGH)
    run_dir, gone = tmp_path / "run", GoneAttempts(tmp_path / "run", encrypts=False)
    run_dir.mkdir()
    with start(run_dir) as process, connected(run_dir, 2, total=6, whole=2) as (first, second):
        with ThreadPoolExecutor(2) as pool:
            tasks = list(pool.map(lambda client: client.next_task(0), (first, second)))
        assert sorted(task.most for task in tasks) == [4, 6], "each has two of six minibatches"
        process.kill()
        process.communicate()
        started = time.monotonic()
        gone.add(0, None)
        assert time.monotonic() - started < ENOUGH
    with serving(run_dir), closing(connect(run_dir, pipeline=1, rank=0, attempt=0, timeout=TIMEOUT)) as second:
        assert second.live() == (0,), "another coordinator, which knows of both"
        gone.tell()
        assert second.live() == ()


def test_strangers_cost_nothing_but_their_own_connections(tmp_path) -> None:
    """Five thousand of them: who say nothing, something else, too much, or have another secret."""
    run_dir, draw = tmp_path / "run", random.Random(5)
    said = (
        b"",
        b"\n",
        b"x" * 48,
        b'{"call": "leave"}\n' * 3,
        bytes(48),
        draw.randbytes(100_000),
        b"\xff" * (REPLY_BYTES - 1),
        b"\xff" * REPLY_BYTES,
    )
    with serving(run_dir, pipelines=1) as process, connected(run_dir, 1, epoch=10**6, total=10**6) as (client,):
        client.next_task(0)
        address = ListenerAddress.read(run_dir / COORDINATOR)
        held, took = [], []
        for k in range(5000):
            stranger = socket.socket()
            stranger.settimeout(ENOUGH)
            stranger.connect((address.host, address.port))
            with suppress(OSError):
                stranger.sendall(said[k % len(said)])
            held.append(stranger)
            if len(held) > 300:
                held.pop(0).close()
            if k % 10 == 0:
                before = time.monotonic()
                assert client.take_minibatch(0, k // 10) is not None
                took.append(time.monotonic() - before)
        for stranger in held:
            stranger.close()
        # But for the few moments at which a busy machine may have had no time for either process.
        assert sorted(took)[len(took) * 9 // 10] < 5 and process.poll() is None
        assert client.take_minibatch(0, 1000) == 1000
        assert len(list((Path("/proc") / str(process.pid) / "fd").iterdir())) < 100
        rows = int((Path("/proc") / str(process.pid) / "statm").read_text().split()[1]) * 4096
        assert rows < 500e6


LIVE = {"id": 2, "call": "live", "wait": 0.0, "given": {}, "done": []}


def asking(address, who=(0, -1, 0)):
    """A caller whose end is not its pipeline's, but for another `who`."""
    return Requests(address, who, deadline=time.monotonic() + ENOUGH)


def framed(head):
    return lengths(len(head), 0) + head


def test_a_rank_that_says_what_is_no_request_is_shut_out_alone(tmp_path) -> None:
    run_dir, draw = tmp_path / "run", random.Random(3)
    good = encoded({"id": 1, "call": "live", "wait": 0.0, "given": {}, "done": []})
    with serving(run_dir, pipelines=1) as process, connected(run_dir, 1) as (client,):
        address = ListenerAddress.read(run_dir / COORDINATOR)
        said = [framed(head) for head in (b"", b"[]", b"{}", b'{"id": 1}', b"[" * 10_000, b"null")]
        said += [b"\n", b"x" * 100, lengths(MOST_BYTES + 1, 0), lengths(len(good), 1) + good, lengths(2**31, 2**62)]
        said += [framed(bytes(draw.choice(good) for _ in range(len(good)))) for _ in range(50)]
        said += [framed(good[:k] + draw.randbytes(1) + good[k + 1 :]) for k in range(len(good))]
        for words in said:
            with closing(asking(address)) as own, suppress(OSError, InputError, PacketMismatch):
                own._socket.sendall(words)
                own.request(2, encoded(LIVE), deadline=time.monotonic() + 0.05)
        for call, given in (("take_minibatch", {"task": -1, "place": 0}), ("take_minibatch", {}), ("none", {})):
            with closing(asking(address)) as own:
                asked = encoded({**LIVE, "call": call, "given": given})
                assert own.request(2, asked, deadline=time.monotonic() + ENOUGH)["error"] == "refused"
        for nobody in ((-7, 0, 0), (0, -2, 0), (0, 0, -1)):
            with closing(asking(address, nobody)) as own, pytest.raises(OSError):
                own.request(2, encoded(LIVE), deadline=time.monotonic() + ENOUGH)
        time.sleep(1)
        assert client.next_task(0).kind is Kind.TRAIN and process.poll() is None


def test_who_takes_the_port_of_a_coordinator_learns_nothing(tmp_path) -> None:
    """Neither is the secret said, nor does a client take the word of one that has it not."""
    run_dir, heard = tmp_path / "run", bytearray()
    (run_dir / "control").mkdir(parents=True)
    secret = secrets.token_bytes(16)
    with socket.create_server(("127.0.0.1", 0)) as server:
        told = {"host": "127.0.0.1", "port": server.getsockname()[1], "secret": secret.hex(), "pipelines": 2}
        write_atomic(run_dir / COORDINATOR, json.dumps(told), private=True)

        def listen():
            connection, _ = server.accept()
            with connection:
                connection.sendall(opening())
                heard.extend(connection.recv(1000))
                connection.sendall(bytes(PROOF_BYTES))
                heard.extend(connection.recv(1000))

        threading.Thread(target=listen, daemon=True).start()
        with closing(connect(run_dir, pipeline=0, rank=0, attempt=0, timeout=2.0)) as client:
            with pytest.raises(DeadlinePassed, match="next_task.*rank 0.*pipeline 0.*2 s"):
                client.next_task(0)
    until(lambda: len(heard) >= REPLY_BYTES, "what it says")
    assert len(heard) == REPLY_BYTES and secret not in bytes(heard) and secret.hex().encode() not in bytes(heard)


def test_no_coordinator_is_said_within_the_deadline(tmp_path) -> None:
    with pytest.raises(DeadlinePassed, match="rank 3.*pipeline 1.*0.3 s"):
        connect(tmp_path, pipeline=1, rank=3, attempt=0, timeout=0.3)


def test_it_ends_with_its_parent(tmp_path) -> None:
    os.mkfifo(tmp_path / "pipe")
    writer = os.open(tmp_path / "pipe", os.O_RDWR)
    command = [sys.executable, "-m", "sparsepipe.runtime.pipelines.service", "--run-dir", str(tmp_path)]
    environment = {**os.environ, "SPARSEPIPE_LIFELINE": str(tmp_path / "pipe")}
    with subprocess.Popen([*command, "--pipelines", "2"], env=environment) as process:
        with closing(connect(tmp_path, pipeline=0, rank=0, attempt=0, timeout=TIMEOUT)) as client:
            assert client.live() == ()
            os.close(writer)
            assert process.wait(timeout=ENOUGH) == 143


def test_a_run_is_stopped_and_goes_on_where_it_was(tmp_path) -> None:
    run_dir = tmp_path / "run"
    with serving(run_dir, rule="quorum"), connected(run_dir, 2, epoch=50, total=200) as clients:
        numbers = count()

        def stop_soon():
            if next(numbers) == 70:
                commands.ask(run_dir, commands.STOP)

        first = together(*clients, pause=0.01, on_done=stop_soon)
        progress = clients[0].progress()
    assert commands.taken(run_dir) == (commands.STOP, progress["done"])
    assert 70 <= progress["done"] < 200
    commands.clear(run_dir)
    (tmp_path / "left.json").write_text(json.dumps(progress))
    resume = {"launch": "2", "resume": tmp_path / "left.json"}
    with serving(run_dir, rule="quorum", **resume), connected(run_dir, 2, epoch=50, total=200) as clients:
        second = together(*clients)
        clients[1].tell("summary", {"epochs": 4})
    trained = sorted(pair for _, pairs in (*first, *second) for pair in pairs)
    assert trained == [(m // 50, m % 50) for m in range(200)]
    rows = read_metrics(run_dir / "metrics.jsonl")
    assert sorted(row["minibatch"] for row in rows if row["event"] == "step") == list(range(200))
    epochs = [row for row in rows if row["event"] == "epoch"]
    assert [row["epoch"] for row in epochs] == [0, 1, 2, 3], "each once, in order; none of what was left"
    assert {row["train"]["loss"] for row in epochs} == {1.0} and min(row["samples_per_second"] for row in epochs) > 0
    seconds = [row["seconds"] for row in rows]
    assert seconds == sorted(seconds)
    keep_nothing(run_dir)
    events = [row["event"] for row in read_metrics(run_dir / "metrics.jsonl")]
    assert events == ["resume"] * 2, "without a checkpoint each minibatch is trained again"
    assert len(read_rows(run_dir / "minibatches.jsonl")) > 200, "what happened stays"


@pytest.mark.parametrize(
    ("left", "kept"),
    [({}, [0, 1, 2, 3]), ({"2": [0]}, [0, 1, 2, 3]), ({"1": [1]}, [0, 1, 2]), ({"0": [1], "1": [0, 1]}, [0])],
)
def test_a_run_that_goes_on_keeps_rows_of_what_its_checkpoint_has(tmp_path, left, kept) -> None:
    """Of a checkpoint at an epoch's end nothing is left: what was trained after it, which comes again, is forgotten."""
    done = [{"event": "step", "epoch": m // 2, "minibatch": m, "seconds": float(m)} for m in range(5)]
    write_rows(tmp_path / "metrics.jsonl", done)
    keep_rows(tmp_path, {"done": len(kept), "left": left, "epoch_minibatches": 2})
    assert [row["minibatch"] for row in read_metrics(tmp_path / "metrics.jsonl", "step")] == kept


def test_a_run_with_nothing_left_to_do_has_the_pace_that_was_recorded(tmp_path) -> None:
    """It was summed up at 0 samples per second."""
    assert recorded_pace(tmp_path) == 0
    rows = [{"event": "step", "epoch": 0, "minibatch": 0, "seconds": 1.0}]
    rows += [{"event": "summary", "seconds": 2.0, "samples_per_second": pace} for pace in (40.0, 50.0, 0.0)]
    write_rows(tmp_path / "metrics.jsonl", rows)
    assert recorded_pace(tmp_path) == 50
    state = RunState(RunOfPipelines(1, pace=recorded_pace(tmp_path)))
    begun = {"epoch_minibatches": 1, "total_minibatches": 1, "whole": 1, "num_holders": 1}
    state.ask(Request("begin", 0, 0, 0, begun), now=3.0)
    state.ask(Request("tell", 0, 0, 0, {"event": "summary", "row": {}}), now=4.0)
    ((_, told),) = [row for row in state.changes.rows if row[1]["event"] == "summary"]
    assert told["samples_per_second"] == 50


def test_bad_input_is_one_line(tmp_path) -> None:
    (tmp_path / "left.json").write_text('{"done": 3, "left": {"x": [1]}}')
    for options in (
        {"rule": "no-such-rule"},
        {"resume": tmp_path / "left.json"},
        {"resume": tmp_path / "nowhere.json"},
        {"pipelines": 1, "rule": "all-reduce"},
    ):
        process = start(tmp_path, **options)
        _, error = process.communicate(timeout=ENOUGH)
        assert process.returncode == 2 and len(error.splitlines()) == 1, error


def test_a_thread_that_waits_holds_up_no_other(tmp_path) -> None:
    run_dir = tmp_path / "run"
    with serving(run_dir, rule="local-sgd"), connected(run_dir, 2, epoch=500, total=500) as (first, second):
        with ThreadPoolExecutor(1) as pool:
            task = pool.submit(first.next_task, 0)  # which waits until both are ready
            second.next_task(0)
            task.result(timeout=ENOUGH)
        number = first.contribute(16, samples=4)
        found = []
        waiting = threading.Thread(target=lambda: found.append(first.merge_of(number, wait=ENOUGH)))
        waiting.start()
        taken = [[] for _ in range(4)]

        def take(own):
            own += (first.take_minibatch(0, place) for place in range(100))

        threads = [threading.Thread(target=take, args=(own,)) for own in taken]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=ENOUGH)
        assert taken[0] == taken[1] == taken[2] == taken[3] and len(set(taken[0])) == 100
        assert waiting.is_alive() and first.merge_of(number, wait=0.1) is None
        second.contribute(16, samples=4)
        waiting.join(timeout=ENOUGH)
        assert found[0].members == (0, 1) and found[0] == second.merge_of(0, wait=ENOUGH)


def test_a_rank_that_reads_no_answers_is_shut_out(tmp_path) -> None:
    run_dir = tmp_path / "run"
    with serving(run_dir) as process, connected(run_dir, 1) as (client,):
        layers = tuple(f"layer{k}" * 100 for k in range(500))
        client.register(Holder(0, 0, layers, Address("127.0.0.1", 4711, "ab")))
        own = asking(ListenerAddress.read(run_dir / COORDINATOR))
        own._socket.settimeout(ENOUGH)
        asked = framed(encoded({**LIVE, "call": "holders", "given": {"pipeline": 0}}))
        with closing(own), pytest.raises(OSError):
            for _ in range(300):
                own._socket.sendall(asked * 10)
                time.sleep(0.1)
        assert len(client.holders(0)) == 2 and process.poll() is None
