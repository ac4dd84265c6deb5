"""What a run on hosts is asked for while it is at work: handed on to its hosts, and answered in its record."""

import json
import os
from types import SimpleNamespace

import pytest
from coded import raises
from runtime_jobs import PLAIN, plan_of, settings

from sparsepipe import InputError
from sparsepipe.launching.prepare import for_hosts
from sparsepipe.launching.ssh.rows import ANSWERS, HostRequests
from sparsepipe.records import Origin, RunRecord
from sparsepipe.records.run_progress import followed_plans, num_processes
from sparsepipe.runtime import commands
from sparsepipe.runtime.wire.frames import FrameReader, FrameWriter
from sparsepipe.values.plan import Plan

PLAN = plan_of(PLAIN, [[0], [1], [2]], schedule="gpipe", num_microbatches=2)
OTHER = plan_of(PLAIN, [[2], [1]], schedule="gpipe", num_microbatches=2)


@pytest.fixture
def asked(tmp_path):
    """A run on hosts, what it is asked for, and what its hosts hear."""
    record = RunRecord.create(tmp_path / "run", PLAN, settings(tmp_path).to_json(), Origin.here())
    reading, writing = os.pipe()
    yield HostRequests(record, 3), record.folder, SimpleNamespace(writer=FrameWriter(writing)), FrameReader(reading)
    os.close(writing)
    os.close(reading)


def test_a_plan_is_handed_on_once_and_is_the_runs_when_a_host_says_so(asked):
    requests, folder, host, heard = asked
    requests.forward(host)
    given = {"predicted_gain_seconds": 3.0, "memory_bytes": (5.0, 7.0)}
    token = commands.leave(folder, OTHER, reason="rank 0 is slow", **given)
    requests.forward(host)
    requests.forward(host)
    plan, request = heard.read(), heard.read()
    assert plan.head["name"] == f"control/plan-{token}.json" and Plan.from_json(json.loads(plan.payload)) == OTHER
    told = json.loads(request.payload)
    assert request.head["name"] == "control/request.json" and told.pop("predicted_gain_seconds") == 3.0
    assert told == {"command": "replan", "plan": token, "reason": "rank 0 is slow", "memory_bytes": [5, 7]}
    answer = json.dumps({"command": "replan", "minibatch": 12, "plan": token}).encode()
    with raises("request.plan_unknown"):
        requests.take(ANSWERS[0], answer.replace(token.encode(), b"01234567"))
    assert requests.take(ANSWERS[0], answer) == OTHER
    assert followed_plans(folder) == ((0, PLAN), (12, OTHER)) and num_processes(folder, OTHER) == 3
    assert commands.taken_plan(folder, token) == 12 and commands.request(folder) is None
    assert sorted(path.name for path in (folder / "control").iterdir()) == ["taken.json"]
    given = {"port": None, "run_dir": folder}
    assert for_hosts(OTHER, resume=True, **given) == 3, "what it leaves out stays in the job"
    with raises("plan.ranks_not_of_job"):
        for_hosts(OTHER, resume=False, **given)
    commands.ask(folder, commands.STOP)
    requests.forward(host)
    assert json.loads(heard.read().payload)["command"] == "stop", "it was handed on once, and this comes next"


def test_one_of_several_pipelines_is_asked_in_its_folder_on_the_host_and_for_plans_alone(asked):
    whole, folder, host, heard = asked
    requests = HostRequests(whole.record, 3, "pipelines/1/")
    commands.ask(folder, commands.STOP)
    requests.forward(host)
    commands.clear(folder)
    token = commands.leave(folder, OTHER)
    requests.forward(host)
    names = [heard.read().head["name"] for _ in range(2)]
    assert names == [f"pipelines/1/control/plan-{token}.json", "pipelines/1/control/request.json"]
    for name in (ANSWERS[0], "pipelines/0/control/taken.json", "pipelines/1/plan.json"):
        assert not requests.is_answer(name)
    name = "pipelines/1/control/taken.json"
    assert requests.is_answer(name)
    answer = json.dumps({"command": "replan", "minibatch": 12, "plan": token}).encode()
    assert requests.take(name, answer) == OTHER and commands.taken_plan(folder, token) == 12


def test_what_is_refused_and_what_is_no_plan_is_told_and_the_next_is_heard(asked):
    requests, folder, host, heard = asked
    token = commands.leave(folder, OTHER)
    requests.forward(host)
    assert requests.take(ANSWERS[1], json.dumps({"reason": "rank 1: no", "plan": token}).encode()) is None
    assert commands.refused_plan(folder, token) == "rank 1: no" and commands.request(folder) is None
    token = commands.leave(folder, OTHER)
    (folder / f"control/plan-{token}.json").write_text("{}")
    requests.forward(host)
    assert "not a plan" in commands.refused_plan(folder, token) and commands.request(folder) is None
    token = commands.leave(folder, OTHER)
    requests.forward(host)
    names = [heard.read().head["name"] for _ in range(4)]
    assert names[2:] == [f"control/plan-{token}.json", "control/request.json"]
    requests.forget()  # of workers that start anew
    requests.forward(host)
    assert heard.read().head["name"] == f"control/plan-{token}.json"
    for content in (b"", b"[]", b"{}", b'{"command": "replan"}', b"[" * 10**4):
        with pytest.raises(InputError, match=r"control/taken\.json"):
            requests.take(ANSWERS[0], content)
    assert [followed.plan for followed in followed_plans(folder)] == [PLAN]
