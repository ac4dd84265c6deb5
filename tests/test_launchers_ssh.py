"""Runs over ssh on hosts that share only the code: the same losses, the same record, and nothing left anywhere."""

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import contextmanager

import pytest
from network_hosts import network_hosts
from runtime_jobs import REPOSITORY, plan_of, settings, shapes

from sparsepipe.files import cut_torn_row, read_json, read_rows
from sparsepipe.record import RunRecord

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

DATA = "/run/home/shapes"  # on each host its own copy
MODEL = "minkvgg11-narrow"
FLUSH = {"schedule": "gpipe", "weights": "flush", "num_microbatches": 2}
LAUNCH = """
    import json, sys
    from sparsepipe import InputError
    from sparsepipe.cluster import Cluster
    from sparsepipe.launchers import launch
    from sparsepipe.plan import Plan
    from sparsepipe.runtime import RunConfig
    for told in json.loads(sys.argv[1]):
        cluster = Cluster.load(told["cluster"]) if told["cluster"] else None
        try:
            job = launch(
                Plan.load(told["plan"]), RunConfig.from_json(told["config"]), run_dir=told["run_dir"],
                resume=told["resume"], launcher="ssh" if cluster else "local", cluster=cluster,
            )
            if told["stop"]:
                job.stop()
            job.wait()
            print(json.dumps(job.state))
        except (InputError, RuntimeError) as error:
            print(json.dumps([type(error).__name__, str(error)]), flush=True)
"""


class Desk:
    """Launches on hosts from their desk, as a notebook's kernel would."""

    def __init__(self, network, folder):
        self.network, self.folder = network, folder
        for host in (*network.hosts, network.desk):
            shutil.copytree(folder / "shapes", host.home / "shapes")

    def cluster(self, name, *hosts, counts=None, last=None):
        """Write a cluster file of one device a host, or as many as `counts` says. `last`: facts of the last host."""
        path = self.folder / f"{name}-cluster.toml"
        nodes = []
        for host, count in zip(hosts, counts or [1] * len(hosts), strict=True):
            facts = {"name": host.name, "address": host.address, "ssh": host.name} | (
                (last or {}) if host is hosts[-1] else {}
            )
            path_there = facts.pop("python_path", REPOSITORY)
            environment = f'{{ PYTHONPATH = "{path_there}", OMP_NUM_THREADS = "1" }}'
            lines = [f'{key} = "{value}"' for key, value in facts.items()]
            lines += [f"environment = {environment}", f'devices = [{{ type = "cpu", count = {count} }}]']
            nodes.append("\n".join(["[[node]]", *lines, ""]))
        path.write_text("\n".join(nodes))
        return path

    def told(self, name, plan, config, *hosts, resume=False, stop=False, **more):
        plan.save(self.folder / f"{name}-plan.json")
        told = {"plan": str(self.folder / f"{name}-plan.json"), "config": config.to_json()}
        told |= {"run_dir": str(self.folder / name), "resume": resume, "stop": stop}
        return told | {"cluster": str(self.cluster(name, *hosts, **more)) if hosts else None}

    def launch(self, *told, timeout=600):
        """Launch one run after the other; return how each ended."""
        said = self.network.desk.run(*self.words(*told), timeout=timeout)
        assert said.returncode == 0, said.stderr
        return [json.loads(line) for line in said.stdout.splitlines()]

    def words(self, *told):
        return [sys.executable, "-c", textwrap.dedent(LAUNCH), json.dumps(told)]

    @contextmanager
    def launched(self, told):
        """Launch a run and wait for its first minibatches; yield the process that launched it."""
        command = self.network.desk.command(self.words(told))
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                metrics = self.folder / told["run_dir"] / "metrics.jsonl"
                await_true(lambda: metrics.exists() and '"step"' in metrics.read_text() or process.poll() is not None)
                yield process
            finally:
                process.kill()

    def steps(self, name):
        """Count the minibatches that a run has told of so far."""
        return (self.folder / name / "metrics.jsonl").read_text().count('"event": "step"')

    def losses(self, name):
        rows = [row for row in read_rows(self.folder / name / "metrics.jsonl") if row["event"] == "step"]
        rows.sort(key=lambda row: row["minibatch"])
        assert [row["minibatch"] for row in rows] == list(range(len(rows))), "each minibatch once"
        return [row["loss"] for row in rows]

    def check_nothing_is_left(self, *, folders=True):
        """Every process but sshd's ends on every host, nothing listens but sshd, and no folder of a run is there."""
        for host in self.network.hosts:
            await_true(lambda host=host: not host.commands())
            assert host.listening() == {(host.address, 22)}
            left = host.home / ".local" / "state" / "sparsepipe" / "hosted"
            await_true(lambda left=left: not folders or not list(left.glob("run-*")))
        assert self.network.desk.listening() == set()


