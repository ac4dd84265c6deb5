"""The Ray launcher's own process: a driver of Ray that has an agent on each host, and brings all together.

`python -m sparsepipe.launching.ray --run-dir DIR [--resume] [--address ADDRESS]`, under the supervisor, or under the
parent of several pipelines (ssh/hosted_parent.py), which is such a driver too:

    supervisor ── controller ─┬─ Ray ─ actor ── agent ── workers 0, 1        the rest is as over ssh (ssh/controller.py)
                              └─ Ray ─ actor ── agent ── workers 2, 3

Whichever of them ends, those to its right do: Ray ends a driver's actors with it, and an agent ends with its actor.

As a driver of Ray it is connected to a cluster that exists, or to a Ray of its own on this machine.
"""

import argparse
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import InputError
from ...records import RunRecord
from ...records.run_progress import num_processes
from ...runtime.config import DEVICES
from ...runtime.processes.signs_of_life import watch
from ...util.io.files import write_atomic
from ...values.cluster import Cluster
from ...values.plan import Plan
from ..failure_cause import FailureCause
from ..lock import hold, is_held
from ..ssh.controller import Restarting, controlled, of_several, parser_of
from .launch_ray import read_types

if TYPE_CHECKING:
    from .nodes import BundlesOfAll

TOKEN = "token"
_LONGEST = 30  # characters of the folder for temporary files: names of sockets end after 107, Ray's own are long
_TOKEN_BYTES = 32

_LOOPBACK = "127.0.0.1"
_OBJECT_STORE_BYTES = 80 * 2**20  # about the least that Ray takes: what goes through it is small
_OF_ITS_OWN = {  # a Ray that has one job on one machine
    # With this, Ray's processes are at 127.0.0.1; without it they move to an address that others reach.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_prestart_worker_first_driver": "0",  # a Python for each CPU, which nobody would use
    "RAY_enable_worker_prestart": "0",
    "RAY_memory_monitor_refresh_ms": "0",  # what is to end when memory is short, the kernel says, as elsewhere
    "RAY_gcs_server_port_wait_time_s": "120",  # a busy machine may take longer than the 30 s that Ray has for it,
    "RAY_agent_register_timeout_ms": "120000",  # and for this
}
_QUIET: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
_TRIES, _TOO_LATE = 3, "timed out"  # "during startup", "waiting for file": on a machine that is too busy
_RAYLET, _UNTOLD = "raylet", "dashboard_agent_listen_port"
_AGENT_PORTS = ("metrics_agent_port", "metrics_export_port", "runtime_env_agent_port", _UNTOLD)
_TOKEN_FILE = Path("~/.ray/auth_token")  # Ray's own place for it


@contextmanager
def connected(address: str | None, *, num_ranks: int, gpus: bool) -> Iterator[None]:
    """Be a driver of the cluster at `address`, to the end of the block. None: of one that is started here, for this.

    The one that is started here listens on the loopback interface alone, asks for a token that is new each time, and
    ends with this process, however that ends. Statistics of usage are never sent.
    Raises InputError in a line if there is no such cluster, or it refuses.
    """
    with ExitStack() as stack:
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # read where Ray is imported, as are the others
        if address is None:
            folder = stack.enter_context(session_folder())
            os.environ |= _OF_ITS_OWN | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(folder / TOKEN)}
            where: dict[str, Any] = {"num_cpus": num_ranks, "object_store_memory": _OBJECT_STORE_BYTES}
            where |= {"_node_ip_address": _LOOPBACK, "_temp_dir": str(folder), "include_dashboard": False}
            where |= {} if gpus else {"num_gpus": 0}
        else:
            prove(os.environ)
            where = {}
        stack.enter_context(_driver(address, where))
        yield


def prove(environment: MutableMapping[str, str]) -> None:
    """Have this driver show the token that the environment or Ray's own file names, which it does only where told to.

    Nothing is changed where the environment says already how it proves itself.
    """
    named = "RAY_AUTH_TOKEN" in environment or "RAY_AUTH_TOKEN_PATH" in environment
    if "RAY_AUTH_MODE" not in environment and (named or _TOKEN_FILE.expanduser().exists()):
        environment["RAY_AUTH_MODE"] = "token"


