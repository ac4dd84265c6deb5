"""From the explorer's picture to a job: plans saved and opened on the board, its settings, other jobs, earlier runs."""

import json
import os
from dataclasses import replace

import pytest
from coded import mentions, raises
from processes import ENOUGH, until

from sparsepipe import Cluster, CostSample, Layer, LayerCost, LayerGraph, Plan, Profile, Stage, partition
from sparsepipe.launching.lock import hold
from sparsepipe.records import Origin, RunRecord
from sparsepipe.runtime import commands
from sparsepipe.runtime.config import RunConfig
from sparsepipe.util.host import cpu
from sparsepipe.util.text.numbers import as_measured
from sparsepipe.values.replication import rule
from sparsepipe.views.widgets import LaunchBoard, PartitionExplorer
from sparsepipe.views.widgets.job_details import speeds_table
from sparsepipe.views.widgets.job_line import TRAIN
from sparsepipe.views.widgets.launch import TrainingCurves
from sparsepipe.views.widgets.promised import MadeFor

BATCH_SIZE = 16
CONFIG = RunConfig("net", "data", batch_size=BATCH_SIZE, voxel_size=0.04, epochs=3, learning_rate=0.02)


@pytest.fixture
def profile():
    def costs(factor):
        few = [CostSample(1000, 0.01 * factor, 0.02 * factor, 1e6, 0, 1e6) for _ in range(8)]
        return tuple(LayerCost((s, CostSample(2000, 2 * s.forward, 2 * s.backward, 2e6, 0, 2e6))) for s in few)

    graph = LayerGraph.chain(tuple(Layer(f"conv{k}", "", 1e6) for k in range(8)))
    facts = {"batch_size": BATCH_SIZE, "voxel_size": 0.04, "model": "net"}
    return Profile(graph, {"fast": costs(1), "slow": costs(2)}, (1000.0,), facts)


@pytest.fixture
def cluster():
    return Cluster.uniform(2, device_type="fast")


@pytest.fixture
def plans(profile, cluster):
    return {"pipeline": partition(profile, cluster, planner="model-parallel")}


@pytest.fixture
def board(tmp_path, plans, profile, cluster):
    return LaunchBoard(plans, CONFIG, runs=tmp_path / "runs", profile=profile, cluster=cluster)


