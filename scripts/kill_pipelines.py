"""Kill ranks of runs of several pipelines at random moments: `scripts/kill_pipelines.py [--runs 30] [--real]`.

Each run is a replay of a few seconds, of two or three pipelines under one of the rules that let the others go on, or
with --real a training. Any rank of any pipeline gets SIGKILL at a random moment, or the coordinator does. The run must
finish by itself; every minibatch must be done once an epoch; only what the killed pipeline had in flight may have been
taken twice; it must be back within seconds, and in a replay the others' pace must not fall below 0.9 of what it was
(but under wsp, whose bound lets nobody run far ahead of one that is gone until it is given up).
Prints a line for each run; exits with 1 where one is not so.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "tests")]

from pipeline_jobs import pipelines_of, replayed_pipelines  # noqa: E402
from processes import processes_of  # noqa: E402
from runtime_jobs import NORMED, settings, shapes  # noqa: E402

from scripts.bench.scratch import scratch  # noqa: E402
from sparsepipe.launching import launch  # noqa: E402
from sparsepipe.records import RunRecord  # noqa: E402
from sparsepipe.util.io.files import read_rows  # noqa: E402

BOUNDED = "wsp"
RULES = ("partial-reduce", "local-sgd:every=4", "ad-psgd", "quorum", "diloco:every=8", BOUNDED)
SHAPES = ((1, 1), (1, 1, 1), (2, 1), (2, 2))  # stages of each pipeline
MINIBATCH_SECONDS = 0.04  # of a replayed pipeline's
WINDOW = 4.0  # seconds after the kill in which the others' pace is looked at
LEAST_PACE = 0.9  # of what it was before
LONGEST_WAIT = 120.0


@dataclass
class Killed:
    """What was killed, and when on the run's clock."""

    what: str
    pipeline: int | None
    seconds: float


def minibatches(record: RunRecord, event: str) -> list[dict[str, Any]]:
    path = record.folder / "minibatches.jsonl"
    return [row for row in read_rows(path) if row["event"] == event] if path.exists() else []


def kill_one(record: RunRecord, draw: random.Random, *, coordinator: bool) -> Killed:
    """Kill a rank of a pipeline that has joined, or the coordinator."""
    started = json.loads((record.folder / "logs" / "clock.json").read_text())["started"]
    if coordinator:
        pid = _coordinator(record.folder)
        os.kill(pid, signal.SIGKILL)
        return Killed("coordinator", None, time.time() - started)
    paths = sorted(record.folder.glob("pipelines/*/logs/rank*.pid"))
    draw.shuffle(paths)
    for path in paths:
        with suppress(ProcessLookupError, ValueError):  # one that ended by itself, or is being started
            os.kill(int(path.read_text()), signal.SIGKILL)
            pipeline = int(path.parent.parent.name)
            return Killed(f"pipeline {pipeline} {path.stem}", pipeline, time.time() - started)
    raise RuntimeError("it ended before it was killed")


def _coordinator(folder: Path) -> int:
    for pid, command in processes_of(folder).items():
        if "sparsepipe.runtime.pipelines.service" in command:
            return pid
    raise RuntimeError("no coordinator")


def faults(
    record: RunRecord, killed: Killed, *, epoch: int, epochs: int, replay: bool, bounded: bool
) -> tuple[list[str], str]:
    """Return what is not as it must be, and the figures of the run in a few words."""
    found: list[str] = []
    steps = record.metrics("step")
    counts = Counter(row["minibatch"] for row in steps)
    expected = set(range(epoch * epochs))
    if set(counts) != expected or max(counts.values(), default=0) != 1:
        lost, twice = sorted(expected - set(counts)), sorted(m for m, n in counts.items() if n > 1)
        found.append(f"lost {lost[:5]}, twice {twice[:5]}")
    taken = Counter((row["epoch"], m) for row in minibatches(record, "taken") for m in row["minibatches"])
    again = {key for key, n in taken.items() if n > 1}
    back = {(row["epoch"], m) for row in minibatches(record, "put back") for m in row["minibatches"]}
    if not again <= back:
        found.append(f"taken twice though in flight nowhere: {sorted(again - back)[:5]}")
    told = f"{len(back)} put back"
    if killed.pipeline is not None:
        joined = [r["seconds"] for r in minibatches(record, "joined") if r["pipeline"] == killed.pipeline]
        later = [seconds for seconds in joined if seconds > killed.seconds]
        told += f", back after {later[0] - killed.seconds:.1f} s" if later else ", never back"
    if replay:
        for k in range(len(record.pipelines)):
            pace = _pace(steps, k, killed.seconds)
            if k != killed.pipeline and pace is not None:
                told += f", pipeline {k} at {pace:.2f}"
                if pace < LEAST_PACE and not bounded:
                    found.append(f"pipeline {k} fell to {pace:.2f} of its pace")
    return found, told


