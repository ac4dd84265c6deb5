"""Several pipelines in the partition explorer: what is shown is what planner, simulator and command line say."""

import html
import json
import re
import threading
from dataclasses import replace
from decimal import Decimal

import pytest
from coded import raises
from processes import ENOUGH, until

from sparsepipe import Cluster, CostSample, DeviceType, Layer, LayerCost, LayerGraph, Link, Node, Profile
from sparsepipe.cli import main
from sparsepipe.util.text.numbers import as_measured
from sparsepipe.values.plan import Plan
from sparsepipe.values.replication import RULES
from sparsepipe.views.widgets import LaunchBoard, PartitionExplorer, WaitingExplorer
from sparsepipe.views.widgets import pipelines_planning as planning_module
from sparsepipe.views.widgets.pipelines_planning import Later
from sparsepipe.views.widgets.settings import JITTER, NOBODY, PIPELINE, SLOW, TYPED

NUM_LAYERS, BATCH_SIZE = 8, 16


@pytest.fixture(scope="module")
def profile():
    def costs(factor):
        few = [CostSample(1000, 0.01 * factor, 0.02 * factor, 1e5, 0, 1e6) for _ in range(NUM_LAYERS)]
        return tuple(LayerCost((s, CostSample(2000, 2 * s.forward, 2 * s.backward, 2e5, 0, 2e6))) for s in few)

    graph = LayerGraph.chain(tuple(Layer(f"conv{k}", "", 1e5) for k in range(NUM_LAYERS)))
    facts = {"batch_size": BATCH_SIZE, "voxel_size": 0.04, "model": "net"}
    return Profile(graph, {"fast": costs(1), "slow": costs(2)}, (1000.0,), facts)


@pytest.fixture(scope="module")
def cluster():
    kinds = DeviceType("fast"), DeviceType("slow")
    return Cluster((Node("a", kinds, Link(1e10)), Node("b", kinds, Link(1e10))), Link(1e9))


@pytest.fixture
def explorer(profile, cluster, tmp_path):
    made = PartitionExplorer(profile, cluster, figures=tmp_path / "figures", plans=tmp_path / "plans")
    made.controls.pipelines.slider.value = 2
    made.current()
    assert made.messages.value == made.view.drawing.stale == ""
    return made


def scene(explorer):
    return json.loads(explorer.view.drawing.scene)


def tile(explorer, name):
    return next(value for what, value, _ in scene(explorer)["tiles"] if what == name)


def printed(capsys, *arguments):
    assert main([str(argument) for argument in (*arguments, "--json")]) == 0
    return json.loads(capsys.readouterr().out)


def test_one_pipeline_plans_and_simulates_no_several(profile, cluster, monkeypatch):
    for name in ("partition_pipelines", "simulate_pipelines", "PipelinesAnswer"):
        monkeypatch.setattr(planning_module, name, lambda *_, **__: pytest.fail("a move costs as much as before"))
    explorer = PartitionExplorer(profile, cluster)
    explorer.controls.devices.between.value = 1e8
    choice = explorer.controls.pipelines
    assert explorer.messages.value == "" and explorer.view.waiting is None and "pipelines" not in scene(explorer)
    assert choice.picked is None and choice.more.layout.display == "none"
    assert "several" not in explorer.controls.settings().to_json() and explorer.plan.planner == "optimal"
    choice.straggler.kind.value = SLOW  # hidden: it says nothing
    assert explorer.messages.value == "" and explorer.shown.settings == explorer.controls.settings()


