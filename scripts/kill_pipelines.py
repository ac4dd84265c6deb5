"""Kill parts of runs of several pipelines at random moments: `scripts/kill_pipelines.py [--runs 30] [--real]`.

Each run is a replay of a few seconds, of two or three pipelines under one of the rules that let the others go on, or
with --real a training. Any rank of any pipeline gets SIGKILL at a random moment, or the coordinator does. The run must
finish by itself; every minibatch must be done once an epoch; only what the killed pipeline had in flight may have been
taken twice; it must be back within seconds, and in a replay the others' pace must not fall below 0.9 of what it was
(but under wsp, whose bound lets nobody run far ahead of one that is gone until it is given up).

With --replan one of the pipelines is asked for another plan first, and a rank of any, a launcher, the coordinator or
the guard is killed while it changes; a run whose guard is killed is resumed. It must end on the old plan or the new.
After each run no process of it may be left, and every file be whole. Prints a line for each run, and what was killed,
resumed, left and unreadable in all; exits with 1 where one is not so.
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
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "tests")]

from pipeline_jobs import pipelines_of, replayed_pipelines  # noqa: E402
from processes import processes_of  # noqa: E402
from runtime_jobs import NORMED, settings, shapes  # noqa: E402

from scripts.bench.scratch import scratch  # noqa: E402
from scripts.kill_runs import torn  # noqa: E402
from sparsepipe.launching import Job, launch  # noqa: E402
from sparsepipe.launching.replan import request_replan  # noqa: E402
from sparsepipe.records import RunRecord  # noqa: E402
from sparsepipe.util.io.files import read_rows  # noqa: E402
from sparsepipe.values.plan import Plan  # noqa: E402

BOUNDED = "wsp"
RULES = ("partial-reduce", "local-sgd:every=4", "ad-psgd", "quorum", "diloco:every=8", BOUNDED)
SHAPES = ((1, 1), (1, 1, 1), (2, 1), (2, 2))  # stages of each pipeline
MINIBATCH_SECONDS = 0.04  # of a replayed pipeline's
WINDOW = 4.0  # seconds after the kill in which the others' pace is looked at
LEAST_PACE = 0.9  # of what it was before
LONGEST_WAIT = 120.0
MOVE_SECONDS = 1.5  # from when a pipeline is asked for another plan until it most often follows it
TO_END = 60.0  # seconds for the processes of a run that is over


@dataclass
class Killed:
    """What was killed, and when on the run's clock."""

    what: str
    pipeline: int | None
    seconds: float


def minibatches(record: RunRecord, event: str) -> list[dict[str, Any]]:
    """Return what happened to minibatches since the run began, or was last resumed."""
    path = record.folder / "minibatches.jsonl"
    rows = read_rows(path) if path.exists() else []
    begun = max((k for k, row in enumerate(rows) if row["event"] == "resume"), default=-1)
    return [row for row in rows[begun + 1 :] if row["event"] == event]


def kill_one(record: RunRecord, draw: random.Random, kind: str) -> Killed:
    """Kill a rank of a pipeline that has joined, the launcher of one, the coordinator, or the guard."""
    started = json.loads((record.folder / "logs" / "clock.json").read_text())["started"]
    if kind != "rank":
        pipeline = draw.randrange(len(record.pipelines)) if kind == "launcher" else None
        killed = record if pipeline is None else record.pipelines[pipeline]
        os.kill(_coordinator(record.folder) if kind == "coordinator" else killed.status[kind], signal.SIGKILL)
        return Killed(kind if pipeline is None else f"pipeline {pipeline} launcher", pipeline, time.time() - started)
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


def moved(plan: Plan, k: int) -> Plan:
    """Return a plan under which half of the layers of pipeline `k`'s first stage are its second stage's."""
    own = plan.local(k)
    first, second, *others = own.stages
    kept = len(first.layers) // 2
    stages = (
        replace(first, layers=first.layers[:kept]),
        replace(second, layers=first.layers[kept:] + second.layers),
        *others,
    )
    return plan.with_local(k, replace(own, stages=stages, estimate=None))


def resumed(job: Job, again: Callable[[], Job], totals: Counter[str]) -> Job:
    """Wait for a job, and resume the run if it does not finish by itself; return the job that did."""
    with suppress(Exception):
        job.wait(timeout=LONGEST_WAIT)
    if job.state == "finished":
        return job
    totals["resumes"] += 1
    job = again()
    job.wait(timeout=LONGEST_WAIT)
    return job