def ran(folder, plan, *, speed, state="finished"):
    """A record of a run that has ended."""
    record = RunRecord.create(folder, plan, CONFIG.to_json(), Origin(created="2026-01-01"))
    stages = [{"stage": k, "busy_fraction": 0.5} for k in range(len(plan.stages))]
    rows = [{"event": "summary", "seconds": 2.0, "minibatches": 4, "samples_per_second": speed, "stages": stages}]
    (record.folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    record.write_status(state)
    return record


def test_a_saved_plan_is_the_one_on_screen_and_none_is_overwritten(profile, cluster, tmp_path):
    explorer = PartitionExplorer(profile, cluster, plans=tmp_path / "plans")
    assert explorer.saver.launch_button not in explorer.saver.buttons, "there is no board"
    explorer.controls.plan.planner.value = "model-parallel"
    explorer.saver.save_button.click()
    path = tmp_path / "plans" / "model-parallel-2-stages-001.json"
    assert Plan.load(path) == explorer.plan and explorer.messages.value == ""
    assert mentions(explorer.saver.told.value, path, "--model", "--data", "DATA")
    explorer.saver.save_button.click()
    assert len(list((tmp_path / "plans").iterdir())) == 2
    explorer.controls.devices.memory.value = 1e7
    assert explorer.saver.save_button.disabled and "cannot be planned" in explorer.saver.save_button.tooltip
    explorer.saver.save_button.click()  # a click in a cell
    assert len(list((tmp_path / "plans").iterdir())) == 2 and "No plan fits" in explorer.messages.value


def test_a_plan_that_cannot_be_written_is_told_in_one_line(profile, cluster, tmp_path):
    (tmp_path / "file").write_text("")
    explorer = PartitionExplorer(profile, cluster, plans=tmp_path / "file")
    with raises("out.unwritable"):
        explorer.saver.save()


def test_launch_this_opens_the_plan_on_the_board(profile, cluster, tmp_path):
    board = LaunchBoard({}, CONFIG, runs=tmp_path / "runs")
    explorer = PartitionExplorer(profile, cluster, plans=tmp_path / "plans", board=board)
    explorer.controls.plan.planner.value = "model-parallel"
    explorer.saver.launch_button.click()
    name = "model-parallel-2-stages-001"
    line = board.offered.lines[name]
    assert board.prepared(name)[0] == explorer.plan and line.widget in board.offered.widget.children
    assert board.jobs == {} and not line.start.disabled, "its settings can be changed before it is launched"
    speed = BATCH_SIZE / explorer.plan.estimate.period_seconds
    assert f"{as_measured(speed)} samples/s" in line.promise.value
    assert "stage 0: conv0 … conv3 (4 layers) on fast" in line.promise.value
    explorer.controls.workload.batch_size.value = 2 * BATCH_SIZE
    explorer.saver.launch_button.click()
    told = board.offered.lines["model-parallel-2-stages-002"].promise.value
    assert f"{as_measured(speed)} samples/s" in told, "at the run's own batch size, not at the explorer's"


def test_the_settings_of_the_next_run_are_changed_on_the_board(board, plans):
    line, settings = board.offered.lines["pipeline"], board.settings
    assert board.prepared("pipeline") == (plans["pipeline"], CONFIG), "untouched, they are what was given"
    settings.epochs.value, settings.learning_rate.value, settings.batch_size.value = 5, 0.5, 2 * BATCH_SIZE
    plan, config = board.prepared("pipeline")
    assert (config.epochs, config.learning_rate, config.batch_size) == (5, 0.5, 2 * BATCH_SIZE)
    assert config.voxel_size == CONFIG.voxel_size
    period = plans["pipeline"].estimate.period_seconds
    assert plan.estimate.period_seconds == pytest.approx(2 * period, rel=0.05), "twice the voxels take twice as long"
    settings.batch_size.value = BATCH_SIZE
    assert settings.schedule.label == "as planned"
    settings.schedule.value = "gpipe"
    plan, _ = board.prepared("pipeline")
    assert (plan.schedule, plan.weights, plan.num_microbatches) == ("gpipe", "flush", 4)
    assert plan.estimate.period_seconds > period and "gpipe, weights flush" in line.promise.value
    settings.learning_rate.value = -1.0
    assert mentions(board.messages.value, "-1.0"), "by the name that the control has"
    with raises("setting.out_of_range", "learning rate", name="learning_rate"):
        board.launch("pipeline")
    assert not board.runs.exists(), "no folder of a run that never began"
    board.config = CONFIG.replace(epochs=7)
    with raises("board.plan_unknown", "pipelin", "pipeline"):
        board.launch("pipelin")
    assert settings.epochs.value == 7 and settings.learning_rate.value == CONFIG.learning_rate


@pytest.fixture
def published(profile):
    return Profile(profile.graph, profile.costs, (1000.0,), {"published": "a paper", "model": "net"})


def test_a_plan_for_other_devices_is_emulated_or_planned_anew(board, plans, published, cluster, tmp_path):
    """Its prediction, of devices that are not here, stood next to the throughput of this machine: 6% of it."""
    explorer = PartitionExplorer(published, cluster, plans=tmp_path / "plans", board=board)
    explorer.controls.plan.planner.value = "model-parallel"
    explorer.saver.launch_button.click()
    name, drawer = board.drawer.name, board.drawer
    line = board.line(name)
    assert drawer.widget.layout.display == "" and line.others.widget in drawer.widget.children
    assert mentions(line.others.made_for.value, "2 × fast", "published")
    plan, config = board.prepared(name)
    assert (config.engine, config.batch_size, config.minibatches) == ("replay", 1, 200)
    rate = 1 / plan.estimate.period_seconds
    assert f"{as_measured(rate)} minibatches/s" in line.promise.value, "no one knows how many samples one has"
    assert board.offered.made_for(name).held_against(plan).keys() == {"profile", "cluster"}
    line.others.where.value = TRAIN
    plan, config = board.prepared(name)
    assert (config, plan.estimate, board.offered.made_for(name).held_against(plan)) == (CONFIG, None, {})
    assert "no prediction" in line.promise.value
    board.plan_here(name).join(timeout=ENOUGH)
    here = board.line(f"{name}-here")
    assert not here.others.devices and "samples/s" in here.promise.value, "by the board's profile, of this machine"
    drawer.close.click()
    assert drawer.widget.layout.display == "none"


@pytest.mark.parametrize(
    ("origin", "other"),
    [
        ({"device": cpu.name(), "threads": 1}, False),
        ({"device": "another processor", "threads": 1}, True),
        ({"device": cpu.name(), "threads": 4096}, True),
        ({"joined": [{"device_types": ["slow"], "device": "another processor"}]}, False),
        ({"joined": [{"device_types": ["fast"], "device": "another processor"}]}, True),
    ],
)
def test_devices_are_this_machines_by_processor_and_cores(profile, cluster, plans, origin, other):
    profile = replace(profile, origin={**profile.origin, **origin})
    made_for = MadeFor(BATCH_SIZE, 0.04, profile, cluster)
    assert bool(made_for.other_devices(plans["pipeline"], CONFIG)) is other
    assert not made_for.other_devices(plans["pipeline"], made_for.emulation(CONFIG, 5)), "an emulation needs none"


def test_an_emulation_has_the_minibatches_of_the_run(profile, cluster, plans):
    made_for = MadeFor(BATCH_SIZE, 0.04, profile, cluster)
    twice = made_for.emulated(CONFIG.replace(batch_size=2 * BATCH_SIZE))
    emulated = made_for.emulation(CONFIG.replace(stragglers="slow:rank=1,factor=4"), 5)
    assert twice.profile.typical_sizes == (2000.0,)
    assert (emulated.minibatches, emulated.stragglers) == (5, "slow:rank=1,factor=4")


def test_a_speed_is_not_promised_where_nothing_was_measured(tmp_path, plans):
    board = LaunchBoard(plans, CONFIG, runs=tmp_path / "runs")
    assert "samples/s" in board.offered.lines["pipeline"].promise.value
    board.settings.batch_size.value = 2
    assert "no prediction" in board.offered.lines["pipeline"].promise.value


def test_a_click_asks_before_it_launches_beside_another_job(board, plans, monkeypatch):
    other = ran(board.runs / "other-001", plans["pipeline"], speed=1.0, state="running")
    launched = []
    monkeypatch.setattr(board, "launch", launched.append)
    lock = hold(other.folder)
    try:
        board.offered.lines["pipeline"].start.click()
        assert mentions(board.question.told.value, "other-001") and launched == []
        board.question.no.click()
        assert board.question.widget.layout.display == "none" and launched == []
        board.offered.lines["pipeline"].start.click()
        board.question.yes.click()
        assert launched == ["pipeline"] and board.question.widget.layout.display == "none"
        board.question.yes.click()  # a click that was under way
        assert launched == ["pipeline"]
    finally:
        os.close(lock)
    board.offered.lines["pipeline"].start.click()
    assert launched == ["pipeline"] * 2, "nobody is at work any more"


def test_runs_that_ended_before_the_board_was_made_are_there_with_predicted_beside_measured(board, plans):
    predicted = BATCH_SIZE / plans["pipeline"].estimate.period_seconds
    ran(board.runs / "net-pipeline-001", plans["pipeline"], speed=predicted / 2)
    again = LaunchBoard(plans, CONFIG, runs=board.runs, profile=board.offered.profile, cluster=board.offered.cluster)
    again.watch.thread.join(timeout=ENOUGH)
    line = again.offered.lines["pipeline"]
    assert (
        f"finished: predicted {as_measured(predicted)}, measured {as_measured(predicted / 2)} samples/s (50%)"
        in line.state.value
    )
    assert not line.start.disabled and line.stop.disabled and "earlier plan" not in line.state.value
    assert again.details.job.label == "choose a job", "it is offered, and not in the way"
    assert "pipeline" in [value for _, value in again.details.job.options]


def test_a_speed_that_was_measured_is_shown_under_the_very_plan_that_had_it(board, plans):
    """A new plan of the same name had an earlier one's speed beside it until it was launched."""
    first, ids = plans["pipeline"], plans["pipeline"].layers
    other = replace(first, stages=(replace(first.stages[0], layers=ids[:2]), replace(first.stages[1], layers=ids[2:])))
    ran(board.runs / "net-pipeline-001", first, speed=1234.0)
    ran(board.runs / "net-pipeline-002", other, speed=5678.0)

    def shown(plan):
        made = LaunchBoard(
            {"pipeline": plan}, CONFIG, runs=board.runs, profile=board.offered.profile, cluster=board.offered.cluster
        )
        return made, made.offered.lines["pipeline"]

    again, line = shown(replace(first, estimate=None, planner="by hand"))
    again.watch.thread.join(timeout=ENOUGH)
    assert "1,234 samples/s" in line.state.value, "of the very plan, whoever made it and whatever is expected of it"
    again.settings.schedule.value = "gpipe"
    assert "samples/s" not in line.state.value and "in its plan" in line.state.value
    again.settings.schedule.value = ""
    assert "1,234 samples/s" in line.state.value
    again.add(other, "pipeline")
    again.watch.thread.join(timeout=ENOUGH)
    assert "5,678 samples/s" in again.offered.lines["pipeline"].state.value
    third = replace(first, stages=(replace(first.stages[0], layers=ids[:1]), replace(first.stages[1], layers=ids[1:])))
    again.add(third, "pipeline")
    told = again.offered.lines["pipeline"].state.value
    assert mentions(told, "net-pipeline-002") and "samples/s" not in told
    assert again.jobs == {} and again.curves.widget.layout.display == "none"
    assert shown(third)[1].state.value == told


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"batch_size": 32}, "in its batch size"),
        ({"data": "digits"}, "in its data"),
        ({"data": "digits", "batch_size": 32}, "in its data, batch size"),
        ({"voxel_size": 0.05}, "in its voxel size"),
        ({"num_points": 512}, "in its num points"),
        ({"model_args": '{"width": 2}'}, "in its model args"),
        ({"data_args": '{"size": 2, "kind": "a"}'}, "in its data args"),
        ({"loss_args": '{"auxiliary": 0.3}'}, "in its loss args"),
        ({"precision": "bfloat16"}, "in its precision"),
    ],
)
def test_a_run_on_other_data_or_minibatches_is_not_this_plans(board, plans, change, told):
    """A run of digits in minibatches of 32 was shown as that of shapes in minibatches of 16."""
    ran(board.runs / "net-pipeline-001", plans["pipeline"], speed=1234.0)

    def shown(config):
        made = LaunchBoard({"pipeline": plans["pipeline"]}, config, runs=board.runs)
        return made, made.offered.lines["pipeline"].state.value

    made, state = shown(CONFIG.replace(**change))
    assert state.startswith("not launched: net-pipeline-001") and told in state and "1,234" not in state
    assert made.jobs == {}
    same, state = shown(CONFIG.replace(epochs=9, learning_rate=0.5, seed=3, checkpoint_every=0))
    same.watch.thread.join(timeout=ENOUGH)
    assert "1,234 samples/s" in same.offered.lines["pipeline"].state.value, "how long it learns is no other work"