def _pace(steps: list[dict[str, Any]], pipeline: int, when: float) -> float | None:
    """A pipeline's minibatches a second after a moment, as a share of those before; None where it ended meanwhile."""
    times = sorted(row["seconds"] for row in steps if row["pipeline"] == pipeline)
    before = [t for t in times if t <= when][-int(WINDOW / MINIBATCH_SECONDS) :]
    after = [t for t in times if when < t <= when + WINDOW]
    if len(before) < 20 or len(after) < 10 or times[-1] < when + WINDOW:
        return None
    return ((len(after) - 1) / (after[-1] - after[0])) / ((len(before) - 1) / (before[-1] - before[0]))


def one_run(folder: Path, draw: random.Random, *, data: Path | None, coordinator: bool) -> bool:
    """Run once; return whether all is as it must be."""
    rule, own = draw.choice(RULES), draw.choice(SHAPES)
    if data is None:
        minibatches_in_all = 400 * len(own)
        plan, config, profile, cluster = replayed_pipelines(own, rule=rule, seconds=MINIBATCH_SECONDS)
        config = config.replace(minibatches=minibatches_in_all, max_restarts=2, timeout_seconds=60.0)
        job = launch(plan, config, run_dir=folder, profile=profile, cluster=cluster)
        epoch, epochs = minibatches_in_all, 1
    else:
        ranks, groups = iter(range(9)), []
        for count in own:
            groups.append([[next(ranks)] for _ in range(count)])
        plan = pipelines_of(NORMED, *groups, rule=rule)
        epoch, epochs = 5, 30
        config = settings(data, model=NORMED, epochs=epochs, momentum=0.0, max_restarts=2, checkpoint_every=5)
        job = launch(plan, config, run_dir=folder)
    record = job.record
    try:
        deadline = time.monotonic() + LONGEST_WAIT
        while len(record.metrics("step")) < 10 and job.running and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(draw.uniform(0.0, 3.0))
        killed = kill_one(record, draw, coordinator=coordinator)
        job.wait(timeout=LONGEST_WAIT)
    except Exception as error:
        job.cancel()
        print(f"FAULT {rule} {own}: {type(error).__name__}: {error}", flush=True)
        return False
    bounded = rule == BOUNDED
    found, told = faults(record, killed, epoch=epoch, epochs=epochs, replay=data is None, bounded=bounded)
    state = "fault" if found else "ok"
    print(f"{state}: {rule} {own}, {killed.what} at {killed.seconds:.1f} s: {told}; {'; '.join(found)}", flush=True)
    return not found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--real", action="store_true", help="train instead of sleeping")
    parser.add_argument("--coordinator", action="store_true", help="kill the coordinator instead of a rank")
    arguments = parser.parse_args()
    draw, good = random.Random(arguments.seed), 0
    with scratch("kill-pipelines") as place:
        data = shapes(place) if arguments.real else None
        for number in range(arguments.runs):
            folder = place / f"run{number}"
            ok = one_run(folder, draw, data=data, coordinator=arguments.coordinator)
            good += ok
            if ok:
                shutil.rmtree(folder)
            else:
                shutil.copytree(folder, Path(tempfile.gettempdir()) / f"fault-{os.getpid()}-{number}")
    print(f"{good} of {arguments.runs} runs as they must be")
    return 0 if good == arguments.runs else 1


if __name__ == "__main__":
    sys.exit(main())
