"""Several pipelines over ssh on hosts that share only the code, some of which are lost.

That they are replayed to the same bits is in test_launchers_replan_hosts.py.
"""

import json
import os
import signal
from collections import Counter

import pytest
from coded import mentions, raises
from hosts_desk import config
from pipeline_jobs import pipelines_of
from processes import ENOUGH, until
from runtime_jobs import PLAIN

from sparsepipe.launching.ssh.launch_ssh import hosted_pipelines
from sparsepipe.records import RunRecord
from sparsepipe.runtime import commands
from sparsepipe.util.io.files import read_rows
from sparsepipe.values.cluster import Cluster, DeviceType, Node

pytestmark = pytest.mark.timeout(900)
slow = pytest.mark.slow
EPOCH = 5  # minibatches


def rows(desk, name, event):
    path = desk.folder / name / "minibatches.jsonl"
    return [row for row in read_rows(path) if row["event"] == event] if path.exists() else []


def trained_once(desk, name, count):
    told = Counter(row["minibatch"] for row in RunRecord.load(desk.folder / name).metrics("step"))
    assert told == dict.fromkeys(range(count), 1), "each minibatch once"


def log_of_pipeline(desk, name, k):
    path = desk.folder / name / "pipelines" / str(k) / "logs" / "launcher.log"
    return path.read_text() if path.exists() else ""


@slow
def test_a_pipeline_whose_agent_is_killed_joins_again_and_the_run_stops_and_is_resumed_elsewhere(desk):
    """Pipeline 0 is on two hosts, with the coordinator on the first, which is killed too; pipeline 1 on the third."""
    hosts, plan = desk.network.hosts, pipelines_of(PLAIN, [[0], [1]], [[2]], rule="quorum:quorum=1")
    own = config(epochs=10_000, max_restarts=1, stragglers="jitter:p=1,seconds=0.1")
    with desk.launched(desk.told("again", plan, own, *hosts)) as process:
        until(lambda: process.poll() is not None or joined(desk, "again") >= {(0, 0), (1, 0)}, "both are there")
        for host in hosts:
            found = host.listening() - {(host.address, 22)}
            assert found and {address for address, _ in found} == {host.address}
        for host, module in ((hosts[0], "runtime.pipelines.service"), (hosts[2], "launching.ssh.agent")):
            (pid,) = (pid for pid, words in host.commands().items() if f"sparsepipe.{module}" in words)
            os.kill(pid, signal.SIGKILL)
        until(lambda: process.poll() is not None or (1, 1) in joined(desk, "again"), "it joins again")
        steps = desk.steps("again")
        until(lambda: process.poll() is not None or desk.steps("again") > steps + 20, "both go on")
        commands.ask(desk.folder / "again", commands.STOP)
        said = process.communicate(timeout=ENOUGH)[0]
    assert json.loads(said) == "stopped", said
    assert "host3 is back" in log_of_pipeline(desk, "again", 1)
    record = RunRecord.load(desk.folder / "again")
    done = len(record.metrics("step"))
    assert done > 20 and [one.status["state"] for one in record.pipelines] == ["stopped"] * 2
    back = {(row["epoch"], m) for row in rows(desk, "again", "put back") for m in row["minibatches"]}
    taken = Counter((row["epoch"], m) for row in rows(desk, "again", "taken") for m in row["minibatches"])
    assert {key for key, times in taken.items() if times > 1} <= back and len(back) <= 4, "what was in flight"
    epochs = done // EPOCH + 2
    plan = pipelines_of(PLAIN, [[0]], [[1]], rule="local-sgd:every=2")
    rest = desk.told("again", plan, config(epochs=epochs), *hosts[:0:-1], resume=True)
    assert desk.launch(rest) == ["finished"]
    trained_once(desk, "again", epochs * EPOCH)
    desk.check_nothing_is_left(folders=False)  # but of the agent that was killed: the next to come does that