def left_and_torn(record: RunRecord, totals: Counter[str]) -> list[str]:
    """Return what a run that is over has left behind, and which of its files are not whole."""
    deadline = time.monotonic() + TO_END
    while (left := processes_of(record.folder)) and time.monotonic() < deadline:
        time.sleep(0.05)
    unreadable = [path for one in (record, *record.pipelines) for path in torn(one.folder)]
    totals["orphans"] += len(left)
    totals["unreadable files"] += len(unreadable)
    return [*(f"left: {words[:80]}" for words in left.values()), *(f"torn: {path}" for path in unreadable)]


def one_run(
    folder: Path, draw: random.Random, *, data: Path | None, coordinator: bool, replan: bool, totals: Counter[str]
) -> bool:
    """Run once; return whether all is as it must be."""
    rule, own = draw.choice(RULES), draw.choice([own for own in SHAPES if 2 in own] if replan else SHAPES)
    if data is None:
        minibatches_in_all = 400 * len(own)
        plan, config, profile, cluster = replayed_pipelines(own, rule=rule, seconds=MINIBATCH_SECONDS)
        config = config.replace(minibatches=minibatches_in_all, max_restarts=2, timeout_seconds=60.0)
        options: dict[str, Any] = {"profile": profile, "cluster": cluster, "run_dir": folder}
        epoch, epochs = minibatches_in_all, 1
    else:
        ranks, groups = iter(range(9)), []
        for count in own:
            groups.append([[next(ranks)] for _ in range(count)])
        plan = pipelines_of(NORMED, *groups, rule=rule)
        epoch, epochs = 5, 30
        config = settings(data, model=NORMED, epochs=epochs, momentum=0.0, max_restarts=2, checkpoint_every=5)
        options = {"run_dir": folder}
    job = launch(plan, config, **options)
    record, known = job.record, [plan]
    try:
        deadline = time.monotonic() + LONGEST_WAIT
        while len(record.metrics("step")) < 10 and job.running and time.monotonic() < deadline:
            time.sleep(0.05)
        kind = "coordinator" if coordinator else "rank"
        if replan:
            moving = draw.choice([k for k, count in enumerate(own) if count == 2])
            known.append(moved(plan, moving))
            request_replan(folder, known[1])
            kind = draw.choice(("rank", "rank", "rank", "launcher", "coordinator", "guard"))
        time.sleep(draw.uniform(0.0, MOVE_SECONDS if replan else 3.0))
        killed = kill_one(record, draw, kind)
        totals[f"kills of {kind}"] += 1
        if kind == "guard":
            job = resumed(job, lambda: launch(record.plan, config, resume=True, **options), totals)
        else:
            job.wait(timeout=LONGEST_WAIT)
    except Exception as error:
        job.cancel()
        print(f"FAULT {rule} {own}: {type(error).__name__}: {error}", flush=True)
        return False
    bounded = rule == BOUNDED
    steady = data is None and not replan  # a pipeline that has moved has another pace
    found, told = faults(record, killed, epoch=epoch, epochs=epochs, replay=steady, bounded=bounded)
    found += left_and_torn(record, totals)
    states = [str(one.status["state"]) for one in record.pipelines]
    found += [f"pipeline {k} {state}" for k, state in enumerate(states) if state != "finished"]
    if replan:
        told += f", on the {'new' if record.plan == known[1] else 'old'} plan"
        if record.plan not in known or any(record.plan.local(k) != one.plan for k, one in enumerate(record.pipelines)):
            found.append("another plan")
    state = "fault" if found else "ok"
    print(f"{state}: {rule} {own}, {killed.what} at {killed.seconds:.1f} s: {told}; {'; '.join(found)}", flush=True)
    return not found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--real", action="store_true", help="train instead of sleeping")
    parser.add_argument("--coordinator", action="store_true", help="kill the coordinator instead of a rank")
    parser.add_argument("--replan", action="store_true", help="kill while a pipeline changes its plan")
    arguments = parser.parse_args()
    draw, good, totals = random.Random(arguments.seed), 0, Counter[str]()
    with scratch("kill-pipelines") as place:
        data = shapes(place) if arguments.real else None
        for number in range(arguments.runs):
            folder = place / f"run{number}"
            how: dict[str, bool] = {"coordinator": arguments.coordinator, "replan": arguments.replan}
            ok = one_run(folder, draw, data=data, totals=totals, **how)
            good += ok
            if ok:
                shutil.rmtree(folder)
            else:
                shutil.copytree(folder, Path(tempfile.gettempdir()) / f"fault-{os.getpid()}-{number}")
    print(", ".join(f"{what}: {count}" for what, count in sorted(totals.items())))
    print(f"{good} of {arguments.runs} runs as they must be")
    return 0 if good == arguments.runs else 1


if __name__ == "__main__":
    sys.exit(main())
