"""The coordinator's journal: bounded, and the same state and record whenever it is read again."""

import json
import random
import shutil
import signal
from contextlib import closing
from itertools import pairwise
from types import SimpleNamespace

import pytest
from test_runtime_pipelines_service import TIMEOUT, begun, start

from sparsepipe.runtime.pipelines import journal as journals
from sparsepipe.runtime.pipelines.client import connect
from sparsepipe.runtime.pipelines.journal import Journal, complete_record, from_json, to_json
from sparsepipe.runtime.pipelines.service import Service
from sparsepipe.runtime.pipelines.state import RunOfPipelines, RunState
from sparsepipe.util.io.files import read_rows
from sparsepipe.values.replication import parse_rule

MINIBATCHES = 150
RECORD = ("metrics.jsonl", "minibatches.jsonl", "merges.jsonl")


def requests(draw):
    """What two pipelines ask in a run with an average after each minibatch: (pipeline, call, what it is given)."""
    told = {
        "whole": 1,
        "epoch_minibatches": MINIBATCHES,
        "total_minibatches": MINIBATCHES,
        "num_holders": 1,
        "data": "",
    }
    address = {"host": "127.0.0.1", "port": 1, "secret": "ab"}
    for k in (0, 1):
        yield k, "begin", told
        yield k, "register", {"holder": {"pipeline": k, "rank": 0, "layers": ["layer"], "address": address}}
    for k in (0, 1, 0):  # the first is answered once the second is there
        yield k, "next_task", {"number": 0}
    places, under_way = [0, 0], [None, None]
    for _ in range(20 * MINIBATCHES):
        if sum(places) == MINIBATCHES:
            return
        k = draw.randrange(2)
        answer = yield k, "take_minibatch", {"task": 0, "place": places[k]}
        if not answer:
            continue
        yield k, "done", {"task": 0, "place": places[k], "row": {"loss": draw.random(), "samples": 2}}
        if under_way[k] is None:
            under_way[k] = yield k, "contribute", {"update": places[k], "samples": 2}
        else:
            merge = yield k, "merge_of", {"contribution": under_way[k]}
            if merge is not None:
                yield k, "merged", {"merge": merge.number, "facts": {"update": places[k], "stage": 0, "waited": 0.1}}
                under_way[k] = None
        places[k] += 1


@pytest.mark.parametrize("rule", ["partial-reduce", "ad-psgd", "quorum"])
def test_a_journal_is_bounded_and_makes_the_same_state_at_any_moment(tmp_path, monkeypatch, rule):
    """It grew with every minibatch and was read whole: after a million no other coordinator came up in time."""
    monkeypatch.setattr(journals, "_MOST_BYTES", 5_000)
    monkeypatch.setattr(journals, "_STATES", 0)
    draw, run = random.Random(3), RunOfPipelines(2, parse_rule(rule))
    (tmp_path / "run").mkdir()
    journal, state = Journal.open(tmp_path / "run", "0", run)
    service = Service(tmp_path / "run", journal, state, origin=journal.origin())
    asked, answer, looks, sizes = requests(draw), None, 0, []
    try:
        while True:
            try:
                pipeline, call, given = asked.send(answer)
            except StopIteration:
                break
            answer = service._ask(SimpleNamespace(who=(pipeline, 0, 0)), call, given).get("answer")
            path = tmp_path / "run" / "control" / "coordinator.jsonl"
            sizes.append(path.stat().st_size)
            if draw.random() < 0.02:
                looks += 1
                there = tmp_path / f"killed-{looks}"  # as a kill leaves it: rows of the record are still in memory
                shutil.copytree(tmp_path / "run", there)
                again, found = Journal.open(there, "0", run)
                again.close()
                found.changes.now = state.changes.now  # of what was asked last and changed nothing
                assert to_json(found) == to_json(state) and again.secret == journal.secret
                journal.flush()
                assert all((there / name).read_text() == (tmp_path / "run" / name).read_text() for name in RECORD)
    finally:
        journal.close()
    rows = read_rows(tmp_path / "run" / "metrics.jsonl")
    assert sorted(row["minibatch"] for row in rows if row["event"] == "step") == list(range(MINIBATCHES))
    rewritten = sum(after < before for before, after in pairwise(sizes))  # a file system may give the old inode again
    assert rewritten > 1 and looks > 3 and max(sizes) < 250_000


def test_a_state_is_of_its_own_classes_alone():
    state = RunState(RunOfPipelines(2))
    assert to_json(from_json(json.loads(json.dumps(to_json(state))))) == to_json(state)
    rule = parse_rule("partial-reduce")
    before = json.dumps(to_json(rule)).replace("sparsepipe.values.replication.", "sparsepipe.replication.")
    assert "sparsepipe.replication." in before and from_json(json.loads(before)) == rule  # of a version before
    with pytest.raises(ValueError, match="subprocess:Popen"):
        from_json({"": "object", "class": "subprocess:Popen", "fields": {}})
    state.members.append(object())
    with pytest.raises(TypeError, match="object"):
        to_json(state)


def test_a_coordinator_that_is_killed_after_its_journal_was_shortened_goes_on(tmp_path):
    """SIGKILL: what it knew comes from the state and the requests after it."""
    run_dir, note = tmp_path / "run", "x" * 10**6
    run_dir.mkdir()
    processes = [start(run_dir, pipelines=1)]
    try:
        with closing(connect(run_dir, pipeline=0, rank=0, attempt=0, timeout=TIMEOUT)) as client:
            begun(client, epoch=24, total=24)
            client.next_task(0)
            for place in range(24):
                assert client.take_minibatch(0, place) == place
                client.done(0, place, {"loss": 1.0, "samples": 2, "note": note})
                if place == 20:
                    before = client.progress()
                    processes[-1].send_signal(signal.SIGKILL)
                    processes[-1].communicate()
                    size = (run_dir / "control" / "coordinator.jsonl").stat().st_size
                    processes.append(start(run_dir, pipelines=1))
                    assert client.progress() == before and before["done"] == 21
            assert client.progress()["done"] == 24
    finally:
        processes[-1].terminate()
        processes[-1].communicate()
    complete_record(run_dir, "0")
    rows = read_rows(run_dir / "metrics.jsonl")
    assert [row["minibatch"] for row in rows if row["event"] == "step"] == list(range(24))
    assert 10**6 < size < 10**7, "of 21 MB of requests"