@contextmanager
def _driver(address: str | None, where: dict[str, Any]) -> Iterator[None]:
    import ray

    try:
        if address is None:
            start_here(ray, where)
        else:
            ray.init(address, **_QUIET)
    except Exception as error:  # Ray raises bare ones, too
        why = _line(error)
        if address is None:
            raise InputError("ray.not_started", f"Ray could not be started on this machine: {why}") from error
        raise InputError(
            "ray.not_reached",
            f"cannot reach the Ray cluster at {address}: {why}; check that it is running, that this machine is one "
            "of its nodes, and RAY_AUTH_TOKEN_PATH",
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def start_here(ray: Any, where: Mapping[str, Any]) -> None:
    """Start a Ray of this process's own; again where its processes are not up within the time that it gives them."""
    for tries_left in reversed(range(_TRIES)):
        others = _children()
        try:
            with _spared(ray):
                ray.init("local", **_QUIET, **where)
            return
        except Exception as error:  # what it says of time, it raises as a bare Exception and as a RuntimeError
            if not tries_left or _TOO_LATE not in str(error).lower():
                raise
            print(f"Ray was not up in time ({_line(error)}); it is started again", file=sys.stderr, flush=True)
        ray.shutdown()
        for pid in _children() - others:  # Ray forgets what it began of a node that did not come up
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _children() -> set[int]:
    """Return the processes that this one has started, on Linux; elsewhere nothing is known of them."""
    found: set[int] = set()
    for path in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # a thread that has ended meanwhile
            found |= {int(pid) for pid in path.read_text().split()}
    return found


def _line(error: Exception) -> str:
    """Return the first line that an error says anything in."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__


@contextmanager
def _spared(ray: Any) -> Iterator[None]:
    """Have `ray.init` start nothing that scales a cluster up or gathers its logs: two processes less on this machine.

    It has no option for that, as `ray start` has. Each takes two seconds of a core, and Ray gives those that a node
    needs 30 s to be there. The node's agents get ports, for a raylet waits 15 s for those that they choose themselves,
    which are too few on a busy machine, and ends. Of these processes Ray names the agent alone, and not the raylet.
    """
    parameter, services = ray._private.parameter, ray._private.services
    before = parameter.RayParams, services.start_ray_process
    ports = dict(zip(_AGENT_PORTS, _free_ports(len(_AGENT_PORTS)), strict=True))
    told, untold = ports | {"no_monitor": True, "include_log_monitor": False}, f"--{_UNTOLD}={ports[_UNTOLD]}"

    def parameters(**given: Any) -> Any:
        return before[0](**given | told)

    def start(command: list[str], process_type: str, *more: Any, **options: Any) -> Any:
        return before[1]([*command, untold] if process_type == _RAYLET else command, process_type, *more, **options)

    parameter.RayParams, services.start_ray_process = parameters, start
    try:
        yield
    finally:
        parameter.RayParams, services.start_ray_process = before


def _free_ports(count: int) -> list[int]:
    """Return so many ports that no one listens on at the loopback address."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server((_LOOPBACK, 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]


@contextmanager
def session_folder() -> Iterator[Path]:
    """Make a folder of this user's own, with a new token in it, to the end of the block.

    What was left by a process that was killed is removed first. Raises OSError.
    """
    place = Path(tempfile.gettempdir())
    place = place if len(str(place)) <= _LONGEST else Path("/tmp")
    _remove_stale(place)
    folder = Path(tempfile.mkdtemp(prefix=_prefix(), dir=place))
    lock = hold(folder)  # closed by the kernel where this process is killed
    try:
        write_atomic(folder / TOKEN, secrets.token_hex(_TOKEN_BYTES), private=True)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _remove_stale(place: Path) -> None:
    for folder in place.glob(f"{_prefix()}*"):
        with suppress(OSError):
            if folder.stat().st_uid == os.getuid() and (folder / TOKEN).exists() and not is_held(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _prefix() -> str:
    return f"sparsepipe-ray-{os.getuid()}-"


_CPU = DEVICES[0]
_LEAST_TO_PLACE = 60.0  # seconds for Ray to find another node for the ranks of one that was lost


def main(options: Sequence[str]) -> int:
    """Launch the workers of the run that the options name; return the exit code."""
    parser = parser_of("sparsepipe.launching.ray", __doc__)
    parser.add_argument("--address")
    parser.add_argument("--group", help="of one of several pipelines: the id of the placement group of all")
    parser.add_argument("--folder", help="of one of several pipelines: the agents' current one, unless their nodes'")
    arguments = parser.parse_args(options)
    watch()
    launch = _launch if arguments.pipeline is None else _launch_one_of_several
    return controlled(arguments, launch, _place_of_all)


def _launch(record: RunRecord, plan: Plan, arguments: argparse.Namespace) -> FailureCause | None:
    address = arguments.address
    types, gpus = read_types(record.folder, num_processes(record.folder, plan)), record.config["device"] != _CPU
    here, known = address is None, record.folder / "cluster.toml"
    with connected(address, num_ranks=len(types), gpus=gpus):
        from .nodes import NodesOfRay  # it brings Ray, which reads its settings then

        place = NodesOfRay(
            (None,) * len(types) if here else types,  # this one machine is all there is
            planned_for=Cluster.load(known) if known.exists() else None,
            gpus=gpus,
            folder=str(Path.cwd()) if here else None,
        )
        return Restarting(record, plan, place, resume=arguments.resume).run()


def _launch_one_of_several(record: RunRecord, plan: Plan, arguments: argparse.Namespace) -> FailureCause | None:
    all_of_them, gpus = Plan.load(record.folder.parents[1] / "plan.json"), record.config["device"] != _CPU
    with connected(arguments.address, num_ranks=len(plan.ranks), gpus=gpus):
        from .nodes import NodesOfPipeline  # these bring Ray, which reads its settings then
        from .placed_ranks import group_of

        to_place = max(_LEAST_TO_PLACE, float(record.config["timeout_seconds"]))
        group = group_of(arguments.group)
        place = NodesOfPipeline(
            all_of_them, arguments.pipeline, group, gpus=gpus, folder=arguments.folder, to_place=to_place
        )
        return of_several(record, plan, place, arguments)


@contextmanager
def _place_of_all(record: RunRecord, arguments: argparse.Namespace) -> "Iterator[BundlesOfAll]":
    """Have a bundle for each rank to the end of the block. Raises InputError if Ray has no room for them."""
    address, gpus = arguments.address, record.config["device"] != _CPU
    types, here = read_types(record.folder, len(record.plan.ranks)), address is None
    with connected(address, num_ranks=len(types), gpus=gpus):
        from .launch_ray import check_room, labels
        from .nodes import BundlesOfAll
        from .placed_ranks import address_of_ray, all_nodes, reserved

        types = (None,) * len(types) if here else types  # this one machine is all there is
        check_room(types, all_nodes(), gpus=gpus)
        now = reserved(labels(types), gpus=gpus)
        try:
            yield BundlesOfAll(now.group, address=address_of_ray(), folder=str(Path.cwd()) if here else None)
        finally:
            now.free()
