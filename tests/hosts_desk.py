"""Runs launched from the desk of a network of hosts in namespaces (network_hosts.py), as a notebook's kernel would."""

import ctypes
import fcntl
import json
import os
import shutil
import subprocess
import sys
import textwrap
from contextlib import contextmanager, suppress

from processes import ENOUGH, until
from runtime_jobs import REPOSITORY, plan_of, rank_process, settings, shapes

from sparsepipe import InputError
from sparsepipe.data.folder import user_cache
from sparsepipe.launching import launch
from sparsepipe.runtime import RunConfig
from sparsepipe.util.io.files import read_rows
from sparsepipe.values.cluster import Cluster
from sparsepipe.values.plan import Plan

DATA = "/run/home/shapes"  # on each host its own copy
MODEL = "minkvgg11-narrow"
FLUSH = {"schedule": "gpipe", "weights": "flush", "num_microbatches": 2}
# Counts what passes a switch: bytes, and frames with zeros in a row, by what they are. What is encrypted looks random;
# packets' headers, gloo's messages and sums of few values have zeros in a row. A handshake names its caller in 16
# bytes; keys are agreed upon in records that begin with 0x16; ssh looks after itself.
LISTEN = """
    import json, select, socket, sys
    heard = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(3))
    heard.setsockopt(socket.SOL_SOCKET, 33, 2**26)  # SO_RCVBUFFORCE
    print("listening", flush=True)
    found = {"bytes": 0, "clear": 0, "encrypted": 0}
    while True:
        ready, _, _ = select.select([heard, sys.stdin], [], [])
        if heard not in ready:
            break
        frame = heard.recv(2**17)
        if frame[12:14] != b"\\x08\\x00" or frame[23] != 6:
            continue
        tcp = 14 + 4 * (frame[14] & 15)
        ports = {int.from_bytes(frame[at : at + 2], "big") for at in (tcp, tcp + 2)}
        payload = frame[tcp + 4 * (frame[tcp + 12] >> 4) : 14 + int.from_bytes(frame[16:18], "big")]
        if 22 in ports or payload[:2] == b"\\x16\\x03":
            continue
        found["bytes"] += len(payload)
        found["clear"] += bytes(24) in payload
        found["encrypted"] += payload[:3] == b"\\x17\\x03\\x03"
    print(json.dumps(found))
"""


class AtDesk:
    """A call of `work(*arguments, said)` in a process of the desk's, which has `said` written to the file it is given.

    It is forked from what ranks of other tests are (runtime_jobs.py): one that imports torch itself takes two seconds.
    """

    def __init__(self, network, work, *arguments, folder):
        self._said = folder / "said.txt"
        self._said.unlink(missing_ok=True)
        self._log = folder / "desk.log"
        known = (work, *arguments, self._said)
        self._process = rank_process(_enter, network.desk.pid, *known, log=self._log, more={"HOME": "/run/home"})
        self._process.start()

    def poll(self):
        return self._process.exitcode

    def communicate(self, timeout):
        """Wait for its end; return what it said, and what it printed."""
        self._process.join(timeout)
        assert self.poll() is not None, f"still at work after {timeout} s"
        return self._said.read_text() if self._said.exists() else "", self._log.read_text()

    def kill(self):
        self._process.kill()
        self._process.join()


def _enter(work, *arguments_and_pid):
    """Join the network, the mounts, the host name and the shared memory of a process, and do the work there."""
    *arguments, pid = arguments_and_pid
    del os.environ["RANK"]
    namespaces = 0x40000000 | 0x20000 | 0x4000000 | 0x8000000  # CLONE_NEWNET, NEWNS, NEWUTS and NEWIPC
    if ctypes.CDLL(None, use_errno=True).setns(os.pidfd_open(pid), namespaces):
        raise OSError(ctypes.get_errno(), "setns")
    work(*arguments)


def launch_each(told, said):
    """Launch one run after the other, and say how each ended."""
    for each in told:
        cluster = Cluster.load(each["cluster"]) if each["cluster"] else None
        more = {"forward_only": each["forward_only"]} if each["forward_only"] else {}
        try:
            job = launch(
                Plan.load(each["plan"]),
                RunConfig.from_json(each["config"]),
                run_dir=each["run_dir"],
                resume=each["resume"],
                launcher="ssh" if cluster else "local",
                cluster=cluster,
                **more,
            )
            if each["stop"]:
                job.stop()
            job.wait()
            ended = job.state
        except (InputError, RuntimeError) as error:
            ended = [type(error).__name__, str(error)]
        with said.open("a") as file:
            file.write(json.dumps(ended) + "\n")