def test_what_is_shown_is_what_the_command_line_says(explorer, profile, cluster, tmp_path, capsys):
    explorer.controls.pipelines.rule.value = "all-reduce"
    explorer.controls.pipelines.straggler.kind.value = TYPED
    explorer.controls.pipelines.straggler.text.value = "slow:rank=0,factor=3"
    shown = explorer.current()
    (tmp_path / "cluster.toml").write_text(cluster.to_toml())
    given = ("--profile", profile.save(tmp_path / "profile.json"), "--cluster", tmp_path / "cluster.toml")
    out = tmp_path / "plan.json"
    planned = printed(capsys, "plan", *given, "--pipelines", 2, "--quick", "--replication", "all-reduce", "--out", out)
    assert [one.stages for one in Plan.load(out).pipelines] == [one.stages for one in shown.plan.pipelines]
    assert tile(explorer, "as predicted") == f"{as_measured(planned['samples_per_second'])} samples/s"
    over = planned["data_parallel_seconds"] / planned["period_seconds"]
    assert tile(explorer, "as predicted, over data parallelism") == f"{over:.2f} ×"
    told = {what: told for what, _, told in scene(explorer)["tiles"]}
    assert "over data parallelism" not in told, "as if it were of what trains together with the straggler"
    assert told["as predicted, over data parallelism"].startswith("Predicted, no straggler")
    assert tile(explorer, "optimality gap") == shown.plan.summary().rpartition("gap ")[2]
    count = ("--minibatches", len(shown.sizes))
    told = printed(capsys, "simulate", out, *given, *count, "--straggler", "slow:rank=0,factor=3")
    free = printed(capsys, "simulate", out, *given, *count)
    assert shown.forecast.sum_of_paces == told["sum_of_paces"]
    assert tile(explorer, "together") == f"{as_measured(told['sum_of_paces'])} samples/s"
    assert tile(explorer, "without the straggler") == f"{as_measured(free['sum_of_paces'])} samples/s"
    replication = told["replication"]
    assert tile(explorer, "group size") == f"{replication['mean_group_size']:.1f} pipelines"
    assert tile(explorer, "staleness") == f"{replication['mean_staleness']:.1f} updates"
    slowed, paced = (tile(explorer, name).split()[0].replace(",", "") for name in ("together", "without the straggler"))
    lost = Decimal(paced) - Decimal(slowed)  # of what a reader sees, so that it adds up
    assert f"the straggler costs {lost:,} of them" in explorer.view.waiting.told.value
    waited = max((one["waited_for_seconds"] for one in replication["pipelines"]), key=max)
    assert f"pipeline {waited.index(max(waited))} ({as_measured(max(waited))} s)" in explorer.view.waiting.waits.value


def test_throughput_is_in_minibatches_if_the_profile_has_no_batch_size(profile, cluster, tmp_path, capsys):
    """As most published profiles: the explorer called them samples/s."""
    unknown = replace(profile, origin={"model": "net"})
    made = PartitionExplorer(unknown, cluster)
    made.controls.pipelines.slider.value = 2
    shown = made.current()
    shown_texts = [
        made.view.drawing.scene,
        made.view.waiting.told.value,
        made.view.waiting.waits.value,
        made.view.waiting.paces.figure,
    ]
    assert not any("samples/s" in text for text in shown_texts)
    assert tile(made, "together") == f"{as_measured(shown.forecast.sum_of_paces)} minibatches/s"
    assert tile(made, "as predicted") == f"{as_measured(shown.plan.minibatches_per_second)} minibatches/s"
    (tmp_path / "cluster.toml").write_text(cluster.to_toml())
    given = ("--profile", unknown.save(tmp_path / "profile.json"), "--cluster", tmp_path / "cluster.toml")
    out = shown.plan.save(tmp_path / "plan.json")
    assert main([str(part) for part in ("simulate", out, *given)]) == 0
    text = capsys.readouterr().out
    assert "samples/s" not in text and "minibatches/s" in text
    document = printed(capsys, "simulate", out, *given)
    assert document["samples_per_second"] is None and document["minibatches_per_second"] > 0


