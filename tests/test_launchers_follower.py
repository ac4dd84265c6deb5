"""Whoever waits for a job gets an answer, whatever happens to the files that are followed."""

import errno
import fcntl
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from coded import raises
from processes import ENOUGH, until
from runtime_jobs import PLAIN, plan_of

from sparsepipe import InputError
from sparsepipe.launching import attach
from sparsepipe.launching.followed_job import FollowedJob, KeptRows, Tail
from sparsepipe.launching.handle import AttachedProcess
from sparsepipe.launching.lock import LOCK, hold, is_held
from sparsepipe.launching.supervisor import read_status, tell_begun, tell_status
from sparsepipe.records import RunRecord

SUMMARY = {"event": "summary", "run_dir": "run", "minibatches": 3, "samples_per_second": 1.0}


@pytest.fixture
def record(tmp_path) -> RunRecord:
    """A run that is at work as far as its folder says; this process holds the lock."""
    record = RunRecord(tmp_path / "run")
    (record.folder / "logs").mkdir(parents=True)
    plan_of(PLAIN, [[0], [1]]).save(record.folder / "plan.json")
    record.write_status("running")
    return record


class Held:
    """A guard in name: at work until it is told to end."""

    def __init__(self) -> None:
        self.ended = threading.Event()

    def alive(self) -> bool:
        return not self.ended.is_set()

    def wait(self, seconds: float) -> None:
        self.ended.wait(seconds / 10)

    def stop(self) -> None:
        self.ended.set()

    def last_words(self) -> None:
        return None

    def let_go(self) -> None:
        pass


def test_a_run_that_has_ended_says_so_as_soon_as_it_is_attached(record):
    """The launch board of a new kernel offered to change the plans of jobs that had ended."""
    (record.folder / "metrics.jsonl").write_text(json.dumps(SUMMARY) + "\n", encoding="utf-8")
    record.write_status("finished")
    for _ in range(20):
        job = attach(record.folder)
        assert not job.running
        assert (job.state, [row["event"] for row in job.rows]) == ("finished", ["summary"])


def _write(record: RunRecord, *rows: dict) -> None:
    with (record.folder / "metrics.jsonl").open("a") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows))


def _rubbish(path: Path, what: str) -> None:
    if what == "a row that is no JSON":
        path.write_bytes(path.read_bytes() + b"garbage\n")
    elif what == "bytes that are no UTF-8":
        path.write_bytes(path.read_bytes() + b"\xff\xfe\n[1]\n7\n" + b"[" * 100_000 + b"\n" + b'{"event": 5}\n')
    elif what == "cut to nothing":
        os.truncate(path, 0)
    elif what == "a FIFO":
        path.unlink()
        os.mkfifo(path)
    elif what == "a folder":
        path.unlink()
        path.mkdir()
    elif what == "removed":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes() + b"x" * 9_000_000 + b"\n")


DAMAGES = (
    "a row that is no JSON",
    "bytes that are no UTF-8",
    "cut to nothing",
    "a FIFO",
    "a folder",
    "removed",
    "long",
)


@pytest.mark.filterwarnings("ignore:.*skipped, not a valid row")
@pytest.mark.parametrize("what", DAMAGES)
def test_damaged_metrics_neither_end_nor_hang_the_wait(record, what: str) -> None:
    """The follower met an exception, and nobody ever said that the job had ended."""
    _write(record, {"event": "step", "minibatch": 0, "epoch": 0})
    guard = Held()
    job = FollowedJob(record, guard)
    while not job.rows:
        time.sleep(0.01)
    _rubbish(record.folder / "metrics.jsonl", what)
    if what == "cut to nothing":  # whoever looks only once it is as long as before again cannot know
        until(lambda: job._tail._place == 0, "it is seen")
    time.sleep(0.1)
    assert job.running
    if (record.folder / "metrics.jsonl").is_file():
        _write(record, SUMMARY)
    record.write_status("finished")
    guard.stop()
    seen: list[dict] = []
    if what in ("a FIFO", "a folder", "removed"):
        with raises("run.no_summary", "finished"):
            job.wait(timeout=ENOUGH, on_row=seen.append)
    else:
        assert job.wait(timeout=ENOUGH, on_row=seen.append) == SUMMARY
        assert seen[-1] == SUMMARY == job.poll()[-1]
    assert not job.running


