"""Intruders: at work where they are told to, gone with the block, with the process, and with who asked."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from coded import raises
from processes import until

from sparsepipe.cli import main
from sparsepipe.monitoring.interference import intruding
from sparsepipe.monitoring.interference.intruding import KINDS, run_intruders
from sparsepipe.monitoring.interference.victims import CPU
from sparsepipe.util.host.background_load import cpu_seconds, processors_of
from sparsepipe.util.host.imports import python_command, python_environment

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="processors are told apart on Linux")
CORE = min(processors_of(), default=0)
QUICK = "memory-streams"  # brings no torch


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def beside(pid: int) -> list[int]:
    """Living children of a process."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (path / "stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if int(parent) == pid and state != "Z":
            found.append(int(path.name))
    return found


def test_an_intruder_computes_on_its_processor_until_the_block_ends():
    with intruding([QUICK], cores=[CORE]) as (intruder,):
        assert os.sched_getaffinity(intruder.process.pid) == {CORE}
        before = cpu_seconds(intruder.process.pid)
        until(lambda: cpu_seconds(intruder.process.pid) > before + 0.2, "an intruder that computes")
    assert not alive(intruder.process.pid)


def test_an_intruder_waits_first_and_ends_by_itself():
    """It is ready when the block starts, so that what it uses before it begins is what its thread for stdin does."""
    with intruding([QUICK], cores=[CORE], after=600) as (intruder,):
        used = cpu_seconds(intruder.process.pid)
        time.sleep(1)
        assert cpu_seconds(intruder.process.pid) - used < 0.3
    with intruding([QUICK], cores=[CORE], seconds=0.2) as (intruder,):
        until(lambda: intruder.process.poll() is not None, "the end of an intruder")
        assert intruder.process.returncode == 0


def test_an_intruder_rests_until_it_is_told_to_begin_and_again():
    def used() -> float:
        return cpu_seconds(intruder.process.pid)

    with intruding([QUICK], cores=[CORE], resting=True) as (intruder,):
        for _ in range(2):
            at_rest = used()
            intruder.begin()
            until(lambda at_rest=at_rest: used() > at_rest + 0.2, "an intruder that computes")
            intruder.rest()
            until(lambda: _idle(used), "one that rests")
        intruder.process.kill()
        intruder.process.wait()
        with raises("intruder.gone", CORE):
            intruder.begin()


def test_an_intruder_that_takes_a_tenth_needs_ten_times_as_long():
    """At least: its neighbours may keep it from the processor for longer.

    It rests after a step: one under way, and what it used since its latest rest, are no tenth yet. A product of
    matrices takes milliseconds, on a slow processor more.
    """
    step = KINDS["matrix-products"](CPU)
    step()
    before = time.process_time()
    step()
    two_steps = 2 * (time.process_time() - before)
    with intruding(["matrix-products"], cores=[CORE], share=0.1) as (intruder,):
        began, before = time.monotonic(), cpu_seconds(intruder.process.pid)
        until(lambda: cpu_seconds(intruder.process.pid) > before + 0.1 + two_steps, "an intruder's steps")
        assert time.monotonic() - began > 0.5


def _idle(used) -> bool:
    before = used()
    time.sleep(0.3)
    return used() - before < 0.1


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_makes_steps(kind):
    said: list[str] = []
    assert run_intruders(kind, cores=[CORE], after=0, seconds=0.2, say=said.append)[CORE] > 0
    assert said == [f"{kind} on {CORE}: ready; begins in 0 s, for 0.2 s"]


def command(*arguments: str) -> list[str]:
    return python_command(
        "sparsepipe", "interference", "run", QUICK, "--cores", str(CORE), "--seconds", "600", *arguments
    )


def test_the_intruders_end_with_a_command_that_is_killed():
    verb = subprocess.Popen(command(), env=python_environment(), stderr=subprocess.PIPE)
    assert verb.stderr is not None and b"ready" in verb.stderr.readline()
    (intruder,) = beside(verb.pid)
    verb.send_signal(signal.SIGKILL)
    verb.communicate()
    until(lambda: not alive(intruder), "the end of an intruder")


def test_the_command_and_its_intruders_end_with_who_started_it():
    code = "import json, subprocess, sys, time; p = subprocess.Popen(json.loads(sys.argv[1]), stderr=subprocess.PIPE)"
    code += "\np.stderr.readline(); print(p.pid, flush=True); time.sleep(600)"
    asker = [sys.executable, "-c", code, json.dumps(command())]
    parent = subprocess.Popen(asker, env=python_environment(), stdout=subprocess.PIPE)
    assert parent.stdout is not None
    verb = int(parent.stdout.readline())
    (intruder,) = beside(verb)
    parent.kill()
    parent.communicate()
    until(lambda: not alive(verb) and not alive(intruder), "the end of the command")


def test_the_command_says_how_many_steps_were_made(capsys):
    assert main(["interference", "run", QUICK, "--cores", str(CORE), "--seconds", "0.2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["kind"] == QUICK and told["cores"] == [CORE] and told["steps"][str(CORE)] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense", "--cores", "0"], "invalid choice: 'nonsense'"),
        ([QUICK, "--cores", "9999"], "cores [9999] given, but this process can use"),
        ([QUICK, "--cores", "x"], "'x' is not a whole number"),
        ([QUICK, "--gpus", "9999"], "GPUs [9999] given, but"),
        ([QUICK, "--gpus", "0", "--cores", "0"], "not allowed with argument --gpus"),
        ([QUICK, "--cores", "0", "--seconds", "0"], "expected a number above 0"),
        ([QUICK, "--cores", "0", "--seconds", "1e9"], "seconds is 1e+09 seconds, expected 0 to 1e+06"),
        ([QUICK, "--cores", "0", "--after", "-1"], "expected a number from 0"),
        ([QUICK, "--cores", "0", "--share", "1.5"], "the workload's share is 1.5, expected more than 0 and at most 1"),
    ],
)
def test_bad_input_of_the_command_is_one_line(capsys, arguments, message):
    try:
        code = main(["interference", "run", *arguments])
    except SystemExit as ended:
        code = ended.code
    told = capsys.readouterr().err
    assert code == 2 and message in told and len(told.strip().splitlines()) == 1


def test_no_intruders_of_unknown_kinds_or_on_no_processor():
    with (
        raises("intruder.kind_unknown", "matrix-products", kind="x"),
        intruding(["x"], cores=[0]),
    ):
        pytest.fail("it began")
    with raises("intruder.core_unusable", "no cores"), intruding([QUICK], cores=[]):
        pytest.fail("it began")
