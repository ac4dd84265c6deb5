"""Ray's nodes on a network of hosts in namespaces (network_hosts.py), and runs launched there from the desk."""

import os
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager, redirect_stdout

from hosts_desk import AtDesk, give_machine_code
from processes import ENOUGH, until
from runtime_jobs import REPOSITORY, plan_of, shapes

from sparsepipe.cli.command import main
from sparsepipe.util.io.files import cut_torn_row, read_rows

MODEL = "minkvgg11bn-narrow"
FLUSH = {"schedule": "gpipe", "weights": "flush", "num_microbatches": 2}
PORT = 6379
_STARTED = "Ray runtime started"
# `ray start`, which gives its own processes 30 s of its clock: on a busy machine those are to be some minutes.
_START = """
import sys, time, types
from ray._private import node
node.time = types.SimpleNamespace(**{**vars(time), "monotonic": lambda: time.monotonic() / 10})
from ray.scripts.scripts import main
sys.exit(main())
"""
# Ports that are given are not waited for, which Ray does for 15 s and ends.
_PORTS = (
    "--dashboard-agent-listen-port",
    "52365",
    "--dashboard-agent-grpc-port",
    "52366",
    "--runtime-env-agent-port",
    "52367",
    "--metrics-export-port",
    "52368",
)
_COMMON = (
    "--block",
    *_PORTS,
    "--disable-usage-stats",
    "--object-store-memory",
    str(80 * 2**20),
    "--temp-dir",
    "/run/ray",
)
ENVIRONMENT = {
    "HOME": "/run/home",  # where Ray's token is, too
    "RAY_AUTH_MODE": "token",
    "RAY_agent_register_timeout_ms": "200000",
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": str(REPOSITORY),
}


def give_words(words, said):
    """Give the command its words, as in a process of its own: what it prints is `said`, the rest is for people."""
    os.environ |= ENVIRONMENT
    with said.open("w") as file, redirect_stdout(file):
        try:
            code = main(words)
        except SystemExit as end:  # of the parser
            code = end.code
    sys.stderr.flush()
    os._exit(code)


class RayHosts:
    """A desk with Ray's head, which has no room for ranks, and hosts with one device each."""

    def __init__(self, network, folder):
        self.network, self.folder, self.desk = network, folder, network.desk
        self._begun = []
        for host in (*network.hosts, network.desk):
            (host.home / ".ray").mkdir()
            (host.home / ".ray" / "auth_token").write_text("5" * 64)
            shutil.copytree(folder / "shapes", host.home / "shapes", dirs_exist_ok=True)

    def begin(self, types):
        """Start the head, and on each host a node whose device is of the type at its place."""
        self._start(self.desk, "--head", "--port", str(PORT), "--num-cpus", "0", "--include-dashboard=false")
        for host, kind in zip(self.network.hosts, types, strict=True):
            self.start_node(host, kind)

    def start_node(self, host, kind):
        where = ["--address", f"{self.desk.address}:{PORT}", "--num-cpus", "1", "--num-gpus", "0"]
        self._start(host, *where, "--labels", f"device={kind}")

    def end(self):
        for process in self._begun:
            process.kill()
        for pid in self.desk.commands():
            os.kill(pid, signal.SIGKILL)
        for process in self._begun:
            process.wait()

    def _start(self, host, *words):
        """Start a node and wait for it, one at a time."""
        command = host.command([sys.executable, "-c", _START, "start", *_COMMON, *words])
        path = host.home / "ray.log"
        with path.open("wb") as log:
            where = ["--node-ip-address", host.address]
            process = subprocess.Popen(command + where, stdout=log, stderr=log, env=os.environ | ENVIRONMENT)
        self._begun.append(process)
        until(lambda: _STARTED in path.read_text() or process.poll() is not None, f"Ray on {host.name}")
        assert process.poll() is None, path.read_text()

    # --- runs --------------------------------------------------------------------------------------------------------

    def words(self, name, plan, *more):
        """The words of the command that trains by the plan of that name, on the desk."""
        words = ["run", str(self.folder / f"{plan}.json"), "--model", MODEL]
        words += ["--data", "/run/home/shapes", "--voxel-size", "0.12", "--batch-size", "4", "--no-validation"]
        words += ["--threads", "1", "--run-dir", str(self.folder / name), "--json", *more]
        return words

    def on_ray(self, name, *more, types, plan="two"):
        """The command that trains on nodes whose devices are of these types, by rank: where they are, Ray knows."""
        nodes = (
            f'[[node]]\nname = "{kind}-{rank}"\ndevices = [{{ type = "{kind}" }}]\n' for rank, kind in enumerate(types)
        )
        path = self.folder / f"{name}.toml"
        path.write_text("\n".join(nodes))
        where = ["--launcher", "ray", "--ray-address", f"{self.desk.address}:{PORT}", "--cluster", str(path)]
        return self.words(name, plan, *where, *more)

    def run(self, words):
        with self.running(words) as process:
            out, said = process.communicate(ENOUGH)
            return process.poll(), out, said

    @contextmanager
    def running(self, words):
        """Run a command on the desk beside the block."""
        process = AtDesk(self.network, give_words, words, folder=self.folder)
        try:
            yield process
        finally:
            process.kill()

    def losses(self, name):
        path = self.folder / name / "metrics.jsonl"
        if not path.exists():
            return []
        cut_torn_row(path)
        rows = sorted((row for row in read_rows(path) if row["event"] == "step"), key=lambda row: row["minibatch"])
        assert [row["minibatch"] for row in rows] == list(range(len(rows))), "each minibatch once"
        return [row["loss"] for row in rows]

    def log(self, name):
        path = self.folder / name / "logs" / "launcher.log"
        return path.read_text() if path.exists() else ""

    def pids(self, host, word):
        return [pid for pid, words in host.commands().items() if any(word in given for given in words)]

    def check_ray_alone_is_left(self, hosts):
        for host in hosts:
            until(lambda host=host: not self.pids(host, "sparsepipe."), f"{host.name} is left alone")
            left = host.home / ".local" / "state" / "sparsepipe" / "hosted"
            until(lambda left=left: not list(left.glob("run-*")), f"no run on {host.name}")
        assert all(self.pids(host, "raylet/raylet") for host in (*hosts, self.desk))


@contextmanager
def ray_hosts(network, folder, types):
    """Yield hosts with Ray, once run "one" has ended on the desk: on one device, what others are held against."""
    shapes(folder)
    hosts = RayHosts(network, folder)
    for name, ranks in (("one", [[0]]), ("two", [[0], [1]]), ("three", [[0], [1], [2]])):
        plan_of(MODEL, ranks, **FLUSH).save(folder / f"{name}.json")
    try:
        give_machine_code(network.desk)
        code, _, said = hosts.run(hosts.words("one", "one", "--epochs", "2"))
        assert code == 0, said
        for host in network.hosts:  # machine code, which each host else makes for itself
            shutil.copytree(network.desk.home / ".cache", host.home / ".cache")
        hosts.begin(types)
        yield hosts
    finally:
        hosts.end()
