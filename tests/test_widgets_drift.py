"""What the launch board shows of drift: a row for each rank and link, and a sentence for each lasting change."""

import os

from coded import mentions
from drifting_runs import PROFILE, WrittenRun, cluster_with, halves, slowed
from processes import ENOUGH

from sparsepipe import Plan, Stage
from sparsepipe.launching import attach
from sparsepipe.launching.lock import hold
from sparsepipe.monitoring import Alarm, Standing
from sparsepipe.views.widgets.job_details import DriftOfJobs, drift_table
from sparsepipe.views.widgets.promised import MadeFor

UNKNOWN = MadeFor(1, None)
KNOWN = MadeFor(1, None, PROFILE, cluster_with())


def running(folder, *, named):
    """The job of a run that is at work, as its guard's lock says, and the end of that lock."""
    run = WrittenRun(folder, named=named).add(*slowed(), numbers=range(50))
    run.record.write_status("running")
    lock = hold(folder)
    return run, attach(folder), lock


def test_a_table_of_ranks_and_links():
    standings = [Standing(0, None, 1.02, 200, None, 3, 0.1), Standing(None, (0, 1), 5.0, 90, 40, 1, 0.1, changed=True)]
    alarms = [Alarm(k, k, 2.0, 1.0, rank=0) for k in range(7)]
    text = drift_table(standings, alarms)
    assert "1.02 ×" in text and "3 spikes" in text and "link 0-1" in text and mentions(text, "minibatch 40", 1)
    assert text.count("takes 2 times") == 5 and "since minibatch 6," in text, "the newest"
    assert drift_table([], []) == ""


def test_a_job_is_followed_to_its_end(tmp_path):
    run, job, lock = running(tmp_path / "run", named=True)
    drift = DriftOfJobs(lambda _: UNKNOWN)
    assert drift.table(job) == ""
    drift.look("one", job)
    assert "rank 0" in drift.table(job) and "takes" not in drift.table(job)
    run.add(*slowed(), numbers=range(50, 140))
    os.close(lock)
    job._thread.join(timeout=ENOUGH)
    drift.look("one", job)
    assert "rank 1 takes" in drift.table(job), "once more when it has ended"
    assert [row["rank"] for row in job.record.drift()] == [1]
    (run.folder / "metrics.jsonl").unlink()
    drift.look("one", job)


def test_a_profile_is_the_runs_own_or_the_boards(tmp_path):
    _, job, lock = running(tmp_path / "run", named=False)
    for made_for, known in ((UNKNOWN, False), (KNOWN, True)):
        drift = DriftOfJobs(lambda _, made_for=made_for: made_for)
        drift.look("one", job)
        assert ("rank 0" in drift.table(job)) is known
    os.close(lock)
    ended = DriftOfJobs(lambda _: KNOWN)
    job._thread.join(timeout=ENOUGH)
    ended.look("one", job)
    assert ended.table(job) == "", "a run that was over before is told by the verb"


def test_what_a_launch_is_held_against():
    assert KNOWN.held_against(halves()) == {"profile": PROFILE, "cluster": KNOWN.cluster}
    assert KNOWN.held_against(Plan((Stage(("other",), (0,)),))) == {} == UNKNOWN.held_against(halves())
