"""Runs where Ray has room: the same losses, sockets on the loopback alone, and nothing left whoever is killed."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from coded import raises
from command_line import sparsepipe
from pipeline_jobs import OfFirstStage, pipelines_of
from processes import ENOUGH, until
from replayed_pipelines import Replay, same_ends
from runtime_jobs import NORMED, plan_of, settings, shapes
from strangers import knock

from sparsepipe import Cluster, DeviceType, InputError, Node, RunFailed
from sparsepipe.data.shapes import make_shapes
from sparsepipe.launching import attach, launch
from sparsepipe.launching.ray.controller import TOKEN, prove, session_folder, start_here
from sparsepipe.launching.ray.launch_ray import (
    bundle,
    check_room,
    devices_of,
    hosts_of,
    labels,
    pinned,
    read_types,
    write_types,
)
from sparsepipe.util.io.files import cut_torn_row, read_rows

MODEL = "minkvgg11-narrow"
FLUSH = {"schedule": "gpipe", "weights": "flush", "num_microbatches": 2}
NOTE = "ignore:the plan's memory need could not be checked before the run"  # of plans by hand, without a profile
DAWDLES = "jitter:p=1,seconds=0.1"  # of jobs that are only to be there: the processors are for what is waited for
_TEMPLATE = "sparsepipe.launching.local.template"  # ends with the process that launches


def node(id, address, hostname="h", cpus=1.0, gpus=0.0, kind=None, alive=True):
    """One of `ray.nodes()`."""
    labels = {"ray.io/node-id": id} | ({"device": kind} if kind else {})
    resources = {"CPU": cpus, "memory": 1e9} | ({"GPU": gpus} if gpus else {})
    where = {"NodeID": id, "NodeManagerAddress": address, "NodeManagerHostname": hostname}
    return where | {"Alive": alive, "Resources": resources, "Labels": labels}


def test_ranks_of_one_address_are_of_one_host_that_of_rank_0_first():
    nodes = [node("a", "10.0.0.1", "one"), node("b", "10.0.0.2", "two"), node("c", "10.0.0.2", "two")]
    hosts = hosts_of(["b", "a", "c"], nodes)
    assert [(host.node.name, host.node.address, host.ranks) for host in hosts] == [
        ("two", "10.0.0.2", (0, 2)),
        ("one", "10.0.0.1", (1,)),
    ]
    alike = [node("a", "10.0.0.1", "x"), node("b", "10.0.0.2", "x")]
    assert [host.node.name for host in hosts_of(["a", "b"], alike)] == ["10.0.0.1", "10.0.0.2"]


@pytest.mark.parametrize(
    ("types", "gpus", "told"),
    [
        ([None] * 4, False, None),
        ([None] * 5, False, "the plan needs 5 CPUs, but Ray's nodes have 4"),
        (["slow", "fast", "slow"], False, None),
        (["fast", "fast"], False, "the plan needs 2 CPUs of type 'fast' (label device=fast), but Ray's nodes have 1"),
        (["other"], False, "Ray's nodes have 0; plan for fewer ranks, or add nodes (ray start --address … --labels"),
        ([None], True, None),
        ([None] * 2, True, "the plan needs 2 GPUs, but Ray's nodes have 1"),
    ],
)
def test_ranks_that_ray_never_has_room_for_are_refused(types, gpus, told):
    nodes = [
        node("a", "10.0.0.1", cpus=3.0, kind="slow"),
        node("b", "10.0.0.2", cpus=1.0, gpus=2.0, kind="fast"),
        node("c", "10.0.0.3", cpus=9.0, gpus=9.0, alive=False),
    ]
    if told is None:
        check_room(types, nodes, gpus=gpus)
        return
    with pytest.raises(InputError) as refused:
        check_room(types, nodes, gpus=gpus)
    assert told in str(refused.value)
    assert bundle(gpus=gpus) == {"CPU": 1} | ({"GPU": 1} if gpus else {})


def test_nodes_that_were_lost_have_no_room():
    nodes = [node("a", "10.0.0.1", kind="slow"), node("b", "10.0.0.2", kind="slow")]
    check_room(["slow"], nodes, gpus=False, without={"a"})
    with raises("ray.too_few_devices", "CPUs of type 'slow'", "1", needed=2):
        check_room(["slow"] * 2, nodes, gpus=False, without={"a"})
    assert labels(["slow", None]) == [{"device": "slow"}, {}]
    assert labels(["slow", None], without={"b", "a"}) == [
        {"device": "slow", "ray.io/node-id": "!in(a,b)"},
        {"ray.io/node-id": "!in(a,b)"},
    ]
    assert pinned(["b", "a"]) == [{"ray.io/node-id": "b"}, {"ray.io/node-id": "a"}]


def test_types_are_asked_for_where_they_differ(tmp_path):
    unlike = Cluster((Node("a", (DeviceType("slow"), DeviceType("fast"), DeviceType("third"))),))
    (tmp_path / "control").mkdir()
    for cluster, types in ((unlike, ("slow", "fast")), (Cluster.uniform(2), (None, None)), (None, (None, None))):
        write_types(tmp_path, range(2), cluster)
        assert read_types(tmp_path, 2) == types
    known = Cluster((Node("a", (DeviceType("slow", 4e9), DeviceType("fast", 8e9))),))
    assert devices_of(("fast", "slow", "new"), known) == [
        DeviceType("fast", 8e9),
        DeviceType("slow", 4e9),
        DeviceType("new"),
    ]
    assert devices_of((None, None), known) == [DeviceType("slow", 4e9)] * 2


def test_a_session_leaves_nothing_and_removes_what_killed_ones_left(tmp_path, monkeypatch):
    place = Path(tempfile.mkdtemp(dir="/tmp"))
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    try:
        with session_folder() as live, session_folder() as second:
            assert (live / TOKEN).stat().st_mode & 0o777 == 0o600 and len((live / TOKEN).read_text()) == 64
            assert (live / TOKEN).read_text() != (second / TOKEN).read_text()
            shutil.copytree(live, killed := place / f"sparsepipe-ray-{os.getuid()}-killed")
            (place / "another").mkdir()
            with session_folder():
                assert live.exists() and second.exists() and not killed.exists()
        assert [path.name for path in place.iterdir()] == ["another"]
    finally:
        shutil.rmtree(place)


@pytest.mark.parametrize(
    ("environment", "mode"),
    [
        ({"RAY_AUTH_TOKEN_PATH": "/a/token"}, "token"),
        ({"RAY_AUTH_TOKEN": "t"}, "token"),
        ({"RAY_AUTH_TOKEN": "t", "RAY_AUTH_MODE": "disabled"}, "disabled"),
    ],
)
def test_a_token_that_is_there_is_shown(environment, mode):
    prove(environment)
    assert environment["RAY_AUTH_MODE"] == mode


class NeverThere:
    """A Ray that starts a process each time, and raises an error for the first few."""

    def __init__(self, *errors):
        self.errors, self.begun, self.commands = list(errors), [], []
        services = SimpleNamespace(start_ray_process=lambda command, *_: self.commands.append(command))
        self._private = SimpleNamespace(parameter=SimpleNamespace(RayParams=dict), services=services)

    def init(self, address, **_):
        self.begun.append(subprocess.Popen(["sleep", "600"]))
        parameters = self._private.parameter.RayParams(metrics_export_port=None)
        assert parameters["metrics_export_port"] and parameters["no_monitor"]
        self._private.services.start_ray_process(["raylet", "--x"], "raylet")
        self._private.services.start_ray_process(["gcs"], "gcs_server")
        port = parameters["dashboard_agent_listen_port"]
        assert self.commands[-2:] == [["raylet", "--x", f"--dashboard_agent_listen_port={port}"], ["gcs"]]
        if self.errors:
            raise self.errors.pop(0)

    def shutdown(self):
        """It knows nothing of what it began."""


def test_a_ray_that_was_not_up_in_time_is_started_again_and_what_it_began_is_ended(capsys):
    late = Exception("The current node timed out during startup."), RuntimeError("Timed out waiting for file /tmp/x")
    ray = NeverThere(*late)
    try:
        start_here(ray, {})
        assert [process.wait(ENOUGH) for process in ray.begun[:2]] == [-signal.SIGKILL] * 2
        assert len(ray.begun) == 3 and ray.begun[2].poll() is None
        told = capsys.readouterr().err.splitlines()
        assert ray._private.parameter.RayParams is dict
        assert len(told) == 2 and all(str(error) in line for error, line in zip(late, told, strict=True))
        for errors, count in (((late[0],) * 4, 3), ((ValueError("no such option"),), 1)):
            refusing = NeverThere(*errors)
            with pytest.raises(type(errors[0]), match=str(errors[0])):
                start_here(refusing, {})
            ray.begun += refusing.begun
            assert len(refusing.begun) == count
    finally:
        for process in ray.begun:
            process.kill()
            process.wait()


def test_without_ray_one_line_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)  # as Python has it for what is not to be imported
    plan_of(MODEL, [[0], [1]]).save(tmp_path / "plan.json")
    data = make_shapes(tmp_path / "shapes", num_train=2, num_test=1, seed=0)
    words = ["run", tmp_path / "plan.json", "--model", MODEL, "--data", data, "--run-dir", tmp_path / "run"]
    code, out, lines = sparsepipe(*words, "--launcher", "ray")
    assert (code, out, len(lines)) == (2, "", 1) and 'pip install "sparsepipe[cluster]"' in lines[0]
    code, _, lines = sparsepipe(*words, "--ray-address", "10.0.0.1:6379")
    assert code == 2 and lines[-1].endswith("[option.of_ray]")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    code, _, lines = sparsepipe(*words, "--launcher", "ray", "--on-lost-host", "wait")
    assert code == 2 and lines[-1].endswith("[option.of_ray]")
    assert not (tmp_path / "run").exists()


def test_what_cannot_run_there_is_refused_before_anything_is_started(tmp_path):
    pytest.importorskip("ray", reason='no Ray: pip install "sparsepipe[cluster]"')
    plan, config = plan_of(MODEL, [[0], [1]], **FLUSH), settings(tmp_path)
    for options, told in (
        ({"ray_address": "ray://10.0.0.1:10001"}, "is a client address"),
        ({"port": 4711}, "a port requires launcher='local'"),
        ({"cluster": Cluster.uniform(1)}, "uses rank 1, but the cluster has 1 device;"),
    ):
        with pytest.raises(InputError, match=told):
            launch(plan, config, run_dir=tmp_path / "run", launcher="ray", **options)
    twice = pipelines_of(NORMED, [[0]], [[0]], rule="partial-reduce")
    with raises("plan.rank_in_two_pipelines", "rank 0"):
        launch(twice, config.replace(model=NORMED), run_dir=tmp_path / "run", launcher="ray")
    assert not (tmp_path / "run").exists()


def starts_ray(test):
    """Mark a test that starts Ray, which gives its own processes 30 s: on a busy machine it is tried again, aloud."""
    test = pytest.mark.flaky(reruns=2, only_rerun=["timed out during startup"])(test)
    return pytest.mark.slow(pytest.mark.timeout(900)(test))


class Machine:
    """This machine, with a folder for temporary files by which all processes of a test's jobs are known."""

    def __init__(self, folder: Path, place: Path) -> None:
        self.folder, self.place = folder, place
        self.data = shapes(folder)

    def launch(self, name, ranks=((0,), (1,)), *, launcher="ray", **changes):
        shutil.rmtree(self.folder / name, ignore_errors=True)
        config = settings(self.data, **{"epochs": 2, "checkpoint_every": 1, **changes})
        return launch(plan_of(MODEL, ranks, **FLUSH), config, run_dir=self.folder / name, launcher=launcher)

    def losses(self, name):
        cut_torn_row(self.folder / name / "metrics.jsonl")
        rows = [row for row in read_rows(self.folder / name / "metrics.jsonl") if row["event"] == "step"]
        rows.sort(key=lambda row: row["minibatch"])
        assert [row["minibatch"] for row in rows] == list(range(len(rows))), "each minibatch once"
        return [row["loss"] for row in rows]

    def steps(self, name):
        metrics = self.folder / name / "metrics.jsonl"
        return metrics.read_text().count('"event": "step"') if metrics.exists() else 0

    def processes(self):
        """Commands by process id: who was started with this folder for temporary files, by Ray or for it."""
        mark, found = f"TMPDIR={self.place}".encode(), {}
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (path / "environ").read_bytes().split(b"\0"):
                    found[int(path.name)] = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue  # ended, or another user's
        return {pid: command for pid, command in found.items() if command and _TEMPLATE not in command}

    def listening(self):
        """Addresses, as the kernel writes them, and ports at which those processes listen."""
        inodes = set()
        for pid in self.processes():
            for path in Path(f"/proc/{pid}/fd").glob("*"):
                try:
                    inodes.add(path.readlink().name)
                except OSError:
                    continue
        rows = [line.split() for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()]
        found = [row[1].partition(":") for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in inodes]
        return {(address, int(port, 16)) for address, _, port in found}

    def check_nothing_is_left(self):
        until(lambda: not self.processes(), "the end of all processes")
        assert not [path for path in self.place.iterdir() if (path / TOKEN).exists()]


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    pytest.importorskip("ray", reason='no Ray: pip install "sparsepipe[cluster]"')
    place = Path(tempfile.mkdtemp(dir="/tmp"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(place))
        patch.delenv("RAY_ADDRESS", raising=False)
        yield Machine(tmp_path_factory.mktemp("ray"), place)
    shutil.rmtree(place)


@starts_ray
def test_the_losses_are_those_of_one_device_to_the_bit_and_sockets_are_on_the_loopback_alone(machine):
    """Over a rank that is killed, a restart, another plan, and a process that attaches and asks the job to stop."""
    again = {"stragglers": f"kill:rank=1,at=7;{DAWDLES}", "max_restarts": 1, "epochs": 10_000}
    with machine.launch("over", **again) as job:
        until(lambda: not job.running or machine.steps("over") > 10, "minibatches")
        assert job.running, job.record.status
        places = machine.listening()
        assert {address[-8:] for address, _ in places} == {"0100007F"}, "127.0.0.1, of IPv6 or not"
        told = knock({("127.0.0.1", port) for _, port in places}, 80, seconds=0.5)
        assert sum(facts["unheard"] == 80 for facts in told.values()) >= 2, "gloo's, of two ranks"
        steps = machine.steps("over")
        until(lambda: not job.running or machine.steps("over") > steps + 5, "more minibatches")
        assert "rank 1" in (machine.folder / "over" / "logs" / "launcher.log").read_text()
        other = plan_of(MODEL, [[1], [0]], cuts=(5,), **FLUSH)
        with pytest.warns(UserWarning, match=NOTE.removeprefix("ignore:")):
            first = job.replan(other)
        assert job.record.plan == other
        until(lambda: not job.running or machine.steps("over") > first, "minibatches under it")
        attach(machine.folder / "over").stop()
        done = job.wait(ENOUGH)["minibatches"]
        assert job.state == "stopped" and done > first
    machine.launch("one", [[0]], launcher="local", epochs=10_000, minibatches=done, checkpoint_every=0).wait(ENOUGH)
    assert machine.losses("over") == machine.losses("one")
    assert {span.rank for span in job.record.trace().spans} == {0, 1}
    machine.check_nothing_is_left()


@starts_ray
@pytest.mark.parametrize(("killed", "words"), [("driver", "sparsepipe.launching.ray "), ("raylet", "raylet/raylet ")])
def test_whoever_is_killed_nobody_is_left(machine, monkeypatch, killed, words):
    with machine.launch(killed, epochs=10_000, stragglers=DAWDLES) as job:
        until(lambda: not job.running or machine.steps(killed) > 1, "minibatches")
        assert job.running, job.record.status
        (pid,) = (
            pid for pid, command in machine.processes().items() if words in command and "supervisor" not in command
        )
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(RunFailed) as failed:
            job.wait(ENOUGH)
    assert "\n" not in str(failed.value)
    if killed == "driver":  # its folder is left to the next
        until(lambda: not machine.processes(), "the end of all")
        monkeypatch.setattr(tempfile, "tempdir", str(machine.place))
        with session_folder():
            pass
    machine.check_nothing_is_left()


@starts_ray
@pytest.mark.filterwarnings(NOTE)
def test_several_pipelines_of_which_one_moves_are_replayed_to_the_same_bits(machine):
    """A driver of Ray for each beside that of their parent, on the loopback, through TLS; nothing is left of them."""
    options = {"rule": "local-sgd:every=2,overlap=false", "schedule": "1f1b-flush", "num_microbatches": 1}
    plan, other = (pipelines_of(NORMED, [[0]], [[1], [2]], cuts={1: (cut,)}, **options) for cut in (5, 11))
    own = settings(machine.data, model=NORMED, epochs=6, momentum=0.0, encrypt=True)
    own = own.replace(stragglers="jitter:p=1,seconds=0.3")
    shutil.rmtree(machine.folder / "several", ignore_errors=True)
    with launch(plan, own, run_dir=machine.folder / "several", launcher="ray") as job:
        until(lambda: not job.running or machine.steps("several") > 2, "minibatches")
        assert job.running, job.record.status
        assert {address[-8:] for address, _ in machine.listening()} == {"0100007F"}
        first = job.replan(other)
        assert job.record.plan == other
        summary = job.wait(ENOUGH)
    assert [(row["pipeline"], row["minibatch"]) for row in summary["replans"]] == [(1, first)]
    result = OfFirstStage(machine.folder / "several")
    replay = Replay(result, pipelines_of(NORMED, [[0]], [[1]], **options), own, epoch_minibatches=5)
    same_ends(result, replay.run())
    assert [one.status["state"] for one in job.record.pipelines] == ["finished"] * 2
    machine.check_nothing_is_left()
