"""Launch where Ray has room: a supervisor here, under it a driver of Ray, which has an agent on each host."""

import json
import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Unpack

from ...errors import InputError
from ...runtime import RunConfig
from ...runtime.wire.encryption import check_openssl
from ...runtime.workloads.resolved import ResolvedRun
from ...util.host.cpu import check_threads
from ...util.host.imports import check_current_folder, python_command, python_environment
from ...util.io.fields import texts
from ...util.io.files import read_json, write_atomic
from ...values.cluster import Cluster, DeviceType, Node
from ...values.plan import Plan
from ..base import Asked
from ..followed_job import FollowedJob
from ..local.launch_local import attach, check_workers, followed, supervised
from ..prepare import for_hosts, prepare
from ..ssh.launch_ssh import HostedRanks, all_ranks, check_ranks

_TYPES = Path("control") / "device_types.json"


def write_types(run_dir: Path, ranks: Sequence[int], cluster: Cluster | None) -> None:
    """Write the types of a job's ranks by `cluster`; none if they are identical, for any node will do."""
    types = [cluster.devices[rank].type.name for rank in ranks] if cluster else []
    write_atomic(run_dir / _TYPES, json.dumps(types if len(set(types)) > 1 else []) + "\n")


def read_types(run_dir: Path, num_ranks: int) -> tuple[str | None, ...]:
    """Return the type of each rank's device, None for any. Raises InputError if the file is damaged."""
    found = texts(read_json(run_dir / _TYPES), str(_TYPES))
    return tuple(found) if found else (None,) * num_ranks


def devices_of(types: Sequence[str | None], known: Cluster) -> list[DeviceType]:
    """Return the device of each rank, given its type, None if all are identical, and a cluster that has such
    devices.
    """
    by_name = {device.type.name: device.type for device in known.devices}
    alike = known.devices[0].type
    return [alike if kind is None else by_name.get(kind, DeviceType(kind)) for kind in types]


__all__ = ["attach", "launch"]


def launch(
    plan: Plan,
    run: ResolvedRun,
    *,
    port: int | None = None,
    detach: bool = False,
    ray_address: str | None = None,
    forward_only: Path | str | None = None,
    **asked: Unpack[Asked],
) -> FollowedJob:
    """Start the workers of `plan` on nodes of the Ray cluster at `ray_address`, one of which is this machine.

    `ray_address`: "10.0.0.1:6379", or "auto" for the cluster that was started on this machine; RAY_ADDRESS unless
    given. If neither names one, a Ray of the job's own is started here, on the loopback interface alone, and ends
    with it. Each rank has a CPU of Ray's and, with device "cuda", a GPU. `cluster` says of which type the device of
    each rank is: if there are several, nodes are those with the label device=TYPE (`ray start --labels`). Its
    addresses are not used. Ranks on one node share memory; data are read on each node, by the path or the manifest's
    name that the settings have, or as brought from here. `detach`: the job outlives this process; `attach` finds it
    again. `forward_only`: as on one machine; the weights are brought to the nodes. Several pipelines have a bundle for
    each of their ranks, and a node of Ray's that one of them loses is treated as a host is over ssh
    (ssh/launch_ssh.py); Ray has a minute, or `timeout_seconds` where that is longer, to find another for its
    ranks.
    Raises InputError if Ray is not installed, and for a plan or settings that cannot run there, before anything is
    started.
    """
    if find_spec("ray") is None:
        raise InputError(
            "ray.not_installed", 'launcher ray needs Ray, which is not installed; run pip install "sparsepipe[cluster]"'
        )
    resume, cluster = asked.get("resume", False), asked.get("cluster")
    address = _address(ray_address or os.environ.get("RAY_ADDRESS"))
    count = for_hosts(plan, port=port, run_dir=asked["run_dir"], resume=resume)
    ranks = all_ranks(plan) if plan.members else range(count)
    check_ranks(ranks, len(cluster.devices) if cluster else 1 + ranks[-1])
    _check_here(run.config, count, address)
    elsewhere = address is not None or bool(plan.members)
    record, locks = prepare(plan, run, forward_only=forward_only, elsewhere=elsewhere, **asked)
    write_types(record.folder, ranks, cluster)
    options = ["--run-dir", str(record.folder), *(["--resume"] if resume else [])]
    options += ["--address", address] if address else []
    command = python_command("sparsepipe.launching.ray", *options)
    begin = supervised(record, locks, command, python_environment(), detach=detach)
    return followed(record, locks, begin, resume=resume, detach=detach)


