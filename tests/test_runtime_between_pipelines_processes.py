"""Pipelines, coordinator and parameter server in processes of their own: one pipeline is killed, restarts and joins."""

import json
import subprocess
import time
from contextlib import ExitStack
from itertools import count

import pytest
import torch
from averaging_process import train
from exchanging_pipelines import network, same_bits
from processes import ENOUGH
from runtime_jobs import rank_process

from sparsepipe.runtime import commands
from sparsepipe.util.host.imports import python_command, python_environment
from sparsepipe.util.io.files import read_rows, write_json
from sparsepipe.values.plan import Plan, Stage
from sparsepipe.values.replication import RULES, rule_to_json

CUTS = [(1, 3), (), (2,)]
KILLED = 2
RULES_TO_TRY = [
    RULES["partial-reduce"](),
    RULES["wsp"](every=2, bound=8),
    RULES["diloco"](every=4, momentum=0.5),
    RULES["ad-psgd"](),
]


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES_TO_TRY, ids=lambda rule: rule.name)
def test_a_killed_pipeline_joins_again_and_all_end_alike(rule, tmp_path):
    run = tmp_path / "run"
    for folder in ("control", "logs"):
        (run / folder).mkdir(parents=True)
    write_json(run / "rule.json", rule_to_json(rule))
    _write_plan(run, rule)
    with ExitStack() as stack:
        options = ["--pipelines", "3", "--replication", json.dumps(rule_to_json(rule)), "--launch", "0"]
        _start(stack, "sparsepipe.runtime.pipelines.service", "--run-dir", str(run), *options)
        if rule.name == "wsp":
            _start(stack, "sparsepipe.runtime.replication.between_pipelines", "--run-dir", str(run))
        pipelines = [_pipeline(stack, run, k, 0) for k in range(3)]
        _wait(lambda: _done(run, KILLED) >= 8, pipelines, run)
        pipelines[KILLED].kill()
        pipelines[KILLED].join(ENOUGH)
        done = _done(run, KILLED)
        pipelines[KILLED] = _pipeline(stack, run, KILLED, 1)
        _wait(lambda: _done(run, KILLED) >= done + 20 and _averages_again(run, after=done), pipelines, run)
        commands.ask(run, commands.STOP)
        for pipeline in pipelines:
            pipeline.join(ENOUGH)
            assert pipeline.exitcode == 0
    ends = [torch.load(run / f"weights-{k}.pt") for k in range(3)]
    assert same_bits(ends[0], ends[1]) and same_bits(ends[0], ends[2])
    for weight in ends[0].values():
        assert float((weight - 1).abs().mean()) < 0.2, "near the target"
    assert json.loads((run / f"joined-{KILLED}.json").read_text()) < 30, "at once, not when time is up"


def _write_plan(run, rule):
    layers, _, _ = network(0)
    plans, ranks = [], count()
    for cuts in CUTS:
        bounds = [0, *cuts, len(layers)]
        stages = [Stage(tuple(layers[a:b]), (next(ranks),)) for a, b in zip(bounds, bounds[1:], strict=False)]
        plans.append(Plan(tuple(stages)))
    Plan.together(tuple(plans), rule).save(run / "plan.json")


def _start(stack, module, *options):
    process = stack.enter_context(subprocess.Popen(python_command(module, *options), env=python_environment()))
    stack.callback(process.kill)


def _pipeline(stack, run, k, attempt):
    log = run / "logs" / f"pipeline{k}-{attempt}.log"
    process = rank_process(train, k, run, attempt, CUTS[k], log=log, more={"OMP_NUM_THREADS": "1"})
    process.start()
    stack.callback(process.join)
    stack.callback(process.kill)
    return process


def _done(run, pipeline):
    path = run / "minibatches.jsonl"
    return (
        sum(row["event"] == "done" and row["pipeline"] == pipeline for row in read_rows(path)) if path.exists() else 0
    )


def _averages_again(run, *, after):
    rows = read_rows(run / "merges.jsonl")
    own = [row for row in rows if row["event"] == "applied" and row["pipeline"] == KILLED and row.get("applied")]
    return any(row["update"] > after + 2 and not row.get("last") for row in own)


def _wait(ready, processes, run):
    deadline = time.monotonic() + ENOUGH
    while not ready():
        logs = [path.read_text()[-3000:] for path in sorted((run / "logs").iterdir())]
        assert time.monotonic() < deadline and all(process.is_alive() for process in processes), "\n".join(logs)
        time.sleep(0.05)