def test_arguments_are_the_same_in_any_order(board, plans):
    first, second = '{"a": 1, "b": 2}', '{"b": 2, "a": 1}'
    record = ran(board.runs / "net-pipeline-001", plans["pipeline"], speed=1.0)
    (record.folder / "config.json").write_text(json.dumps(CONFIG.replace(data_args=first).to_json()))
    made = LaunchBoard(plans, CONFIG.replace(data_args=second), runs=board.runs)
    assert made.jobs.keys() == {"pipeline"}


def test_predicted_and_measured_speed_of_each_stage_stand_side_by_side(board, plans):
    record = ran(board.runs / "net-pipeline-001", plans["pipeline"], speed=99.0)
    told = speeds_table(record)
    assert "99.0 samples/s" in told and "stage 1 computes" in told and "50% of the time" in told
    assert "100% (120 ms per minibatch)" in told


def test_of_several_pipelines_each_stage_is_beside_what_its_own_plan_expects(board, plans):
    """The second pipeline is expected to be at half of the first's pace, though its stages take half of the time."""
    one = plans["pipeline"]
    slow = replace(one.estimate, period_seconds=2 * one.estimate.period_seconds)
    slow = replace(slow, stages=tuple(replace(s, compute_seconds=s.compute_seconds / 2) for s in slow.stages))
    whole = Plan.alike(one, 2, rule("partial-reduce"))
    whole = replace(whole, members=(whole.pipelines[0], replace(whole.pipelines[1], estimate=slow)))
    told = speeds_table(ran(board.runs / "net-pipeline-001", whole, speed=99.0))
    assert f"{as_measured(BATCH_SIZE * 1.5 / one.estimate.period_seconds)} samples/s" in told
    rows = [row for row in told.split("<tr>") if "computes" in row]
    assert ["pipeline 0" in row and "100% (120 ms" in row for row in rows] == [True, True, False, False]
    assert ["pipeline 1" in row and "25% (60" in row for row in rows] == [False, False, True, True]
    assert "stage 3 computes" in rows[3]