def _check_here(config: RunConfig, count: int, address: str | None) -> None:
    """Raise InputError for what this machine, or Ray's cluster at `address`, keeps a job of `count` ranks from."""
    if config.encrypt:
        check_openssl()
        if address is not None and os.environ.get("RAY_USE_TLS") != "1":
            raise InputError(
                "ray.in_clear",
                "encrypt requires a Ray cluster started with RAY_USE_TLS=1, because the job's secret passes through "
                "Ray; set it on the cluster and here, or use {launcher}",
                setting={"launcher": "ssh"},
            )
    if address is None:
        check_threads(config.threads)
        check_workers(count)
    check_current_folder()


def _address(told: str | None) -> str | None:
    """Return the address of a cluster, None if Ray is to be started here. Raises InputError for one of a client."""
    if not told or told == "local":
        return None
    if "://" in told:
        raise InputError(
            "ray.client_address",
            f"Ray address {told!r} is a client address; start the run on a node of the cluster, with an address such "
            "as 10.0.0.1:6379, or auto",
        )
    return told


LABEL = "device"
_NODE = "ray.io/node-id"  # Ray's own label


def bundle(*, gpus: bool) -> dict[str, float]:
    """Return the resources of one rank."""
    return {"CPU": 1, **({"GPU": 1} if gpus else {})}


def labels(types: Sequence[str | None], *, without: Collection[str] = ()) -> list[dict[str, str]]:
    """Return which labels the node of each rank is to have: that of its type, and an id that is none of `without`."""
    elsewhere = {_NODE: f"!in({','.join(sorted(without))})"} if without else {}
    return [({} if kind is None else {LABEL: kind}) | elsewhere for kind in types]


def pinned(ids: Sequence[str]) -> list[dict[str, str]]:
    """Return labels that put each rank on the node whose id stands at the rank's place in the list."""
    return [{_NODE: id} for id in ids]


def check_room(
    types: Sequence[str | None], nodes: Sequence[Mapping[str, Any]], *, gpus: bool, without: Collection[str] = ()
) -> None:
    """Raise InputError if Ray's nodes never have room for the ranks, whatever else they are at.

    `types`: of each rank's device, None for any; `nodes` are as `ray.nodes()` has them, those of `without` left out.
    """
    alive = [node for node in nodes if node["Alive"] and node["NodeID"] not in without]
    for kind, needed in Counter(types).items():
        rooms = [_room(node, gpus=gpus) for node in alive if kind is None or node.get("Labels", {}).get(LABEL) == kind]
        if sum(rooms) < needed:
            of_kind = "" if kind is None else f" of type {kind!r} (label {LABEL}={kind})"
            what, remedy = ("GPUs", "--num-gpus") if gpus else ("CPUs", "--num-cpus")
            more = remedy if kind is None else f"--labels {LABEL}={kind}"
            raise InputError(
                "ray.too_few_devices",
                f"the plan needs {needed} {what}{of_kind}, but Ray's nodes have {sum(rooms)}; plan for fewer ranks, "
                f"or add nodes (ray start --address … {more})",
                needed=needed,
            )


def _room(node: Mapping[str, Any], *, gpus: bool) -> int:
    """Return the number of ranks that fit on a node."""
    return int(min(node["Resources"].get(name, 0.0) / amount for name, amount in bundle(gpus=gpus).items()))


def hosts_of(node_of_rank: Sequence[str], nodes: Sequence[Mapping[str, Any]]) -> tuple[HostedRanks, ...]:
    """Return the hosts with their ranks, that of rank 0 first, given the id of each rank's node.

    Nodes of one address are one host: their ranks share its memory.
    """
    known = {node["NodeID"]: node for node in nodes}
    own: dict[str, list[int]] = {}
    for rank, id in enumerate(node_of_rank):
        own.setdefault(known[id]["NodeManagerAddress"], []).append(rank)
    called = {node["NodeManagerAddress"]: node["NodeManagerHostname"] for node in nodes}
    names = [called[address] for address in own]
    return tuple(
        HostedRanks(
            Node(
                called[address] if names.count(called[address]) == 1 else address,
                (DeviceType("device"),) * len(ranks),
                address=address,
                ssh=called[address],
            ),
            tuple(ranks),
        )
        for address, ranks in own.items()
    )
