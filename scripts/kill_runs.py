"""Kill parts of running jobs at random moments, and see that nothing is lost: `scripts/kill_runs.py [--runs 30]`.

Each run is a training of a few seconds, launched from a process of its own (the "kernel"). One of its workers, its
launcher, its guard or the kernel gets SIGKILL at a random moment. Where the launcher lives, the job must start again
from its last checkpoint and finish by itself; else it is resumed. With `--replan` its plan changes meanwhile, and a
worker is killed while it does: the job must end on the old plan or on the new. Then every loss must be that of a run
nobody disturbed, every file whole, and no process and no listening socket left (memory that ranks share has no name: it
goes with its processes). Prints a line for each run; exits with 1 where one is not so.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "tests")]

from processes import processes_of  # noqa: E402
from runtime_jobs import NORMED, PLAIN, plan_of, settings, shapes  # noqa: E402

from scripts.bench.scratch import scratch  # noqa: E402
from sparsepipe.errors import InputError  # noqa: E402
from sparsepipe.launching import launch  # noqa: E402
from sparsepipe.launching.replan import request_replan  # noqa: E402
from sparsepipe.records import RunRecord  # noqa: E402
from sparsepipe.runtime import RunConfig  # noqa: E402
from sparsepipe.runtime.training_state import checkpoint  # noqa: E402
from sparsepipe.values.plan import Plan  # noqa: E402

FLUSH = plan_of(PLAIN, [[0], [1]], schedule="1f1b-flush", num_microbatches=2)
CASES = {  # plan and settings
    "flush": (FLUSH, {}),
    "flush, sockets, adam": (FLUSH, {"shared_memory": False, "optimizer": "adam", "learning_rate": 1e-3}),
    "stash 2-1, asynchronous": (
        plan_of(PLAIN, [[0, 1], [2]], schedule="1f1b"),
        {"asynchronous_checkpoints": True},
    ),
    "zero-bubble, lamb": (
        plan_of(PLAIN, [[0], [1]], schedule="zero-bubble", num_microbatches=3),
        {"optimizer": "lamb", "learning_rate": 1e-3},
    ),
    "interleaved": (plan_of(PLAIN, [[0], [1]] * 2, schedule="1f1b-flush", num_microbatches=2), {}),
    "interleaved stash, sockets, asynchronous": (
        plan_of(PLAIN, [[0], [1]] * 2, schedule="1f1b"),
        {"shared_memory": False, "asynchronous_checkpoints": True},
    ),
    "synchronised batch norm": (
        plan_of(NORMED, [[0, 1]], schedule="1f1b"),
        {"model": NORMED, "synchronised_batch_norm": True},
    ),
}
_MOVE_SECONDS = 1.5  # from when a job is asked to go on under another plan until it most often has
MOVES = {  # what a job goes on under, which changes no sum: other cuts, another order of ranks, other schedules
    "flush": plan_of(PLAIN, [[1], [0]], cuts=(5,), schedule="1f1b-flush", num_microbatches=2),
    "flush, sockets, adam": plan_of(PLAIN, [[0], [1]] * 2, schedule="1f1b-flush", num_microbatches=2),
    "interleaved": plan_of(PLAIN, [[0], [1]], cuts=(9,), schedule="zero-bubble", num_microbatches=2),
}
KERNEL = """
import json, sys
from pathlib import Path
from sparsepipe.launching import launch
from sparsepipe.values.plan import Plan
from sparsepipe.runtime import RunConfig
request = json.loads(sys.argv[1])
job = launch(Plan.from_json(request["plan"]), RunConfig.from_json(request["config"]), run_dir=request["folder"])
try:
    job.wait()
except Exception as error:
    print(error)
"""


def losses(record: RunRecord) -> dict[int, float]:
    """Return the loss of each minibatch; a minibatch told twice is a fault."""
    rows = record.metrics("step")
    found = {row["minibatch"]: row["loss"] for row in rows}
    assert len(found) == len(rows), "a minibatch is told twice"
    return found


def sockets_of(pids: Iterable[int]) -> set[str]:
    """Return the inodes of the sockets that these processes have open."""
    found = set()
    for pid in pids:
        with suppress(OSError):  # it has just ended
            for link in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(OSError):
                    found.add(str(link.readlink()).removeprefix("socket:[").removesuffix("]"))
    return found


def listening(sockets: set[str]) -> set[str]:
    """Return the local addresses of those of `sockets` that listen."""
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()]
    return {columns[1] for columns in lines if columns[3] == "0A" and columns[9] in sockets}


def torn(folder: Path) -> list[str]:
    """Return the files of a record that are not whole."""
    found = []
    for path in folder.rglob("*.json"):
        try:
            json.loads(path.read_text())
        except ValueError:
            found.append(str(path))
    for path in folder.glob("*.jsonl"):
        try:
            [json.loads(line) for line in path.read_text().split("\n")[:-1]]
        except ValueError:
            found.append(str(path))
    for path in (folder / "checkpoints").glob("minibatch-*"):
        try:
            one = checkpoint.load(path)
            one.read(list(one.manifest["layers"]))
        except Exception as error:  # noqa: BLE001 - whatever it is, the checkpoint is not whole
            found.append(f"{path}: {error}")
    return found


def victim_of(kind: str, kernel: subprocess.Popen, folder: Path) -> int | None:
    """Return the process to kill, None where it is not there yet or any more."""
    if kind == "kernel":
        return kernel.pid if kernel.poll() is None else None
    try:
        if kind.startswith("rank"):
            pid = int((folder / "logs" / f"{kind}.pid").read_text())
        else:
            pid = RunRecord.load(folder).status[kind]
    except Exception:  # noqa: BLE001 - started a moment ago
        return None
    return pid if pid in processes_of(folder) else None  # it may be another's by now


def started(plan: Plan, config: RunConfig, folder: Path) -> subprocess.Popen:
    """Start a kernel that launches the run; it is the kernel's first, which takes its time to start."""
    request = {"plan": plan.to_json(), "config": config.to_json(), "folder": str(folder)}
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.Popen([sys.executable, "-P", "-c", KERNEL, json.dumps(request)], env=environment)


