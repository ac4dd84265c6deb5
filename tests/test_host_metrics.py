"""What the machine says: counters of a process that computes, of one that sleeps, and of one that is gone."""

import os
import subprocess
import sys
import time
from pathlib import Path
from subprocess import PIPE

import pytest
from coded import raises
from nvml_library import BUSY, FIRST, UUID, answering
from processes import until

from sparsepipe.util.host import machine_watch
from sparsepipe.util.host.background_load import cpu_seconds
from sparsepipe.util.host.machine_watch import MachineWatch, gpu_metrics, library, stalled_seconds

linux = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="Linux tells; other systems have no /proc")


def computing() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "print(flush=True)\nwhile True: pass"], stdout=PIPE)


@linux
def test_a_process_that_computes_is_told_from_one_that_sleeps():
    busy = computing()
    idle = subprocess.Popen([sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"], stdout=PIPE)
    try:
        begun(busy, idle)
        with MachineWatch(busy.pid) as of_busy, MachineWatch(idle.pid) as of_idle:
            until_it_ran(busy)
            first, second = of_busy.read(), of_idle.read()
    finally:
        ended(busy, idle)
    assert first["ran"] > 3 * second["ran"]
    assert first["ran"] < os.cpu_count() + 0.1 and 0 <= first["waited"] <= 1
    assert second["busy anywhere"] > second["ran"]  # the other one
    assert first.keys() == second.keys()


@linux
def test_processes_at_the_same_work_are_no_intruders():
    other = computing()
    try:
        begun(other)
        with MachineWatch() as with_it, MachineWatch(ours=[other.pid]) as without:
            until_it_ran(other)
            told, left = with_it.read(), without.read()
    finally:
        ended(other)
    assert left["busy anywhere"] < told["busy anywhere"]


def begun(*processes: subprocess.Popen[bytes]) -> None:
    assert all(process.stdout is not None and process.stdout.readline() for process in processes)


def until_it_ran(process: subprocess.Popen[bytes], seconds: float = 0.5) -> None:
    """Wait until a process has had so many seconds of a processor: on a busy machine that takes a while."""
    before = cpu_seconds(process.pid)
    until(lambda: cpu_seconds(process.pid) > before + seconds, "a process that computes")


def ended(*processes: subprocess.Popen[bytes]) -> None:
    for process in processes:
        process.kill()
        process.communicate()


@linux
def test_readings_have_the_same_names_and_a_process_that_is_gone_is_told():
    process = computing()
    with MachineWatch(process.pid) as watch:
        begun(process)
        until_it_ran(process, 0.1)
        names = watch.read().keys()
        time.sleep(0.2)
        assert watch.read().keys() == names
        process.kill()
        process.communicate()
        with raises("watch.process_gone", process.pid):
            watch.read()


def test_pressure_is_read_in_seconds(tmp_path):
    (tmp_path / "cpu").write_text(
        "some avg10=1.10 avg60=1.83 avg300=12.10 total=23763874\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=1\n"
    )
    (tmp_path / "memory").write_text("some avg10=0.00 avg60=0.00 avg300=0.00 total=5\nfull avg10=0.00 total=2000000\n")
    assert stalled_seconds(tmp_path) == {"cpu some": 23.763874, "memory some": 5e-6, "memory full": 2.0}
    assert stalled_seconds(tmp_path / "nothing") == {}


def test_a_gpu_says_what_it_does_and_no_gpu_says_nothing():
    if library() is None:
        assert gpu_metrics(0) == gpu_metrics("GPU-0") == {}
        with MachineWatch() as without, MachineWatch(gpu=0) as asked:
            assert asked.read().keys() == without.read().keys(), "a machine without one keeps its CPU metrics"
    else:
        told = gpu_metrics(0)
        assert 0 <= told["gpu busy share"] <= 1 and 0 < told["gpu memory used share"] < 1
        assert gpu_metrics(10_000) == {}


def test_a_gpus_gauges_are_shares_watts_megahertz_and_kilobytes():
    assert gpu_metrics(UUID, answering(BUSY)) == gpu_metrics(f"GPU-{UUID}", answering(BUSY))
    assert gpu_metrics(UUID, answering(BUSY)) == {
        "gpu busy share": 0.87,
        "gpu memory busy share": 0.41,
        "gpu memory used share": 0.25,
        "gpu watts": 412.345,
        "gpu graphics clock MHz": 1980,
        "gpu sm clock MHz": 1965,
        "gpu memory clock MHz": 2619,
        "gpu pcie sent kB/s": 1250,
        "gpu pcie received kB/s": 3500,
    }


def test_gauges_that_a_gpu_lacks_are_left_out_and_one_that_is_not_there_says_nothing():
    assert gpu_metrics(0, answering(BUSY)) == {"gpu busy share": 0, "gpu memory busy share": 0}
    assert gpu_metrics(1, answering(BUSY)) == gpu_metrics("another", answering(BUSY)) == {}
    divided = {("nvmlDeviceGetHandleByUUID", b"MIG-1"): FIRST, ("nvmlDeviceGetPowerUsage", FIRST): 70_000}
    assert gpu_metrics("1", answering(divided)) == {"gpu watts": 70}


def test_a_process_on_a_gpu_is_read_with_its_gauges(monkeypatch):
    monkeypatch.setattr(machine_watch, "library", lambda: answering(BUSY))
    with MachineWatch(gpu=UUID) as watch, MachineWatch() as without:
        told = watch.read()
        assert told["gpu watts"] == 412.345
        assert told.keys() - without.read().keys() == gpu_metrics(UUID, answering(BUSY)).keys()
