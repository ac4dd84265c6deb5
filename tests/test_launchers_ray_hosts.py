"""Runs on a Ray cluster of hosts that share only the code: ranks go where types are, nodes are lost and come back.

Ray itself is left as it was.
"""

import json
import os
import signal

import pytest
from coded import mentions
from network_hosts import network_hosts
from pipeline_jobs import pipelines_of
from processes import ENOUGH, until
from ray_hosts_desk import MODEL, ray_hosts

from sparsepipe.records import RunRecord
from sparsepipe.runtime import commands
from sparsepipe.util.io.files import read_rows

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
pytest.importorskip("ray", reason='no Ray: pip install "sparsepipe[cluster]"')

TYPES = ("slow", "fast")  # of the devices of ranks 0 and 1; hosts have them the other way round


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hosts")
    with network_hosts(2, folder) as network, ray_hosts(network, folder, TYPES[::-1]) as hosts:
        yield hosts


def test_ranks_are_where_their_types_are_and_losses_those_of_one_device(hosts):
    code, out, said = hosts.run(hosts.on_ray("over", "--epochs", "2", types=TYPES))
    assert code == 0, said
    assert hosts.losses("over") == hosts.losses("one") and len(hosts.losses("over")) > 8
    assert "ranks 0: host2" in hosts.log("over") and "ranks 1: host1" in hosts.log("over")
    assert json.loads(out)
    hosts.check_ray_alone_is_left(hosts.network.hosts)
    code, _, said = hosts.run(hosts.on_ray("unlike", types=("x", "slow")))
    assert code == 2 and "label device=x" in said.splitlines()[-1], said


def dawdling(hosts, name, *more):
    """The command of a run of two epochs that takes a second for each minibatch, and may lose a node once."""
    slow = ["--straggler", "jitter:rank=1,p=1,seconds=1", "--max-restarts", "1", "--timeout-seconds", "60"]
    return hosts.on_ray(name, "--epochs", "2", *slow, *more, types=TYPES)


def await_first_checkpoint(hosts, name, process):
    folder = hosts.folder / name / "checkpoints"
    until(lambda: (folder / "minibatch-00000005").exists() or process.poll() is not None, "a checkpoint")
    assert process.poll() is None, process.communicate(ENOUGH)


def test_a_run_waits_for_a_node_whose_ray_was_killed(hosts):
    first, _ = hosts.network.hosts
    with hosts.running(dawdling(hosts, "back", "--on-lost-host", "wait")) as process:
        await_first_checkpoint(hosts, "back", process)
        for pid in hosts.pids(first, "raylet/raylet"):
            os.kill(pid, signal.SIGKILL)
        until(lambda: "waiting for host1" in hosts.log("back") or process.poll() is not None, "the loss is told")
        hosts.start_node(first, TYPES[1])
        said = process.communicate(timeout=ENOUGH)
    assert process.poll() == 0, said
    assert "resources for all" in hosts.log("back")
    assert hosts.losses("back") == hosts.losses("one")
    hosts.check_ray_alone_is_left(hosts.network.hosts)


def test_a_pipeline_whose_node_was_killed_joins_again_and_so_do_all_where_the_coordinator_was(hosts):
    plan, name = pipelines_of(MODEL, [[0]], [[1]], rule="quorum:quorum=1"), "several"
    plan.save(hosts.folder / f"{name}.json")
    own = ["--straggler", "jitter:p=1,seconds=0.3", "--max-restarts", "2", "--timeout-seconds", "60"]
    folder = hosts.folder / name
    with hosts.running(hosts.on_ray(name, "--epochs", "400", *own, types=TYPES, plan=name)) as process:
        # Rank 0, and with it the coordinator, is on the second host.
        for lost, told, log in (
            (0, "waiting for host1", folder / "pipelines" / "1" / "logs" / "launcher.log"),
            (1, "with their coordinator on host1", folder / "logs" / "launcher.log"),
        ):
            at_work(hosts, name, process)
            for pid in hosts.pids(hosts.network.hosts[lost], "raylet/raylet"):
                os.kill(pid, signal.SIGKILL)
            until(lambda told=told, log=log: told in log.read_text() or process.poll() is not None, told)
            hosts.start_node(hosts.network.hosts[lost], TYPES[1 - lost])
        at_work(hosts, name, process)
        commands.ask(folder, commands.STOP)
        said = process.communicate(timeout=ENOUGH)
    assert process.poll() == 0, said
    record = RunRecord.load(folder)
    assert len({row["minibatch"] for row in record.metrics("step")}) == len(record.metrics("step")) > 30
    assert [one.status["state"] for one in record.pipelines] == ["stopped"] * 2
    assert mentions(record.status["went_on"][0], "host1")
    hosts.check_ray_alone_is_left(hosts.network.hosts)


def at_work(hosts, name, process):
    """Wait until both pipelines have joined since the last of them left, and train."""
    path = hosts.folder / name / "minibatches.jsonl"

    def both():
        rows = read_rows(path) if path.exists() else []
        since = max((k for k, row in enumerate(rows) if row["event"] in ("left", "resume")), default=-1)
        taken = [row["pipeline"] for row in rows[since + 1 :] if row["event"] == "taken"]
        return min(taken.count(0), taken.count(1)) > 3

    until(lambda: process.poll() is not None or both(), "both pipelines train")
    assert process.poll() is None, process.communicate(ENOUGH)


def test_a_run_goes_on_without_a_node_that_died_planned_anew(hosts):
    """The last test here: the host of rank 0 is gone with all it had."""
    first, second = hosts.network.hosts
    with hosts.running(dawdling(hosts, "left")) as process:
        await_first_checkpoint(hosts, "left", process)
        second.process.kill()
        said = process.communicate(timeout=ENOUGH)
    assert process.poll() == 0, said
    log = hosts.log("left")
    assert "rank 0" in log and mentions(log, "host1", 1)
    assert hosts.losses("left") == hosts.losses("one")
    record = RunRecord.load(hosts.folder / "left")
    assert [len(followed.plan.stages) for followed in record.plans] == [2, 1]
    assert record.plans[1].first_minibatch == 5
    hosts.check_ray_alone_is_left([first])