def disturbed(
    plan: Plan, config: RunConfig, folder: Path, kind: str, delay: float, *, move: Plan | None = None
) -> tuple[bool, list[str]]:
    """Run once with a kill; return whether there was anything to kill, and what was found wrong.

    `move`: what the job is asked to go on under once it trains; the kill comes `delay` seconds after.
    """
    kernel = started(plan, config, folder)
    if move is not None:
        asked(folder, kernel, move)
    time.sleep(delay)
    sockets = sockets_of(processes_of(folder))
    pid = victim_of(kind, kernel, folder)
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    kernel.wait(timeout=300)
    deadline = time.monotonic() + 60
    # A process that is ending has no name any more, and for a moment still its sockets.
    while ((left := processes_of(folder)) or listening(sockets)) and time.monotonic() < deadline:
        time.sleep(0.05)
    faults = [f"left behind: { {pid: words[:80] for pid, words in left.items()} }"] if left else []
    faults += [f"still listening: {sorted(found)}"] if (found := listening(sockets)) else []
    if not (folder / "plan.json").exists():
        return pid is not None, faults  # killed before there was a run
    faults += [f"torn: {path}" for path in torn(folder)]
    known = [plan, move] if move else [plan]
    faults += [] if RunRecord.load(folder).plan in known else ["another plan"]
    status = RunRecord.load(folder).status
    if status["state"] != "finished":
        if pid is None or kind.startswith("rank"):
            faults.append(f"did not finish by itself: {status.get('reason', status['state'])}")
        launch(plan, config, run_dir=folder, resume=True).wait(300)
        faults += [f"torn after resuming: {path}" for path in torn(folder)]
    return pid is not None, faults


def asked(folder: Path, kernel: subprocess.Popen, move: Plan) -> None:
    """Ask a job for another plan once it trains, if it does not end before."""
    while kernel.poll() is None:
        if (folder / "metrics.jsonl").exists() and RunRecord.load(folder).metrics("step"):
            with suppress(InputError):  # it has just ended
                request_replan(folder, move)
            return
        time.sleep(0.02)


def undisturbed(plan: Plan, config: RunConfig, folder: Path) -> tuple[dict[int, float], float]:
    """Run once; return the loss of each minibatch, and the seconds that all took."""
    start = time.monotonic()
    started(plan, config, folder).wait(300)
    return losses(RunRecord.load(folder)), time.monotonic() - start


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--replan", action="store_true", help="kill workers while their plan changes")
    parser.add_argument("--keep", type=Path, help="where to put the folders of runs that went wrong")
    options = parser.parse_args()
    chance, wrong = random.Random(options.seed), 0
    with scratch("kill-runs") as base:
        common = settings(shapes(base), epochs=options.epochs, max_restarts=2)
        whole: dict[str, tuple[dict[int, float], float]] = {}  # losses and seconds of runs nobody disturbed
        for number in range(options.runs):
            key = chance.choice(list(MOVES if options.replan else CASES))
            plan, config = CASES[key][0], replace(common, **CASES[key][1])
            if key not in whole:
                whole[key] = undisturbed(plan, config, base / f"whole-{len(whole)}")
            expected, seconds = whole[key]
            ranks = [f"rank{rank}" for rank in plan.ranks]
            kind = chance.choice(ranks if options.replan else [*ranks, *ranks, "launcher", "guard", "kernel"])
            delay = chance.uniform(0.0, _MOVE_SECONDS) if options.replan else chance.uniform(0.5, seconds + 2)
            folder = base / f"run-{number}"
            move = MOVES[key] if options.replan else None
            hit, faults = disturbed(plan, config, folder, kind, delay, move=move)
            if (folder / "plan.json").exists():
                try:
                    faults += [] if losses(RunRecord.load(folder)) == expected else ["losses differ"]
                except AssertionError as error:
                    faults.append(str(error))
            wrong += bool(faults)
            told = f"killed after {delay:.1f} s" if hit else f"not there after {delay:.1f} s"
            if move and (folder / "plan.json").exists():
                told += (
                    " of the move, on the new plan"
                    if RunRecord(folder).plan == move
                    else " of the move, on the old plan"
                )
            print(f"{number} {key}: {kind} {told}: {'; '.join(faults) or 'nothing lost'}", flush=True)
            if faults and options.keep:
                shutil.copytree(folder, options.keep / folder.name, dirs_exist_ok=True, ignore=_pipes)
            shutil.rmtree(folder, ignore_errors=True)
    print(f"{options.runs - wrong} of {options.runs} runs lost nothing")
    return 1 if wrong else 0


def _pipes(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if not (Path(folder) / name).is_file() and not (Path(folder) / name).is_dir()]


if __name__ == "__main__":
    sys.exit(main())
