"""`python -m sparsepipe.runtime.replication.between_pipelines --run-dir RUN`: the parameter server's process.

It holds all layers, as pipelines have pushed them, for the rule that has a server. It ends when it is asked to
(SIGTERM), or when its parent ends. Killed and started again, it begins again from what the next to push has.
"""

import argparse
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import torch

from ....errors import InputError
from ....values.plan import Plan
from ....values.replication.base import SERVER
from ...failures import DeadlinePassed, PeerLost
from ...pipelines.base import Holder
from ...pipelines.client import connect
from ...processes.identity import Identity
from ...processes.run_folder import RunFolder
from ...processes.signs_of_life import watch
from ...wire.encryption import Encryption
from .parameter_server import Server, Store


def main() -> int:
    parser = argparse.ArgumentParser(prog=f"python -m {__package__}", description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True, help="folder of the whole run, with its plan.json")
    parser.add_argument("--attempt", type=int, default=0, help="how often it was started before")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds, the longest wait for another process")
    parser.add_argument("--encrypt", action="store_true", help="by the certificate in the run's folder")
    arguments = parser.parse_args()
    watch()
    try:
        encryption = Encryption.of_run(arguments.run_dir) if arguments.encrypt else None
        _serve(arguments.run_dir, arguments.attempt, timeout=arguments.timeout, encryption=encryption)
    except (InputError, DeadlinePassed, PeerLost, OSError) as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, InputError) else 1
    return 0


def _serve(run_dir: Path, attempt: int, *, timeout: float, encryption: Encryption | None) -> None:
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    RunFolder(run_dir).watch(lambda error: os._exit(1))
    torch.set_num_threads(1)
    plan = Plan.load(run_dir / "plan.json").pipelines[0]
    layers = tuple(layer for stage in plan.stages for layer in stage.layers)
    options: dict[str, Any] = {"timeout": timeout, "encryption": encryption}
    server = Server(Identity.from_environment().address, {}, {"push": Store()}, **options)
    try:
        coordinator = connect(run_dir, pipeline=SERVER, rank=0, attempt=attempt, **options)
        coordinator.register(Holder(SERVER, 0, layers, server.address))
        ended.wait()
    finally:
        server.close()


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # not sys.exit: threads that serve may be at work, and torch aborts where it finds them so
