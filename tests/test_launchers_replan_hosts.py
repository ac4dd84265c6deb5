"""Jobs on several hosts whose plan changes while they run: they train as one device does, and their processes stay."""

import json
import os
import signal
from pathlib import Path

import pytest
from coded import mentions
from dynamics_worlds import network, stump
from hosts_desk import FLUSH, MODEL, AtDesk, config, listened_to
from pipeline_jobs import OfFirstStage, pipelines_of
from processes import ENOUGH, until
from replayed_pipelines import Replay, same_ends
from runtime_jobs import NORMED, plan_of

from sparsepipe import Cluster, RunConfig, partition
from sparsepipe.launching.replan import replanned, request_replan
from sparsepipe.monitoring.following import DECISIONS
from sparsepipe.monitoring.launching import launch
from sparsepipe.records import RunRecord
from sparsepipe.runtime import commands
from sparsepipe.runtime.training_state.checkpoint import latest
from sparsepipe.util.host.machine_watch import MachineWatch
from sparsepipe.util.io.files import read_json, read_rows

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
OF_SEVERAL = {"schedule": "1f1b-flush", "num_microbatches": 1}
NOTE = "ignore:the plan's memory need could not be checked before the run"  # of plans by hand, without a profile


def launch_followed(plan, config, profile, predictor, cluster, folder, _):
    """Launch a run that is moved as the predictor expects, and wait for its end."""
    launch(
        plan,
        config,
        run_dir=folder,
        launcher="ssh",
        profile=profile,
        cluster=Cluster.load(cluster),
        replan="predicted",
        predictor=predictor,
        tell=print,
    ).wait()


def plan(ranks, *cuts):
    return plan_of(MODEL, ranks, cuts=cuts or None, **FLUSH)


def workers(desk):
    """The process ids of all ranks, by the host that they are on; of several pipelines with their folders."""
    return {
        (host.name, path.relative_to(run).as_posix().replace("logs/", "")): path.read_text()
        for host in desk.network.hosts
        for run in (host.home / ".local/state/sparsepipe/hosted").glob("run-*")
        for path in run.rglob("logs/rank*.pid")
    }


def answered(folder, token, process):
    """Wait for what becomes of a request; return the first minibatch under the plan, or why it is refused."""
    found = []

    def look():
        found[:] = [each for each in (commands.taken_plan(folder, token), commands.refused_plan(folder, token)) if each]
        return found or process.poll() is not None

    until(look, "an answer")
    assert process.poll() is None, process.communicate(ENOUGH)
    return found[0]


def moved(folder, process, other):
    """Have a run go on under another plan, and wait until it has trained under it."""
    first = answered(folder, commands.leave(folder, other, reason="a test"), process)
    assert isinstance(first, int), first
    assert RunRecord.load(folder).plan == other
    until(lambda: process.poll() is not None or steps(folder)[-1:] > [first], "it goes on")
    return first


def checkpointed(folder):
    """Minibatches of the newest checkpoint; 0 where none has come yet."""
    found = latest(folder)
    return found.minibatches if found else 0


def steps(folder):
    return sorted(row["minibatch"] for row in RunRecord(folder).metrics() if row["event"] == "step")


def stopped(folder, process):
    """Stop a run; return how many minibatches it has trained."""
    commands.ask(folder, commands.STOP)
    said = process.communicate(timeout=ENOUGH)[0]
    assert json.loads(said) == "stopped", said
    return read_json(folder / "control" / "taken.json")["minibatch"]