@pytest.mark.slow
def test_several_pipelines_are_launched_and_followed(tmp_path):
    from pipeline_jobs import replayed_pipelines

    plan, config, profile, cluster = replayed_pipelines((2, 1), rule="partial-reduce", seconds=0.02)
    config = config.replace(minibatches=500)  # some seconds, in which a busy machine looks how far it is
    board = LaunchBoard({"two": plan}, config, runs=tmp_path / "runs", profile=profile, cluster=cluster)
    line, details = board.offered.lines["two"], board.details
    assert mentions(line.promise.value, "pipeline 0", "2 stages", "2 ×") and "75.0 minibatches/s" in line.promise.value
    line.start.click()
    assert board.messages.value == ""
    until(lambda: "minibatch" in line.state.value, "how far it is")
    with raises("replan.pipelines_differ", "(0, 1)"):
        board.replan("two", plan.local(0))
    board.watch.thread.join(timeout=ENOUGH)
    assert board.jobs["two"].state == "finished" and line.state.value.startswith("finished: predicted ")
    assert details.rank.options == (0, 1, 2) and mentions(details.ranks.value, "rank 2", "stage 0")
    assert "no warnings" in details.log.value or "<pre" in details.log.value
    assert details.end.widget.layout.display == ""
    title = json.loads(details.end.timeline.figure)["layout"]["title"]["text"]
    assert "Synchronization stall" in title
    for name in ("pipeline 0, rank 0", "pipeline 0, link 0-1", "pipeline 1, rank 2"):
        assert name in details.drifts.value, "held against the profile while it ran"
    shown = speeds_table(board.jobs["two"].record)
    assert shown == details.end.speeds.value and "not predicted" not in shown
    for name in ("pipeline 0, stage 0 computes", "pipeline 0, stage 1 computes", "pipeline 1, stage 2 computes"):
        assert name in shown
    culprit = details.end.culprit.value  # no two ranks have the same layers, so none is the culprit
    assert culprit and not any(mentions(culprit, f"rank {rank} ") for rank in range(3))


