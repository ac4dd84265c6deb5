"""Kill parts of running jobs at random moments, and see that nothing is lost: `scripts/kill_runs.py [--runs 30]`.

Each run is a training of a few seconds, launched from a process of its own (the "kernel"). One of its workers, its
launcher, its guard or the kernel gets SIGKILL at a random moment. Where the launcher lives, the job starts again from
its last checkpoint by itself; else it is resumed. Then every loss must be that of a run nobody disturbed, every file
whole, and no process, port or shared memory left. Prints a line for each run; exits with 1 where one is not so.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "tests")]

from runtime_jobs import PLAIN, plan_of, settings, shapes  # noqa: E402

from sparsepipe.launchers import launch  # noqa: E402
from sparsepipe.plan import Plan  # noqa: E402
from sparsepipe.record import RunRecord  # noqa: E402
from sparsepipe.runtime import RunConfig, checkpoint  # noqa: E402

PLANS = {
    "flush": plan_of(PLAIN, [[0], [1]], schedule="1f1b-flush", num_microbatches=2),
    "stash 2-1": plan_of(PLAIN, [[0, 1], [2]], schedule="1f1b"),
    "zero-bubble": plan_of(PLAIN, [[0], [1]], schedule="zero-bubble", num_microbatches=3),
    "interleaved": plan_of(PLAIN, [[0], [1]] * 2, schedule="1f1b-flush", num_microbatches=2),
    "interleaved stash": plan_of(PLAIN, [[0], [1]] * 2, schedule="1f1b"),
}
KERNEL = """
import json, sys
from pathlib import Path
from sparsepipe.launchers import launch
from sparsepipe.plan import Plan
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


def processes(folder: Path) -> list[str]:
    """Return the living processes whose command line names the run's folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            state = (path / "stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        if str(folder) in command and state != "Z" and int(path.name) != os.getpid():
            found.append(f"{path.name} {command[:80]}")
    return found


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
        return kernel.pid
    try:
        if kind.startswith("rank"):
            return int((folder / "logs" / f"{kind}.pid").read_text())
        return RunRecord.load(folder).status.get(kind)
    except Exception:  # noqa: BLE001 - started a moment ago
        return None


def disturbed(plan: Plan, config: RunConfig, folder: Path, kind: str, delay: float) -> str:
    """Run once with a kill; return what was found wrong, empty where nothing was."""
    request = {"plan": plan.to_json(), "config": config.to_json(), "folder": str(folder)}
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    kernel = subprocess.Popen([sys.executable, "-c", KERNEL, json.dumps(request)], env=environment)
    time.sleep(delay)
    pid = victim_of(kind, kernel, folder)
    if pid is not None:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pid = None
    kernel.wait(timeout=120)
    deadline = time.monotonic() + 10
    while (left := processes(folder)) and time.monotonic() < deadline:
        time.sleep(0.05)
    faults = [f"left behind: {left}"] if left else []
    if not (folder / "plan.json").exists():
        return "; ".join(faults)  # killed before there was a run
    faults += [f"torn: {path}" for path in torn(folder)]
    if RunRecord.load(folder).status["state"] != "finished":
        launch(plan, config, run_dir=folder, resume=True).wait(120)
        faults += [f"torn after resuming: {path}" for path in torn(folder)]
    return "; ".join(faults)


def _shared_memory() -> set[str]:
    """Return what is shared now, but for what a browser on this machine shares."""
    return {path.name for path in Path("/dev/shm").iterdir() if not path.name.startswith(".org.chromium")}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--keep", type=Path, help="where to put the folders of runs that went wrong")
    options = parser.parse_args()
    chance, wrong = random.Random(options.seed), 0
    with tempfile.TemporaryDirectory(prefix="kill-runs-") as name:
        base = Path(name)
        config = settings(shapes(base), epochs=options.epochs, max_restarts=2)
        expected, seconds = {}, {}
        for key, plan in PLANS.items():
            start = time.monotonic()
            job = launch(plan, config, run_dir=base / f"whole-{key.replace(' ', '-')}")
            job.wait(300)
            expected[key], seconds[key] = losses(job.record), time.monotonic() - start
        shared = _shared_memory()
        for number in range(options.runs):
            key = chance.choice(list(PLANS))
            ranks = [f"rank{rank}" for rank in PLANS[key].ranks]
            kind = chance.choice([*ranks, *ranks, "launcher", "guard", "kernel"])
            delay = chance.uniform(0.5, seconds[key] + 2)
            folder = base / f"run-{number}"
            fault = disturbed(PLANS[key], config, folder, kind, delay)
            if (folder / "plan.json").exists():
                try:
                    same = losses(RunRecord.load(folder)) == expected[key]
                    fault += "" if same else "; losses differ"
                except AssertionError as error:
                    fault += f"; {error}"
            if new := _shared_memory() - shared:
                fault += f"; shared memory left: {sorted(new)}"
            wrong += bool(fault)
            print(f"{number} {key}: {kind} killed after {delay:.1f} s: {fault or 'nothing lost'}", flush=True)
            if fault and options.keep:
                shutil.copytree(folder, options.keep / folder.name, dirs_exist_ok=True, ignore=_pipes)
            shutil.rmtree(folder, ignore_errors=True)
    print(f"{options.runs - wrong} of {options.runs} runs lost nothing")
    return 1 if wrong else 0


def _pipes(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if not (Path(folder) / name).is_file() and not (Path(folder) / name).is_dir()]


if __name__ == "__main__":
    sys.exit(main())