def test_lines_that_are_no_rows_are_told_of_once(record) -> None:
    _write(record, SUMMARY)
    (record.folder / "metrics.jsonl").write_bytes(b"a\nb\n" + (record.folder / "metrics.jsonl").read_bytes())
    record.write_status("finished")
    job = FollowedJob(record, guard := Held())  # now: it reads on from where it was, whatever is put before that
    guard.stop()
    with pytest.warns(UserWarning, match="metrics.jsonl.*2"):
        assert job.wait(timeout=ENOUGH) == SUMMARY


@pytest.mark.parametrize("status", ["{", "[]", "7", '{"state": 5}', "", "[" * 100_000, None])
def test_a_damaged_status_ends_the_wait_with_its_name(record, status: str | None) -> None:
    path = record.folder / "status.json"
    if status is None:
        path.unlink()
        os.mkfifo(path)
    else:
        path.write_text(status)
    job = FollowedJob(record, guard := Held())
    guard.stop()
    with raises("run.failed", "run: its end is unknown", "status.json is damaged") as caught:
        job.wait(timeout=ENOUGH)
    assert "\n" not in str(caught.value) and not job.running and job.state == "unknown"


def test_no_descriptors_for_a_moment_are_nothing_new_yet(record, monkeypatch) -> None:
    """The launching process was short of files for a second, and the follower died of it."""
    _write(record, SUMMARY)
    lock, real, short = hold(record.folder), os.open, threading.Event()
    short.set()

    def scarce(path, *arguments, **options):
        if short.is_set() and str(path).startswith(str(record.folder)):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))
        return real(path, *arguments, **options)

    monkeypatch.setattr(os, "open", scarce)
    job = FollowedJob(record, AttachedProcess(record))
    time.sleep(0.3)
    assert job.running, "a lock that cannot be looked at now may be held"
    short.clear()
    record.write_status("finished")
    os.close(lock)
    assert job.wait(timeout=ENOUGH) == SUMMARY


def test_a_follower_that_fails_ends_the_wait_with_the_reason(record, monkeypatch) -> None:
    monkeypatch.setattr(Tail, "read", lambda self: 1 / 0)
    monkeypatch.setattr(threading, "excepthook", lambda args: None)
    job = FollowedJob(record, Held())
    with raises("run.failed"):
        job.wait(timeout=ENOUGH)


def test_a_run_whose_folder_was_removed_is_said_to_be_gone(record) -> None:
    job = FollowedJob(record, guard := Held())
    record.folder.rename(record.folder.with_name("moved"))
    guard.stop()
    with raises("run.failed", "the run directory is missing", "run was moved or removed"):
        job.wait(timeout=ENOUGH)
    assert not record.folder.exists(), "not made anew for the status"


def test_what_watches_a_job_and_ends_with_it_has_written_what_it_found_when_the_wait_ends(record) -> None:
    """The last decisions about a run's plan were missing from its folder, or told after its summary."""
    _write(record, SUMMARY)
    record.write_status("finished")
    job, written = FollowedJob(record, guard := Held()), []

    def watch() -> None:
        guard.ended.wait()
        time.sleep(0.3)  # a decision takes a while
        written.append("the last")

    watcher = threading.Thread(target=watch)
    watcher.start()
    job.wait_for(watcher)
    guard.stop()
    assert job.wait(timeout=ENOUGH) == SUMMARY and written == ["the last"]


def test_how_a_launcher_ended_that_ended_at_once_stays(tmp_path) -> None:
    """Its guard, which came to say that it had started it on a busy machine later, wrote "running" over it."""
    tell_begun(tmp_path, state="running", guard=7)
    assert read_status(tmp_path)["guard"] == 7
    tell_status(tmp_path, state="failed", reason="no such folder")
    tell_begun(tmp_path, state="running", guard=7)
    assert read_status(tmp_path)["reason"] == "no such folder"
    assert [path.name for path in tmp_path.iterdir()] == ["status.json"]


