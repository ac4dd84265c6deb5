"""Other load on the machine: what Linux counts becomes shares, what it does not tell stays unknown."""

import os

import pytest

from sparsepipe.util.host import background_load
from sparsepipe.util.host.background_load import BackgroundLoad, Usage, cpu_seconds, load_between, watched, worst

TICKS = os.sysconf("SC_CLK_TCK")


@pytest.fixture
def system(tmp_path, monkeypatch):
    """A /proc and a control group of two processors, both ours; the function writes what they say, in seconds."""
    monkeypatch.setattr(background_load, "_PROC", tmp_path)
    monkeypatch.setattr(background_load, "_CGROUP", tmp_path / "cgroup")
    monkeypatch.setattr(background_load, "processors_of", lambda: frozenset({0, 1}))
    (tmp_path / "cgroup" / "group").mkdir(parents=True)
    clock = []
    monkeypatch.setattr(background_load.time, "monotonic", lambda: clock[-1])
    monkeypatch.setattr(background_load.time, "process_time", lambda: clock[-1] / 2)

    def write(at, *, threads=(), busy=(0, 0), stolen=0.0, throttled=None):
        clock.append(float(at))
        for k, (ran, waited) in enumerate(threads):
            (tmp_path / "self" / "task" / str(k)).mkdir(parents=True, exist_ok=True)
            (tmp_path / "self" / "task" / str(k) / "schedstat").write_text(f"{ran * 1e9:.0f} {waited * 1e9:.0f} 7\n")
        counts = [f"cpu{k} {own * TICKS:.0f} 0 0 99 99 0 0 {stolen * TICKS:.0f} 0 0" for k, own in enumerate(busy)]
        others = [f"cpu 9999 {at * 99} 0 0 0 0 0 0", f"cpu2 {at * 99} 0 0 0 0 0 0 0", "ctxt 5"]  # not ours to use
        (tmp_path / "stat").write_text("\n".join(counts + others))
        if throttled is not None:
            (tmp_path / "self").mkdir(exist_ok=True)
            (tmp_path / "self" / "cgroup").write_text("3:memory:/x\n0::/group\n")
            told = f"nr_periods 9\nthrottled_usec {throttled * 1e6:.0f}\n"
            (tmp_path / "cgroup" / "group" / "cpu.stat").write_text(told)
        return Usage.now()

    return write


def test_what_the_system_counts_becomes_shares(system):
    """Ten seconds of two processors: one thread of ours ran 4 s and waited 1 s, processors were busy for 7 + 5 s."""
    start = system(100, threads=[(8, 3)], busy=(50, 60), stolen=1, throttled=2)
    end = system(110, threads=[(12, 4)], busy=(57, 65), stolen=2, throttled=2.5)
    assert load_between(start, end) == BackgroundLoad(
        run_queue_wait_share=pytest.approx(0.2),
        other_cpu_share=pytest.approx((12 - 5) / 20),  # our process ran half of the time
        steal_share=pytest.approx(0.1),  # of each processor
        throttled_share=pytest.approx(0.5 / 20),
    )
    assert load_between(start, end, ours=11).other_cpu_share == pytest.approx(1 / 20)
    assert load_between(start, end, ours=99).other_cpu_share == 0


def test_threads_that_begin_count_and_moments_do_not_tell_of_processors(system):
    start = system(100, threads=[(8, 3)])
    end = system(100.4, threads=[(8.1, 3.1), (0.1, 0.1)], busy=(1, 1))
    assert load_between(start, end) == BackgroundLoad(run_queue_wait_share=pytest.approx(0.5))


def test_where_nothing_is_told_everything_is_unknown(tmp_path, monkeypatch):
    monkeypatch.setattr(background_load, "_PROC", tmp_path / "none")
    monkeypatch.setattr(background_load, "_CGROUP", tmp_path / "none")
    monkeypatch.setattr(background_load, "LEAST_SECONDS", 0.0)
    with watched([os.getpid()]) as watch:
        pass
    assert watch.load == BackgroundLoad() and not watch.load.doubts()
    assert cpu_seconds(os.getpid()) == 0


def test_rubbish_in_the_files_is_unknown(system, tmp_path):
    start = system(100, threads=[(1, 1)], throttled=0)
    end = system(110, threads=[(2, 1)], throttled=0)
    for name in ("stat", "self/task/0/schedstat", "cgroup/group/cpu.stat", "self/cgroup"):
        (tmp_path / name).write_text("no such words\n\n")
    spoilt = Usage.now()
    assert load_between(start, end).other_cpu_share is not None
    assert load_between(start, spoilt) == BackgroundLoad()


def test_the_first_version_of_control_groups(system, tmp_path):
    usage = system(100, throttled=1)
    assert usage.throttled == 1
    (tmp_path / "self" / "cgroup").write_text("4:cpu,cpuacct:/jobs/7\n0::/group\n")
    (tmp_path / "cgroup" / "cpu").mkdir()
    (tmp_path / "cgroup" / "cpu" / "cpu.stat").write_text("throttled_time 3000000000\n")  # in a container: the top
    assert Usage.now().throttled == 3


def test_this_process_watches_itself():
    """It runs on Linux, or nothing is known: whatever the machine does meanwhile, shares are shares."""
    with watched() as watch:
        sum(range(10**6))
    assert all(share is None or 0 <= share <= 1 for share in watch.load.to_json().values())
    assert BackgroundLoad.from_json(watch.load.to_json()) == watch.load


def test_doubts_name_each_cause_and_its_share():
    load = BackgroundLoad(0.2, 0.4, 0.06, 0.5)
    assert load.doubts() == (
        "its threads waited for a processor 20% of the time",
        "other processes used 40% of the processors",
        "the hypervisor gave 6% of the processors to other machines",
        "the control group's quota held back 50% of the processors",
    )
    crowd = "its processes had 1.5 threads per processor"  # they may have waited for each other
    assert BackgroundLoad(0.2, 0.4, 0.06, 0.5, 1.5).doubts() == (*load.doubts()[1:], crowd)
    assert BackgroundLoad(0.2, threads_per_processor=1.5).doubts() == (crowd,)
    assert BackgroundLoad(0.02, threads_per_processor=1.0).doubts() == ()
    assert BackgroundLoad(0.04, 0.09, 0.04, 0.0).doubts() == BackgroundLoad().doubts() == ()


def test_the_worst_of_several():
    loads = [BackgroundLoad(0.2, None, 0.0), BackgroundLoad(0.1, 0.3)]
    assert worst(loads) == BackgroundLoad(0.2, 0.3, 0.0)
    assert worst([]) == BackgroundLoad()


@pytest.mark.parametrize("document", [{}, None, [0.5], {"steal_share": "much"}, {"other_cpu_share": None, "more": 1}])
def test_documents_without_numbers_are_unknown(document):
    assert BackgroundLoad.from_json(document) == BackgroundLoad()
