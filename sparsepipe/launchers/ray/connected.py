"""This process as a driver of Ray, connected to a cluster that is there, or to a Ray of its own on this machine."""

import os
from collections.abc import Iterator, MutableMapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from ...errors import InputError
from .session_folder import TOKEN, session_folder

_LOOPBACK = "127.0.0.1"
_OBJECT_STORE_BYTES = 80 * 2**20  # about the least that Ray takes: what goes through it is small
_OF_ITS_OWN = {  # a Ray that has one job on one machine
    # With this, Ray's processes are at 127.0.0.1; without it they move to an address that others reach.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_prestart_worker_first_driver": "0",  # a Python for each CPU, which nobody would use
    "RAY_enable_worker_prestart": "0",
    "RAY_memory_monitor_refresh_ms": "0",  # what is to end when memory is short, the kernel says, as elsewhere
}
_TOKEN_FILE = Path("~/.ray/auth_token")  # Ray's own place for it


@contextmanager
def connected(address: str | None, *, num_ranks: int, gpus: bool) -> Iterator[None]:
    """Be a driver of the cluster at `address`, to the end of the block. None: of one that is started here, for this.

    The one that is started here listens on the loopback interface alone, asks for a token that is new each time, and
    ends with this process, however that ends. Statistics of usage are never sent.
    Raises InputError in a line where there is no such cluster, or it refuses.
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

    if address is None:
        _spare(ray)
    try:
        ray.init(address or "local", log_to_driver=False, configure_logging=False, **where)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:  # ConnectionError is an OSError
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        why = lines[0][:300] if lines else type(error).__name__
        if address is None:
            raise InputError(f"Ray could not be started on this machine: {why}") from error
        raise InputError(
            f"Ray's cluster at {address}: {why}; is it up, is this machine one of its nodes, and does "
            "RAY_AUTH_TOKEN_PATH name its token?"
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def _spare(ray: Any) -> None:
    """Have `ray.init` start nothing that scales a cluster up or gathers its logs: two processes less on this machine.

    It has no option for that, as `ray start` has. Each takes two seconds of a core, and Ray gives those that a node
    needs 30 s to be there.
    """
    known = ray._private.parameter
    known.RayParams = partial(known.RayParams, no_monitor=True, include_log_monitor=False)