def await_true(happened):
    deadline = time.monotonic() + 300
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hosts")
    shapes(folder)
    with network_hosts(3, folder) as network:
        desk = Desk(network, folder)
        assert desk.launch(desk.told("one", plan_of(MODEL, [[0]], **FLUSH), config())) == ["finished"]
        for host in network.hosts:  # machine code, which each host else makes for itself
            shutil.copytree(network.desk.home / ".cache", host.home / ".cache")
        yield desk


def config(**changes):
    return settings(DATA, **{"epochs": 2, "checkpoint_every": 1, **changes})


def test_three_hosts_have_the_losses_of_one_device_to_the_bit(desk):
    told = desk.told("over", plan_of(MODEL, [[0], [1], [2]], **FLUSH), config(), *desk.network.hosts)
    assert desk.launch(told) == ["finished"]
    assert desk.losses("over") == desk.losses("one")
    record = RunRecord.load(desk.folder / "over")
    assert {span.rank for span in record.trace().spans} == {0, 1, 2}
    summary = [row for row in record.metrics() if row["event"] == "summary"]
    assert [row["run_dir"] for row in summary] == [str(record.folder)]
    newest = record.folder / "checkpoints" / "minibatch-00000010"
    assert {path.name for path in newest.iterdir()} == {"manifest.json", *(f"stage{k}.safetensors" for k in range(3))}
    desk.check_nothing_is_left()


def test_a_run_stopped_on_some_hosts_goes_on_on_others(desk):
    """On the second host of the first part two ranks share memory."""
    first, second, third = desk.network.hosts
    ranks = [[0], [1], [2]]
    begun = desk.told("moved", plan_of(MODEL, ranks, **FLUSH), config(), first, second, counts=[1, 2], stop=True)
    assert desk.launch(begun) == ["stopped"]
    assert read_json(desk.folder / "moved" / "control" / "taken.json")["minibatch"] < 10
    rest = desk.told("moved", plan_of(MODEL, [[0], [1]], **FLUSH), config(), third, second, resume=True)
    assert desk.launch(rest) == ["finished"]
    assert desk.losses("moved") == desk.losses("one")
    desk.check_nothing_is_left()


def test_a_job_listens_on_the_networks_addresses_alone_and_strangers_are_nothing_to_it(desk):
    hosts = desk.network.hosts[:2]
    told = desk.told("long", plan_of(MODEL, [[0], [1]], **FLUSH), config(epochs=500, timeout_seconds=20), *hosts)
    with desk.launched(told) as process:
        for host in hosts:
            found = host.listening() - {(host.address, 22)}
            assert found and {address for address, _ in found} == {host.address}
            assert desk.network.desk.run(*hostile(found)).returncode == 0
        steps = desk.steps("long")
        await_true(lambda: process.poll() is not None or desk.steps("long") > steps + 5)
        (agent,) = (pid for pid, words in hosts[1].commands().items() if "sparsepipe.launchers.ssh.agent" in words)
        os.kill(agent, signal.SIGKILL)
        kind, reason = json.loads(process.stdout.readline())
    assert kind == "RunFailed" and "host2" in reason and "agent" in reason, reason
    desk.check_nothing_is_left(folders=False)
    shutil.rmtree(hosts[1].home / ".local")  # what the killed agent left: the next one does that after a minute