def test_each_pipeline_is_drawn_with_its_own_stages_and_ranks(explorer):
    drawn, plans = scene(explorer), explorer.plan.pipelines
    for k, one in enumerate(drawn["pipelines"]):
        ranks = ", ".join(map(str, explorer.plan.ranks_of(k)))
        assert one["name"] in (f"pipeline {k} on ranks {ranks}", f"pipeline {k} on rank {ranks}")
    for one, plan in zip(drawn["pipelines"], plans, strict=True):
        stage_of = {id: s for s, stage in enumerate(plan.stages) for id in stage.layers}
        assert {id: stage for id, _, stage in one["layers"]} == stage_of
    assert len(drawn["stages"]) == sum(len(plan.stages) for plan in plans)
    heads = [row["head"] for row in drawn["stages"] if "head" in row]
    shown = [re.search(r": (\d+) minibatches, (\S+) samples/s", head).groups() for head in heads]
    forecast = explorer.shown.forecast
    assert [int(count) for count, _ in shown] == [one.minibatches for one in forecast.pipelines]
    paces = [float(part.replace(",", "")) for _, part in shown]
    assert paces == pytest.approx([one.samples_per_second for one in forecast.pipelines], abs=0.05)
    assert sum(paces) == pytest.approx(forecast.sum_of_paces, abs=0.1), "165 and 224 were 390 together"
    assert sum(row["slowest"] for row in drawn["stages"]) == 2
    lanes = [lane for k in range(2) for lane in (f"pipeline {k}", *explorer.plan.ranks_of(k))]
    assert drawn["ranks"] == lanes
    rows = {row for row, *_ in drawn["spans"]}
    assert rows == {k for k, lane in enumerate(lanes) if not isinstance(lane, str)}
    assert drawn["end"] == pytest.approx(explorer.trace.makespan)


@pytest.mark.slow
def test_a_straggler_costs_what_the_waiting_explorer_says(profile):
    rule = "partial-reduce"
    link = Link(1e9, 1e-5)
    explorer = PartitionExplorer(profile, Cluster.uniform(4, device_type="fast", link=link))
    other = WaitingExplorer(profile, link, pipelines=2, stages=2, rules=(rule,), rule=rule)
    explorer.controls.plan.planner.value, explorer.controls.pipelines.rule.value = "model-parallel", rule
    explorer.controls.pipelines.slider.value = 2
    for kind, number in ((PIPELINE, 1), (JITTER, 0)):
        for picker in (explorer.controls.pipelines.straggler, other.controls.straggler):
            picker.kind.value, picker.pipeline.value, picker.rank.value = kind, number, number
        shown = explorer.current()
        assert str(shown.stragglers) == str(other.stragglers())
        assert shown.forecast.sum_of_paces == other.shown.sum_of_paces
        assert shown.undisturbed.sum_of_paces == other.compared.undisturbed
        assert shown.forecast.group_sizes == other.shown.group_sizes
        assert explorer.view.waiting.told.value == other.waiting.told.value


def no_pipeline_left(explorer):
    explorer.controls.pipelines.slider.value = 5


def quorum_of_more(explorer):
    explorer.controls.pipelines.rule.value = "quorum"
    explorer.controls.pipelines.options.value = "quorum=3"


def option_of_another_rule(explorer):
    explorer.controls.pipelines.rule.value = "local-sgd"
    explorer.controls.pipelines.options.value = "grace=0.1"


def straggler_of_no_rank(explorer):
    explorer.controls.pipelines.straggler.kind.value = TYPED
    explorer.controls.pipelines.straggler.text.value = "slow:rank=4,factor=2"


def slow_pipeline_that_is_not_there(explorer):
    explorer.controls.pipelines.straggler.kind.value = PIPELINE
    explorer.controls.pipelines.straggler.pipeline.value = 2


def no_straggler(explorer):
    explorer.controls.pipelines.straggler.kind.value = TYPED
    explorer.controls.pipelines.straggler.text.value = "tired:rank=1"


def kill_that_ends_the_job(explorer):
    explorer.controls.pipelines.rule.value = "all-reduce"
    explorer.controls.pipelines.straggler.kind.value = TYPED
    explorer.controls.pipelines.straggler.text.value = "kill:rank=1,at=5"


def too_little_memory(explorer):
    explorer.controls.devices.memory.value = 1e6