def test_what_is_kept_in_memory_is_bounded_and_spans_the_run() -> None:
    kept = KeptRows(most=100)
    kept.add([{"event": "start"}])
    kept.add({"event": "epoch" if n % 10 == 9 else "step", "minibatch": n} for n in range(5000))
    rows = kept.all()
    assert len(rows) <= 100 and rows[0] == {"event": "start"}
    numbers = [row["minibatch"] for row in rows[1:]]
    assert numbers == sorted(set(numbers)) and numbers[-50:] == list(range(4950, 5000))
    assert any(n < 2000 for n in numbers), "a curve of the whole run can still be drawn"
    assert kept.last("epoch") == {"event": "epoch", "minibatch": 4999}


def test_a_tail_reads_a_long_file_in_parts_and_follows_a_resume(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("sparsepipe.launching.followed_job._BYTES_AT_ONCE", 200)
    path = tmp_path / "metrics.jsonl"
    rows = [{"event": "step", "minibatch": n} for n in range(50)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"event": "st')
    tail, found = Tail(path), []
    while new := tail.read():
        assert len(new) < 10
        found += new
    assert found == rows and tail.damaged == 0
    other = tmp_path / "other"
    resumed = [*rows[:30], {"event": "resume", "minibatches": 30}, *rows[30:32]]
    other.write_text("".join(json.dumps(row) + "\n" for row in resumed))
    other.replace(path)
    found = []
    while new := tail.read():
        found += new
    assert found == resumed[30:]


# --- the lock -----------------------------------------------------------------------------------------------------


def test_a_lock_that_somebody_else_holds_is_named(record, monkeypatch) -> None:
    """`flock -x RUN/logs/.lock sleep 999`: cancel never returned, and every resume answered "still running"."""
    os.close(hold(record.folder))
    code = "import fcntl, sys, time; file = open(sys.argv[1]); fcntl.flock(file, fcntl.LOCK_EX); print(flush=True); "
    command = [sys.executable, "-c", f"{code}time.sleep(600)", str(record.folder / LOCK)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout and holder.stdout.readline() == b"\n"
            named = (
                rf"its lock logs/.lock is held by process {holder.pid} \(.*, which is not the supervisor of this run"
            )
            with pytest.raises(InputError, match=named):
                hold(record.folder)
            monkeypatch.setattr("sparsepipe.launching.handle._TO_START", 0.2)
            job = attach(record.folder)
            with raises("run.not_cancellable", f"held by process {holder.pid}"):
                job.cancel()
        finally:
            holder.kill()
    with raises("run.failed", "its supervisor was killed"):
        job.wait(timeout=ENOUGH)


def test_whoever_looks_at_a_lock_keeps_nobody_from_having_it(tmp_path) -> None:
    """A board that looked which runs are at work was given no processor meanwhile: "this run is still running"."""
    os.close(hold(tmp_path))
    looking = os.open(tmp_path / LOCK, os.O_RDONLY)
    fcntl.flock(looking, fcntl.LOCK_SH)
    looked = threading.Timer(0.2, os.close, (looking,))
    looked.start()
    os.close(hold(tmp_path))
    looked.join()


def test_nobody_else_may_open_the_lock(tmp_path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / LOCK).touch(mode=0o644)
    lock = hold(tmp_path)
    assert (tmp_path / LOCK).stat().st_mode & 0o777 == 0o600, "one of an earlier version too"
    assert is_held(tmp_path)
    os.close(lock)
    assert not is_held(tmp_path)


def test_a_block_left_by_an_interrupt_cancels_its_job_and_one_left_otherwise_does_not(record) -> None:
    """The wait of a notebook's cell was interrupted, and the workers trained on behind it."""
    with pytest.raises(KeyboardInterrupt), FollowedJob(record, guard := Held()) as job:
        assert guard.alive()
        raise KeyboardInterrupt
    assert not guard.alive() and not job.running
    with FollowedJob(record, guard := Held()) as job:
        pass
    assert guard.alive() and job.running
    guard.stop()