def hostile(places):
    """The command of a stranger that connects, says much or nothing, and hangs up or not."""
    program = """
        import json, socket, sys
        held = []
        for host, port in json.loads(sys.argv[1]):
            for word in [b"", b"x", b"\\0" * 100000, b'{"id": 1, "op": "get"}\\n'] * 20:
                try:
                    held.append(socket.create_connection((host, port), 5))
                    held[-1].sendall(word)
                except OSError:
                    pass
    """
    return [sys.executable, "-I", "-c", textwrap.dedent(program), json.dumps(sorted(places))]


def test_a_worker_that_dies_is_started_again_on_every_host_and_all_end_with_whoever_launched_them(desk):
    more = {"stragglers": "kill:rank=1,at=7", "max_restarts": 1}
    told = desk.told("again", plan_of(MODEL, [[0], [1]], **FLUSH), config(epochs=500, **more), *desk.network.hosts[1:])
    with desk.launched(told) as process:
        await_true(lambda: process.poll() is not None or desk.steps("again") > 10)
        assert process.poll() is None
    desk.check_nothing_is_left()
    cut_torn_row(desk.folder / "again" / "metrics.jsonl")
    assert desk.losses("again")[:10] == desk.losses("one")
    assert "rank 1" in (desk.folder / "again" / "logs" / "launcher.log").read_text()
    await_true(lambda: read_json(desk.folder / "again" / "status.json")["state"] == "cancelled")


def test_hosts_that_cannot_be_worked_with_are_refused_in_a_line_and_nothing_is_left(desk):
    first, second, _ = desk.network.hosts
    other = second.home / "other"
    shutil.copytree(REPOSITORY / "sparsepipe", other / "sparsepipe", ignore=shutil.ignore_patterns("__pycache__"))
    changed = other / "sparsepipe" / "sizes.py"
    changed.write_text(changed.read_text() + "# another version")
    bare = second.home / "bare"  # a Python without any package
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    wrong = {
        "interpreter": ({"interpreter": "/nowhere/python"}, "name its interpreter"),
        "version": ({"python_path": "/run/home/other"}, "host2: code"),
        "package": ({"interpreter": "/run/home/bare", "python_path": "/nowhere"}, "has no sparsepipe"),
        "address": ({"address": "10.77.0.77"}, "no network interface there"),
        "name": ({"ssh": "host9"}, "no host of that name"),
        "alike": ({"address": first.address}, "the address of more than one host"),
    }
    plan = plan_of(MODEL, [[0], [1]], **FLUSH)
    told = [desk.told(name, plan, config(), first, second, last=changes) for name, (changes, _) in wrong.items()]
    told.append(desk.told("many", plan_of(MODEL, [[0], [1], [2]], **FLUSH), config(), first, second))
    remedies = [*(remedy for _, remedy in wrong.values()), "3 ranks, the cluster 2 devices"]
    for (kind, reason), remedy in zip(desk.launch(*told), remedies, strict=True):
        assert kind in ("InputError", "RunFailed") and remedy in reason and "\n" not in reason, reason
    assert second.run("hostname", "host1").returncode == 0
    ((_, reason),) = desk.launch(desk.told("twice", plan, config(), first, second))
    assert "host1 and host2 are both called 'host1'" in reason
    assert second.run("hostname", "host2").returncode == 0
    keys = second.home.parent / "keys" / "desk.pub"
    keys.write_text("")
    ((_, reason),) = desk.launch(desk.told("key", plan, config(), first, second))
    assert "ssh-copy-id host2" in reason
    shutil.copy(first.home.parent / "keys" / "desk.pub", keys)
    desk.check_nothing_is_left()