@pytest.fixture
def at_work(board, plans, profile, cluster):
    """The folder of a job of the board that is at work, as its guard's lock says: what rank 0 does, tests do."""
    module = CONFIG.replace(model="net.py:build").to_json()  # whose layers the workers alone know
    record = RunRecord.create(board.runs / "net-pipeline-001", plans["pipeline"], module, Origin())
    record.write_status("running", commands=list(commands.COMMANDS))
    lock = hold(record.folder)
    board.reattach()
    ids = plans["pipeline"].layers
    board.add(Plan((Stage(ids[:2], (0,)), Stage(ids[2:], (1,)))), "other")
    board.update()
    yield record.folder
    os.close(lock)
    board.watch.thread.join(timeout=ENOUGH)


def test_a_running_job_goes_on_under_another_plan_of_the_board(board, at_work):
    change, line = board.change, board.offered.lines["pipeline"]
    assert change.widget.layout.display == "" and change.job.options == ("pipeline",)
    change.plan.value = "other"
    change.button.click()
    asked = commands.request(at_work)
    assert asked.command == commands.REPLAN and asked.reason.startswith("other, ")
    assert "switch to other" in change.told.value and board.messages.value == ""
    change.button.click()
    assert "a plan change is already pending" in board.messages.value and "Traceback" not in board.messages.value
    commands.take(at_work, commands.REPLAN, 12, plan=asked.plan)
    until(lambda: "under other from minibatch 12 on" in line.state.value, "its line says so")
    assert change.told.value == "" and line.plan.stages == board.plans["other"].stages