def test_a_job_goes_on_under_other_plans_and_after_a_crash_trained_as_one_device(desk):
    """Cuts, the order of hosts, a host less and back, through TLS; metrics come from one host after the other."""
    folder, first = desk.folder / "moved", plan([[0], [1], [2]])
    others = [plan([[1], [2]]), plan([[2], [0], [1]], 3, 9)]
    slow = config(epochs=10_000, stragglers="jitter:p=1,seconds=0.05", max_restarts=1, encrypt=True)
    heard = {}
    with (
        listened_to(desk.network, heard),
        desk.launched(desk.told("moved", first, slow, *desk.network.hosts)) as process,
    ):
        before = workers(desk)
        assert len(before) == 3
        moves = [moved(folder, process, others[0])]
        token = commands.leave(folder, plan_of(NORMED, [[0], [1]], **FLUSH))
        assert "different graph" in answered(folder, token, process)
        token = commands.leave(folder, others[1], memory_bytes=[1e15] * 3)
        assert mentions(answered(folder, token, process), "1000000.0 GB"), "each host looks for its own ranks"
        assert RunRecord.load(folder).plan == others[0] and workers(desk) == before, "the processes stay"
        until(lambda: checkpointed(folder) >= moves[0] or process.poll() is not None, "a checkpoint under it")
        os.kill(int(pid_of(desk, before, "rank2.pid")), signal.SIGKILL)
        until(lambda: b"restarting from" in (folder / "logs/launcher.log").read_bytes(), "it starts again")
        moves.append(moved(folder, process, others[1]))
        done = stopped(folder, process)
    assert heard["clear"] == 0 and heard["encrypted"] > 10, heard
    record = RunRecord.load(folder)
    assert steps(folder) == list(range(done))
    alone = config(epochs=10_000, minibatches=done, checkpoint_every=0)
    assert desk.launch(desk.told("still", plan([[0]]), alone)) == ["finished"]
    assert desk.losses("moved") == desk.losses("still")
    assert [followed.plan for followed in record.plans] == [first, *others]
    rows = [row for row in record.metrics() if row["event"] == "replan"]
    assert [row["minibatch"] for row in rows] == moves == [followed.first_minibatch for followed in record.plans[1:]]
    assert all(row["moved_bytes"] > 0 and row["reason"] == "a test" for row in rows)
    (summary,) = (row for row in record.metrics() if row["event"] == "summary")
    assert [row["minibatch"] for row in summary["replans"]] == [row["minibatch"] for row in rows]
    newest = folder / "checkpoints" / f"minibatch-{done:08d}"
    assert set(read_json(newest / "manifest.json")["files"]) == {f"stage{k}.safetensors" for k in range(3)}
    desk.check_nothing_is_left()


def test_a_replay_sleeps_on_hosts_and_is_followed_by_what_a_predictor_expects_of_what_they_say(desk):
    """Rank 1 becomes four times slower, for which it would be given less; this predictor expects nothing of the kind.

    The network between the hosts carries a packet at once; the cluster's link takes 50 ms, and so does the replay,
    whose packets go through TLS.
    """
    hosts, folder, profile = desk.network.hosts[:2], desk.folder / "slept", network(seconds=[0.006] * 12)
    with MachineWatch() as watch:
        learned = stump(tuple(watch.read()), kept=1.0)
    path = desk.cluster("slept", *hosts)
    path.write_text(path.read_text() + "[network]\nbandwidth = 2e6\n")
    plan = partition(profile, Cluster.load(path), planner="model-parallel")
    settings = {"engine": "replay", "batch_size": 1, "minibatches": 60, "stragglers": "slow:rank=1,factor=4,from=30"}
    settings["encrypt"] = True
    told = plan, RunConfig("net", "replay", **settings), profile, learned, path, folder
    process = AtDesk(desk.network, launch_followed, *told, folder=desk.folder)
    _, log = process.communicate(timeout=5 * ENOUGH)
    assert process.poll() == 0, log
    record = RunRecord.load(folder)
    assert "no longer" not in log and steps(folder) == list(range(60))
    assert [row["sent_bytes"] for row in record.metrics("epoch")] == [60 * 2 * 1e5]
    spans = {(span.rank, span.minibatch): span for span in record.trace().spans if span.kind == "forward"}
    slept = 0.006 * len(plan.stages[0].layers)  # then it is sent, within the span, which may end late on a busy machine
    assert all(spans[1, m].start >= spans[0, m].start + slept + 0.05 - 5e-3 for m in range(60))
    for rank in range(2):
        assert read_json(folder / f"logs/rank{rank}.machine.json").keys() == set(learned.metrics)
    decided = next(row for row in read_rows(folder / DECISIONS) if row.get("changes"))
    assert decided["minibatch"] > 30 and mentions(decided["reason"], "DynPipe's"), decided
    desk.check_nothing_is_left()


def several(*pipelines, rule="local-sgd:every=2,overlap=false"):
    """Pipelines of two stages each, given as (rank of the first stage, of the second, its first layer)."""
    cuts, ranks = {k: (cut,) for k, (*_, cut) in enumerate(pipelines)}, [[[a], [b]] for a, b, _ in pipelines]
    return pipelines_of(NORMED, *ranks, rule=rule, cuts=cuts, **OF_SEVERAL)


def follows(folder, process, other, *, reason="a test"):
    """Have a run of several go on under another plan; return the first minibatch under it."""
    token = request_replan(folder, other, reason=reason).token
    first = replanned(folder, token, running=lambda: process.poll() is None)
    assert RunRecord.load(folder).plan == other
    return first