def joined(desk, name):
    return {(row["pipeline"], row["attempt"]) for row in rows(desk, name, "joined")}


@slow
def test_pipelines_go_on_without_one_whose_host_is_cut_off_with_the_coordinator(desk):
    hosts, plan = desk.network.hosts[:2], pipelines_of(PLAIN, [[0]], [[1]], rule="partial-reduce")
    own = config(epochs=6, max_restarts=1, timeout_seconds=10, stragglers="jitter:p=1,seconds=0.4")
    with desk.launched(desk.told("cut", plan, own, *hosts)) as process:
        until(lambda: process.poll() is not None or joined(desk, "cut") >= {(0, 0), (1, 0)}, "both are there")
        desk.network.cut(hosts[0])
        said = process.communicate(timeout=2 * ENOUGH)[0]  # the loss is noticed, and all begin again
    desk.network.mend(hosts[0])
    assert json.loads(said) == "finished", said
    trained_once(desk, "cut", 6 * EPOCH)
    record = RunRecord.load(desk.folder / "cut")
    told, gone = record.status["went_on"]
    assert f"{hosts[0].name}: " in told and mentions(told, hosts[1].name), told
    assert gone.startswith("pipeline 0: "), gone
    assert [one.status["state"] for one in record.pipelines] == ["failed", "finished"]
    assert f"waiting for {hosts[0].name}" in log_of_pipeline(desk, "cut", 0)
    desk.check_nothing_is_left(folders=False)


@slow
def test_a_host_that_one_pipeline_cannot_begin_on_ends_the_run_in_a_line(desk):
    first, second, _ = desk.network.hosts
    plan = pipelines_of(PLAIN, [[0]], [[1]], rule="partial-reduce")
    told, before = desk.told("nowhere", plan, config(), first, second, last={"ssh": "host9"}), desk.run_folders()
    ((kind, reason),) = desk.launch(told)
    assert kind == "InputError" and "host9" in reason and "\n" not in reason, reason
    assert RunRecord.load(desk.folder / "nowhere").status["state"] == "refused", "nothing was begun"
    desk.check_nothing_is_left(before=before)


def cluster(*counts, addresses=None):
    kinds = (DeviceType("cpu"),)
    return Cluster(
        tuple(
            Node(f"n{k}", kinds * count, address=addresses[k] if addresses else f"10.0.0.{k + 1}")
            for k, count in enumerate(counts)
        )
    )


def test_each_rank_of_a_pipeline_is_at_its_device_and_knows_how_many_others_are_there():
    plan = pipelines_of(PLAIN, [[0], [2]], [[4], [1]], rule="partial-reduce")
    first, second = hosted_pipelines(plan, cluster(2, 1, 2))
    assert [(hosted.node.name, hosted.ranks) for hosted in first.hosts] == [("n0", (0,)), ("n1", (1,))]
    assert [(hosted.node.name, hosted.ranks) for hosted in second.hosts] == [("n0", (0,)), ("n2", (1,))]
    assert (first.ranks, second.ranks) == ((0, 2), (1, 4))
    assert first.before == {} and second.before == {"n0": 1, "n1": 1}
    assert second.of_all == {"n0": 2, "n1": 1, "n2": 1}


def test_what_hosts_cannot_do_for_pipelines_is_told_in_one_line():
    plan = pipelines_of(PLAIN, [[0]], [[1]], rule="partial-reduce")
    for given, hosts, error in (
        (plan, cluster(1), ("plan.rank_not_in_cluster", "1", "1 device")),
        (pipelines_of(PLAIN, [[0]], [[0]], rule="partial-reduce"), cluster(2), ("plan.rank_in_two_pipelines", "0")),
        (plan, cluster(1, 1, addresses=["127.0.0.1"] * 2), ("cluster.address_twice",)),
    ):
        with raises(*error) as found:
            hosted_pipelines(given, hosts)
        assert "\n" not in str(found.value)