@pytest.mark.parametrize(
    ("refuse", "told"),
    [
        (no_pipeline_left, "5 pipelines on 4 devices: expected at least one device each"),
        (quorum_of_more, "quorum"),
        (option_of_another_rule, "unknown option 'grace'"),
        (straggler_of_no_rank, "rank 4 does not exist, expected 0 to 3"),
        (slow_pipeline_that_is_not_there, "pipeline 2 does not exist, expected 0 to 1"),
        (no_straggler, "unknown straggler"),
        (kill_that_ends_the_job, "use another synchronization scheme"),
        (too_little_memory, "memory"),
    ],
)
def test_what_cannot_be_is_one_line_and_leaves_nothing_to_act_on(explorer, refuse, told):
    before = explorer.view.drawing.scene
    refuse(explorer)
    with raises("explorer.no_plan", "cannot be planned"):
        explorer.current()
    assert told in explorer.state.refused and "\n" not in explorer.state.refused
    assert "Traceback" not in explorer.messages.value and explorer.messages.value.count("<pre") == 1
    assert explorer.plan is None and explorer.view.drawing.scene == before
    assert explorer.view.drawing.stale.startswith("Last plan ") and "cannot be planned" in explorer.view.drawing.reason
    assert "sp-faded" in explorer.view.waiting.widget._dom_classes
    assert explorer.saver.save_button.disabled and explorer.exporter.button.disabled
    explorer.controls.pipelines.slider.value = 1
    explorer.controls.devices.memory.value = 0.0
    assert explorer.messages.value == explorer.view.drawing.stale == "" and explorer.plan.planner == "optimal"


def test_what_is_not_offered_for_several_pipelines_says_why(explorer):
    for button in (explorer.view.pin, explorer.controls.stages.pin_cuts, explorer.controls.stages.pin_devices):
        assert button.disabled and "pipelines to 1" in button.tooltip
    explorer.view.pin.click()  # in a cell
    assert "pipelines to 1" in explorer.messages.value and explorer.pinned is None
    explorer.controls.stages.pin_cuts.value = True
    assert not explorer.controls.stages.pin_cuts.value and explorer.controls.pipelines.picked is not None
    explorer.controls.pipelines.slider.value = 1
    assert not explorer.view.pin.disabled and not explorer.controls.stages.pin_cuts.disabled
    explorer.controls.stages.pin_cuts.value = True
    assert explorer.controls.pipelines.slider.disabled and "one pipeline" in explorer.controls.pipelines.note.value
    explorer.controls.stages.pin_cuts.value = False
    assert not explorer.controls.pipelines.slider.disabled and explorer.controls.pipelines.note.value == ""


def test_the_code_makes_the_pipelines_again(explorer, profile):
    explorer.controls.pipelines.rule.value, explorer.controls.pipelines.options.value = "local-sgd", "every=2"
    explorer.controls.pipelines.straggler.kind.value = SLOW
    explorer.controls.workload.batch_size.value, explorer.controls.plan.weights.value = 2 * BATCH_SIZE, "2bw"
    shown, scope = explorer.current(), {"profile": profile}
    exec(scene(explorer)["code"], scope)
    made = scope["plan"]
    assert made.replication == shown.plan.replication and made.samples == 2 * BATCH_SIZE
    assert [(one.stages, one.weights) for one in made.pipelines] == [
        (one.stages, "2bw") for one in shown.plan.pipelines
    ]
    assert scope["told"].sum_of_paces == shown.forecast.sum_of_paces


@pytest.mark.slow
def test_a_rule_brings_its_own_options(explorer):
    choice = explorer.controls.pipelines
    for name in ("all-reduce", "local-sgd"):
        choice.rule.value = name
        assert choice.options.value == "" and RULES[name].summary[1:] in html.unescape(choice.about.value)
        assert ("=none" in choice.about.value) == ("(none: chosen by the scheme)" in choice.about.value)
        choice.options.value = "" if choice.options.disabled else "every=2"
        assert explorer.current().plan.replication.every == (1 if choice.options.disabled else 2)