@pytest.mark.filterwarnings(NOTE)
def test_pipelines_over_hosts_move_by_themselves_and_train_as_those_that_do_not(desk):
    """Encrypted; both share the first host. The first turns round, so that the other host tells of its losses; then the
    second is cut elsewhere. Worked out again in one process, to the same bits.
    """
    name, plans = "several", [several((0, 2, 5), (1, 3, 9)), several((2, 0, 11), (1, 3, 9))]
    plans.append(several((2, 0, 11), (1, 3, 4)))
    own = config(model=NORMED, epochs=12, momentum=0.0, stragglers="jitter:p=1,seconds=0.3", encrypt=True)
    told = desk.told(name, plans[0], own, *desk.network.hosts, counts=[2, 1, 1])
    with desk.launched(told) as process:
        until(lambda: process.poll() is not None or desk.steps(name) > 3, "both train")
        before = workers(desk)
        moves = [follows(desk.folder / name, process, other) for other in plans[1:]]
        assert len(before) == 4 and workers(desk) == before, "the processes stay"
        said = process.communicate(timeout=ENOUGH)[0]
    assert json.loads(said) == "finished", said
    assert steps(desk.folder / name) == list(range(12 * 5)), "each minibatch once"
    record = RunRecord.load(desk.folder / name)
    assert [found.plan for found in record.plans] == plans
    assert [[found.plan for found in one.plans] for one in record.pipelines] == [
        [plans[0].local(0), plans[1].local(0)],
        [plans[0].local(1), plans[2].local(1)],
    ]
    rows = record.metrics("replan")
    assert [(row["pipeline"], row["minibatch"]) for row in rows] == [*enumerate(moves)]
    assert all(row["moved_bytes"] > 0 and row["reason"] == "a test" for row in rows)
    (summary,) = record.metrics("summary")
    assert [row["minibatch"] for row in summary["replans"]] == moves
    assert {(row["stage"], tuple(row["ranks"])) for row in summary["stages"]} <= {
        (0, (2,)),
        (1, (0,)),
        (2, (1,)),
        (3, (3,)),
    }, "as the plan has them now"
    assert [one.status["state"] for one in record.pipelines] == ["finished"] * 2
    secrets = {record.folder / "control" / name for name in ("coordinator.json", "certificate.pem")}
    assert not any(path.exists() for path in secrets), "no secret stays"
    result = OfFirstStage(record.folder)
    alone = pipelines_of(NORMED, [[0]], [[1]], rule="local-sgd:every=2,overlap=false", **OF_SEVERAL)
    replay = Replay(result, alone, own.replace(data=str(desk.folder / "shapes")), epoch_minibatches=5)
    same_ends(result, replay.run())
    desk.check_nothing_is_left()


@pytest.mark.filterwarnings(NOTE)
def test_a_host_killed_during_a_move_is_waited_for_and_the_move_is_made(desk):
    """With the coordinator on it: all go on from the last checkpoint. Whoever asked waits until its plan is followed.

    A pipeline that joins again during a move, while the other goes on, is in test_launchers_replan_pipelines.py.
    """
    name, before, other = "killed", several((0, 1, 5), (2, 3, 9)), several((0, 1, 11), (2, 3, 9))
    own = config(model=NORMED, epochs=10_000, momentum=0.0, stragglers="jitter:p=1,seconds=0.2", max_restarts=2)
    own = own.replace(on_lost_host="wait")
    hosts, folder = desk.network.hosts, desk.folder / name
    with desk.launched(desk.told(name, before, own, *hosts, counts=[1, 1, 2])) as process:
        until(lambda: process.poll() is not None or checkpointed(folder), "a checkpoint")
        token = request_replan(folder, other).token
        for pid, words in hosts[0].commands().items():
            if "sparsepipe.launching.ssh.agent" in words:
                os.kill(pid, signal.SIGKILL)
        first = replanned(folder, token, running=lambda: process.poll() is None)
        until(lambda: process.poll() is not None or steps(folder)[-1:] > [first + 10], "all go on")
        commands.ask(folder, commands.STOP)
        said = process.communicate(timeout=ENOUGH)[0]
    assert json.loads(said) == "stopped", said
    record = RunRecord.load(folder)
    assert record.plan == other and record.pipelines[0].plan == other.local(0)
    told = [row["minibatch"] for row in record.metrics("step")]
    assert len(told) == len(set(told)) > first, "each minibatch once"
    assert record.status["went_on"] and [one.status["state"] for one in record.pipelines] == ["stopped"] * 2
    desk.check_nothing_is_left(folders=False)  # but of the agents that were killed: the next to come does that


def pid_of(desk, found, name):
    """The process id of a rank as it is called outside of its host's namespace."""
    ((host,), (inside,)) = zip(*((host, pid) for (host, each), pid in found.items() if each == name), strict=True)
    (host,) = (each for each in desk.network.hosts if each.name == host)
    for pid in host.commands():
        (told,) = (row for row in Path(f"/proc/{pid}/status").read_text().splitlines() if row.startswith("NSpid:"))
        if told.split()[-1] == inside.strip():
            return pid
    raise AssertionError(f"no process {inside} on {host.name}")