class Desk:
    """Launches on hosts from their desk, as a notebook's kernel would."""

    def __init__(self, network, folder):
        self.network, self.folder = network, folder
        shapes(folder)
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

    def told(self, name, plan, config, *hosts, resume=False, stop=False, forward_only=None, **more):
        if not resume:  # of a test that is run again
            shutil.rmtree(self.folder / name, ignore_errors=True)
        plan.save(self.folder / f"{name}-plan.json")
        told = {"plan": str(self.folder / f"{name}-plan.json"), "config": config.to_json()}
        told |= {"run_dir": str(self.folder / name), "resume": resume, "stop": stop}
        told |= {"forward_only": str(forward_only) if forward_only else None}
        return told | {"cluster": str(self.cluster(name, *hosts, **more)) if hosts else None}

    def launch(self, *told, timeout=600):
        """Launch one run after the other; return how each ended."""
        process = AtDesk(self.network, launch_each, told, folder=self.folder)
        try:
            said, log = process.communicate(timeout)
            assert process.poll() == 0, log
        finally:
            process.kill()
        return [json.loads(line) for line in said.splitlines()]

    @contextmanager
    def launched(self, told):
        """Launch a run and wait for its first minibatches; yield the process that launched it."""
        process = AtDesk(self.network, launch_each, [told], folder=self.folder)
        try:
            until(lambda: process.poll() is not None or self.steps(told["run_dir"]) > 0, "minibatches")
            yield process
        finally:
            process.kill()
            for host in self.network.hosts:
                with suppress(subprocess.CalledProcessError):  # a host that a test has killed
                    self.network.mend(host)

    def steps(self, name):
        """Count the minibatches that a run has told of so far."""
        metrics = self.folder / name / "metrics.jsonl"
        return metrics.read_text().count('"event": "step"') if metrics.exists() else 0

    def losses(self, name):
        rows = [row for row in read_rows(self.folder / name / "metrics.jsonl") if row["event"] == "step"]
        rows.sort(key=lambda row: row["minibatch"])
        assert [row["minibatch"] for row in rows] == list(range(len(rows))), "each minibatch once"
        return [row["loss"] for row in rows]

    def run_folders(self):
        """List the folders of runs on every host."""
        state = (host.home / ".local" / "state" / "sparsepipe" / "hosted" for host in self.network.hosts)
        return {folder for hosted in state for folder in hosted.glob("run-*")}

    def check_nothing_is_left(self, *, folders=True, before=frozenset()):
        """Every process but sshd's ends on every host, nothing listens but sshd, and no folder of a run is there.

        `before`: folders that an agent left that was killed in an earlier test.
        """
        for host in self.network.hosts:
            until(lambda host=host: not host.commands(), f"{host.name} is left alone")
            until(lambda host=host: host.listening() == {(host.address, 22)}, f"{host.name} listens to ssh alone")
        until(lambda: not folders or self.run_folders() <= before, "no folder of a run is left")
        until(lambda: not self.network.desk.listening(), "nobody listens at the desk")


@contextmanager
def listened_to(network, found):
    """Listen to the switch between the hosts to the end of the block; put into `found` what passed it meanwhile."""
    words = [sys.executable, "-I", "-c", textwrap.dedent(LISTEN)]
    command = ["nsenter", "-t", str(network.switch.pid), "-n", *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as listener:
        try:
            assert listener.stdout.readline() == "listening\n"
            yield
            found |= json.loads(listener.communicate("", timeout=ENOUGH)[0])
        finally:
            listener.kill()


def give_machine_code(host):
    """Let a host have what native convolutions were compiled to before on this machine, which else takes seconds."""
    there = host.home / ".cache" / "sparsepipe" / "kernels"
    there.mkdir(parents=True)
    for path in (user_cache() / "kernels").glob("*.code"):
        shutil.copy(path, there)


def desk_of(network, folder, kept=None):
    """Return the desk of a network, which has run "one": on one device, what others are held against.

    It is trained there, or taken from the folder `kept`, where others that are at it now leave it too.
    """
    desk = Desk(network, folder)
    kept = kept or folder / "kept"
    kept.mkdir(exist_ok=True)
    with (kept / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (kept / "one").exists():
            give_machine_code(network.desk)
            assert desk.launch(desk.told("one", plan_of(MODEL, [[0]], **FLUSH), config())) == ["finished"]
            shutil.copytree(network.desk.home / ".cache", kept / "cache")
            shutil.copytree(folder / "one", kept / "half")
            (kept / "half").rename(kept / "one")
    for host in (*network.hosts, network.desk):  # machine code, which each host else makes for itself
        shutil.copytree(kept / "cache", host.home / ".cache", dirs_exist_ok=True)
    if not (folder / "one").exists():
        shutil.copytree(kept / "one", folder / "one")
    return desk


def kept_of_all_workers(tmp_path_factory):
    """Return a folder for what all workers of pytest-xdist need and one makes; each call's own without xdist."""
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        (base.parent / "kept-hosts").mkdir(exist_ok=True)
        return base.parent / "kept-hosts"
    return base / "kept-hosts"


def config(**changes):
    return settings(DATA, **{"epochs": 2, "checkpoint_every": 1, **changes})