def test_a_refusal_stays_in_the_message_line_while_jobs_go_on(board, at_work, tmp_path):
    board.change.file.value = str(tmp_path / "none.json")
    board.change.button.click()
    assert "none.json" in board.messages.value and commands.request(at_work) is None
    board.change.file.value = str(board.plans["other"].save(tmp_path / "other.json"))
    thread = board.replan(None, board.plans["other"], called="a try")
    commands.refuse(at_work, "rank 1 has no room for it", plan=commands.request(at_work).plan)
    thread.join(timeout=ENOUGH)
    look = board.messages.watched(board.update)
    look()
    assert mentions(board.messages.value, "rank 1") and "keeps its plan" in board.messages.value
    board.change.button.click()
    asked = commands.request(at_work)
    assert board.messages.value == "" and asked.reason.startswith(str(tmp_path))
    untold = "memory need could not be checked before the run: it has no estimate, and the run was launched without"
    assert untold in board.change.told.value
    commands.take(at_work, commands.REPLAN, 30, plan=asked.plan)
    until(lambda: untold in board.offered.lines["pipeline"].state.value, "its line says so")


def test_the_explorers_plan_goes_to_the_running_job_or_both_say_why_not(board, at_work, profile, tmp_path):
    few, many = (
        PartitionExplorer(profile, Cluster.uniform(n, device_type="fast"), plans=tmp_path / str(n), board=board)
        for n in (2, 3)
    )
    many.controls.plan.planner.value = "model-parallel"
    many.saver.apply_button.click()
    for messages in (many.messages, board.messages):
        assert mentions(messages.value, "[0, 1, 2]", "[0, 1]")
    few.controls.plan.planner.value = "data-parallel"
    few.saver.apply_button.click()
    assert few.messages.value == "" and mentions(few.saver.told.value, "data-parallel-1-stage-001")
    assert mentions(commands.request(at_work).reason, "data-parallel-1-stage-001")


def test_where_nothing_runs_there_is_no_plan_to_change(board, plans):
    board.update()
    assert board.change.widget.layout.display == "none"
    board.change.button.click()  # a click that was under way
    assert board.messages.value == ""
    for name, error in (
        (None, ("board.job_undecided", "no job is running: launch one")),
        ("pipeline", ("board.job_not_running", "pipeline")),
    ):
        with raises(*error):
            board.replan(name, plans["pipeline"])


def test_a_damaged_record_is_told_in_its_line_and_the_others_go_on(tmp_path, plans, profile, cluster):
    """One of them kept the board from finding the others, and their lines from being refreshed."""
    plans = {"broken": plans["pipeline"], "other": partition(profile, cluster, planner="data-parallel")}
    ran(tmp_path / "runs" / "net-broken-001", plans["broken"], speed=80.0)
    ran(tmp_path / "runs" / "net-other-001", plans["other"], speed=80.0)
    (tmp_path / "runs" / "net-broken-001" / "config.json").write_text("[]")
    board = LaunchBoard(plans, CONFIG, runs=tmp_path / "runs", profile=profile, cluster=cluster)
    board.watch.thread.join(ENOUGH)
    states = {name: line.state.value for name, line in board.offered.lines.items()}
    assert "config.json: expected a run" in states["broken"] and "measured 80.0 samples/s" in states["other"]
    assert not board.offered.lines["broken"].start.disabled and "Traceback" not in board.messages.value
    (tmp_path / "runs" / "net-other-001" / "plan.json").unlink()  # while the board shows it
    board.details.job.value = ""
    board.update()
    assert "plan.json" in board.offered.lines["other"].state.value and "Traceback" not in board.messages.value


def test_an_emulated_job_has_no_curves():
    """Its board began with two empty axes, of a loss and an accuracy that nobody computes."""
    curves, step = TrainingCurves(), {"event": "step", "seconds": 1.0, "minibatch": 0, "loss": None}
    curves.draw({"emulated": [step]}, ended=True)
    assert curves.widget.layout.display == "none"
    curves.draw({"emulated": [step], "trained": [{**step, "loss": 2.0}]}, ended=True)
    assert curves.widget.layout.display != "none"
