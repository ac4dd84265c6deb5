"""How long it is from a launch to the first minibatch on three hosts: by ssh, by Ray, or all ranks on the desk."""

import json
import os
import statistics
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from hosts_desk import FLUSH, MODEL, Desk, config, give_machine_code
from network_hosts import Network
from ray_hosts_desk import ENVIRONMENT, PORT, RayHosts
from runtime_jobs import plan_of

from scripts.bench.document import say
from scripts.bench.rounds import load, quartiles

HOSTS = 3
LAUNCHERS = ("local", "ssh", "ray")
_SECONDS = 300.0  # for one of them: what takes longer is an error
_PROGRAM = """
    import json, sys, time
    from sparsepipe.values.cluster import Cluster
    from sparsepipe.launching import launch
    from sparsepipe.values.plan import Plan
    from sparsepipe.runtime import RunConfig
    told = json.loads(sys.argv[1])
    plan, config = Plan.load(told["plan"]), RunConfig.from_json(told["config"])
    where = {"launcher": told["launcher"], "ray_address": told["ray_address"]}
    where |= {"cluster": Cluster.load(told["cluster"]) if told["cluster"] else None}
    begun = time.monotonic()
    with launch(plan, config, run_dir=told["run_dir"], **{key: value for key, value in where.items() if value}) as job:
        while not any(row["event"] == "step" for row in job.poll()):
            if not job.running:
                job.wait()
            time.sleep(0.01)
        print(time.monotonic() - begun)
        job.cancel()
"""


def measured(network: Network, folder: Path, repeats: int) -> dict[str, Any]:
    """Launch a rank on each host and cancel it after a minibatch, `repeats` times; return what each launcher took.

    Ray's own processes, which take time of the same cores, are there for its launches alone.
    """
    desk, document = Desk(network, folder), {}
    for host in (*network.hosts, network.desk):
        give_machine_code(host)
    for launcher in LAUNCHERS[:-1]:
        document[launcher] = _measure(launcher, desk, repeats)
    rays = RayHosts(network, folder)
    try:
        rays.begin(["cpu"] * len(network.hosts))
        document["ray"] = _measure("ray", desk, repeats)
    finally:
        rays.end()
    return document


def _measure(launcher: str, desk: Desk, repeats: int) -> dict[str, Any]:
    """The seconds of each launch, after one that has everything read once."""
    runs, loads = [], []
    for repeat in range(repeats + 1):
        hosts = desk.network.hosts if launcher == "ssh" else ()
        plan = plan_of(MODEL, [[rank] for rank in range(HOSTS)], **FLUSH)
        told = desk.told(f"{launcher}-{repeat}", plan, config(epochs=10_000), *hosts)
        address = f"{desk.network.desk.address}:{PORT}" if launcher == "ray" else None
        told |= {"launcher": launcher, "ray_address": address}
        before = round(load(), 2)
        seconds = _first_minibatch(desk, told)
        say(f"{launcher}, {repeat}/{repeats}: {seconds:.2f} s to the first minibatch")
        if repeat:
            runs.append(seconds)
            loads.append(before)
    low, _, high = quartiles(runs)
    return {"seconds": statistics.median(runs), "low": low, "high": high, "runs": runs, "load": loads}


def _first_minibatch(desk: Desk, told: dict[str, Any]) -> float:
    command = desk.network.desk.command([sys.executable, "-P", "-c", textwrap.dedent(_PROGRAM), json.dumps(told)])
    environment = os.environ | ENVIRONMENT
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, env=environment, check=False)
    if done.returncode:
        raise RuntimeError(f"{told['launcher']}: {done.stderr.strip().splitlines()[-1]}")
    return float(done.stdout)
