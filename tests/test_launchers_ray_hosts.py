"""Runs on a Ray cluster of hosts that share only the code: ranks go where their types are; Ray is left as it was."""

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest
from hosts_desk import give_machine_code
from network_hosts import network_hosts
from processes import ENOUGH, until
from runtime_jobs import REPOSITORY, plan_of, shapes

from sparsepipe.files import cut_torn_row, read_rows

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
pytest.importorskip("ray", reason='no Ray: pip install "sparsepipe[cluster]"')

MODEL = "minkvgg11bn-narrow"
PORT = 6379
TYPES = ("slow", "fast")  # of the devices of ranks 0 and 1; hosts have them the other way round
COMMON = ("--block", "--disable-usage-stats", "--object-store-memory", str(80 * 2**20), "--temp-dir", "/run/ray")
ENVIRONMENT = {
    "HOME": "/run/home",  # where Ray's token is, too
    "RAY_AUTH_MODE": "token",
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": str(REPOSITORY),
}


def ray_start(host, *words):
    command = host.command([sys.executable, "-m", "ray.scripts.scripts", "start", *COMMON, *words])
    address = ["--node-ip-address", host.address]
    with (host.home / "ray.log").open("wb") as log:
        return subprocess.Popen(command + address, stdout=log, stderr=log, env=os.environ | ENVIRONMENT)


class Hosts:
    """A desk with Ray's head, which has no room for ranks, and two hosts with one device each."""

    def __init__(self, network, folder):
        self.network, self.folder, self.desk = network, folder, network.desk
        for host in (*network.hosts, network.desk):
            (host.home / ".ray").mkdir()
            (host.home / ".ray" / "auth_token").write_text("5" * 64)
            shutil.copytree(folder / "shapes", host.home / "shapes")
        plan = plan_of(MODEL, [[0], [1]], schedule="gpipe", weights="flush", num_microbatches=2)
        plan.save(folder / "two.json")
        plan_of(MODEL, [[0]], schedule="gpipe", weights="flush", num_microbatches=2).save(folder / "one.json")

    def words(self, name, plan, *more):
        """The command that trains, on the desk."""
        words = [sys.executable, "-m", "sparsepipe", "run", str(self.folder / f"{plan}.json"), "--model", MODEL]
        words += ["--data", "/run/home/shapes", "--voxel-size", "0.12", "--batch-size", "4", "--no-validation"]
        words += ["--threads", "1", "--run-dir", str(self.folder / name), "--json", *more]
        return words

    def on_ray(self, name, *more, types=TYPES):
        """The command that trains on nodes with these types: where they are, Ray knows."""
        nodes = (f'[[node]]\nname = "{kind}"\ndevices = [{{ type = "{kind}" }}]\n' for kind in types)
        path = self.folder / f"{name}.toml"
        path.write_text("\n".join(nodes))
        where = ["--launcher", "ray", "--ray-address", f"{self.desk.address}:{PORT}", "--cluster", str(path)]
        return self.words(name, "two", *where, *more)

    def run(self, words):
        done = self.desk.run(*words, timeout=ENOUGH, env=os.environ | ENVIRONMENT)
        return done.returncode, done.stdout, done.stderr

    def losses(self, name):
        path = self.folder / name / "metrics.jsonl"
        if not path.exists():
            return []
        cut_torn_row(path)
        return [row["loss"] for row in read_rows(path) if row["event"] == "step"]

    def pids(self, host, word):
        return [pid for pid, words in host.commands().items() if any(word in given for given in words)]

    def check_ray_alone_is_left(self):
        for host in self.network.hosts:
            until(lambda host=host: not self.pids(host, "sparsepipe."), f"{host.name} is left alone")
            left = host.home / ".local" / "state" / "sparsepipe" / "hosted"
            until(lambda left=left: not list(left.glob("run-*")), f"no run on {host.name}")
        assert all(self.pids(host, "raylet/raylet") for host in (*self.network.hosts, self.desk))


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hosts")
    shapes(folder)
    with network_hosts(2, folder) as network:
        hosts = Hosts(network, folder)
        begun = [ray_start(network.desk, "--head", "--port", str(PORT), "--num-cpus", "0", "--include-dashboard=false")]
        try:
            until(lambda: PORT in {port for _, port in network.desk.listening()}, "Ray's head")
            for host, kind in zip(network.hosts, reversed(TYPES), strict=True):
                where = ["--address", f"{network.desk.address}:{PORT}", "--num-cpus", "1", "--num-gpus", "0"]
                begun.append(ray_start(host, *where, "--labels", f"device={kind}"))
            give_machine_code(network.desk)
            code, _, said = hosts.run(hosts.words("one", "one", "--epochs", "2"))
            assert code == 0, said
            for host in network.hosts:  # machine code, which each host else makes for itself
                shutil.copytree(network.desk.home / ".cache", host.home / ".cache")
            logs = [host.home / "ray.log" for host in (*network.hosts, network.desk)]
            until(lambda: all("Ray runtime started" in log.read_text() for log in logs), "Ray's nodes")
            yield hosts
        finally:
            for process in begun:
                process.kill()
            for pid in network.desk.commands():
                os.kill(pid, signal.SIGKILL)
            for process in begun:
                process.wait()


def test_ranks_are_where_their_types_are_and_losses_those_of_one_device(hosts):
    code, out, said = hosts.run(hosts.on_ray("over", "--epochs", "2"))
    assert code == 0, said
    assert hosts.losses("over") == hosts.losses("one") and len(hosts.losses("over")) > 8
    log = (hosts.folder / "over" / "logs" / "launcher.log").read_text()
    assert "ranks 0: host2" in log and "ranks 1: host1" in log
    assert json.loads(out)
    hosts.check_ray_alone_is_left()
    code, _, said = hosts.run(hosts.on_ray("unlike", types=("x", "slow")))
    assert code == 2 and "label device=x" in said.splitlines()[-1], said