def test_pipelines_are_saved_opened_on_the_board_and_exported(profile, cluster, tmp_path, monkeypatch):
    from sparsepipe.runtime.config import RunConfig

    config = RunConfig("net", "data", batch_size=BATCH_SIZE, voxel_size=0.04)
    board = LaunchBoard({}, config, runs=tmp_path / "runs")
    settings = {"plans": tmp_path / "plans", "figures": tmp_path / "figures", "board": board}
    explorer = PartitionExplorer(profile, cluster, **settings)
    explorer.controls.pipelines.slider.value = 2
    shown = explorer.current()
    explorer.saver.save_button.click()
    path = tmp_path / "plans" / "optimal-2-pipelines-001.json"
    assert Plan.load(path) == shown.plan and f"sparsepipe train {path} --model net" in explorer.saver.told.value
    explorer.saver.launch_button.click()
    line = board.offered.lines["optimal-2-pipelines-002"]
    assert board.prepared(line.name) == (shown.plan, config) and line.widget in board.offered.widget.children
    assert f"{as_measured(shown.plan.minibatches_per_second * BATCH_SIZE)} samples/s" in line.promise.value
    assert "pipeline 1: " in line.promise.value and "synchronized by partial-reduce" in line.promise.value
    board.settings.schedule.value = "1f1b-flush"
    counts = {one.num_microbatches for one in board.prepared(line.name)[0].pipelines}
    assert len(counts) == 1 and board.messages.value == "", "steps of all pipelines are alike"
    with raises("board.job_undecided"):
        explorer.saver.apply()  # no job runs
    monkeypatch.setenv("BROWSER_PATH", str(tmp_path / "none"))  # the tables are written all the same
    made = explorer.exporter.make()
    assert {"explorer_waiting", "explorer_lost_seconds", "explorer_stages", "explorer_timeline"} <= set(made.figures)
    assert set(made.figures["explorer_stages"][1].plan) == {"pipeline 0", "pipeline 1"}
    assert made.origin.settings["several"]["count"] == 2 and made.origin.settings["stragglers"] == ""


def test_of_moves_in_a_row_the_last_is_planned_and_the_page_is_not_held_up(explorer, monkeypatch):
    begun, go_on, planned = threading.Event(), threading.Event(), []
    own = explorer.together.answer

    def slow(asked):
        planned.append(asked.settings.network_bandwidth)
        begun.set()
        assert go_on.wait(ENOUGH)
        return own(asked)

    monkeypatch.setattr(explorer.together, "answer", slow)
    monkeypatch.setattr(explorer.later, "_pause", 0.0)
    before = explorer.view.drawing.scene
    explorer.controls.devices.between.value = 1e8
    assert begun.wait(ENOUGH) and planned == [1e8]
    assert (
        explorer.plan is None
        and explorer.view.drawing.stale.startswith("Planning 2 pipelines")
        and explorer.view.drawing.pending
    )
    assert explorer.saver.save_button.disabled and "lanning the pipelines" in explorer.saver.save_button.tooltip
    for bandwidth in (2e8, 3e8, 4e8):  # while that is planned
        explorer.controls.devices.between.value = bandwidth
    assert explorer.view.drawing.scene == before
    go_on.set()
    assert explorer.current().settings.network_bandwidth == 4e8 and planned == [1e8, 4e8], "one plan for three moves"
    assert scene(explorer)["serial"] == json.loads(before)["serial"] + 1, "what was overtaken is not drawn"
    begun.clear(), go_on.clear()
    explorer.controls.devices.between.value = 5e8
    assert begun.wait(ENOUGH)
    explorer.controls.pipelines.slider.value = 1
    assert explorer.plan.planner == "optimal" and explorer.view.drawing.stale == "", "one pipeline waits for nothing"
    drawn = explorer.view.drawing.scene
    go_on.set()
    until(lambda: explorer.later._thread is None, "the end of what was overtaken")
    assert explorer.view.drawing.scene == drawn and explorer.messages.value == ""


def test_a_straggler_or_a_rule_plans_nothing_anew(explorer, monkeypatch):
    monkeypatch.setattr(planning_module, "partition_pipelines", lambda *_, **__: pytest.fail("planned again"))
    explorer.controls.pipelines.straggler.kind.value = SLOW
    assert explorer.current().stragglers.parts
    explorer.controls.pipelines.rule.value = "wsp"
    assert explorer.current().plan.replication.name == "wsp"
    explorer.controls.pipelines.straggler.kind.value = NOBODY
    assert explorer.current().forecast is explorer.current().undisturbed


def test_of_work_for_later_the_last_that_was_asked_is_done_and_the_thread_ends():
    done, begun, go_on = [], threading.Event(), threading.Event()

    def act(what):
        begun.set()
        assert go_on.wait(ENOUGH)
        done.append(what)

    later = Later(act, pause=0.0, name="a test")
    for first, drop in ((1, False), (4, True)):
        begun.clear()
        go_on.clear()
        later.ask(first)
        assert begun.wait(ENOUGH)
        later.ask(first + 1)
        later.ask(first + 2)
        if drop:
            later.drop()
        go_on.set()
        until(lambda: later._thread is None, "the end of the thread")
    assert done == [1, 3, 4]
