"""The coordinator's process and its clients: real processes and sockets, kills, strangers."""

import json
import subprocess
import sys
import threading
from contextlib import ExitStack, closing, contextmanager

from sparsepipe.files import read_rows
from sparsepipe.runtime.pipelines.base import Address, Holder, Kind
from sparsepipe.runtime.pipelines.client import connect

TIMEOUT = 60.0


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
            process.wait(timeout=30)


def begun(client, *, whole=1, epoch=6, total=12, num_holders=1):
    client.begin(whole=whole, epoch_minibatches=epoch, total_minibatches=total, num_holders=num_holders)
    return client


@contextmanager
def connected(run_dir, count, **told):
    """The first ranks of so many pipelines, which have said what is to be trained."""
    with ExitStack() as stack:
        clients = [connect(run_dir, pipeline=k, rank=0, attempt=0, timeout=TIMEOUT) for k in range(count)]
        for client in clients:
            stack.enter_context(closing(client))
            begun(client, **told)
        yield clients


def train(client, *, taken=None, on_done=lambda: None):
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
                on_done()
        if task.kind is Kind.CLOSE_EPOCH:
            client.closed(task.epoch, {"validation": {"loss": 0.5, "samples": 1}})
        if task.kind is Kind.FINISH:
            client.last_merge(0)
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
        thread.join(timeout=100)
    return found


def test_two_pipelines_share_a_run(tmp_path) -> None:
    with serving(tmp_path / "run", rule="partial-reduce"), connected(tmp_path / "run", 2) as clients:
        assert clients[0].num_pipelines == 2
        holder = Holder(1, 0, ("layer0", "layer1"), Address("127.0.0.1", 4711, "ab"))
        assert not clients[0].holders(1)
        clients[1].register(holder)
        assert clients[0].holders(1) == (holder,)
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
