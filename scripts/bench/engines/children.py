"""A part of the work in a process of its own, whose thread pools all have the size that is measured."""

import argparse
import json
import os
import subprocess
import sys
from typing import Any

from ..document import REPOSITORY
from .cases import Case

_COMMAND = REPOSITORY / "scripts" / "bench_engines.py"


def child_command(options: argparse.Namespace, threads: int, part: str, case: Case, *words: str) -> list[str]:
    """Return the command that does a part of the work for a case, as a child of this process."""
    command = [sys.executable, str(_COMMAND), "--threads", str(threads), "--child", part]
    command += ["--model", case.model, "--clouds", case.clouds, "--engines", *options.engines, *words]
    return command + ["--rounds", str(options.rounds), "--scratch", options.scratch, "--parts", *options.parts]


def run_child(options: argparse.Namespace, threads: int, part: str, case: Case, *words: str) -> dict[str, Any]:
    """Do a part of the work for a case in a process whose every thread pool has `threads` threads.

    One process a case: what an earlier one leaves of the heap is not the next one's matter.
    """
    pools = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    environment = os.environ | {name: str(threads) for name in pools}
    command = child_command(options, threads, part, case, *words)
    done = subprocess.run(command, check=False, env=environment, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"bench_engines: {part} of {case.name} failed; its traceback is above")
    return json.loads(done.stdout.splitlines()[-1])
