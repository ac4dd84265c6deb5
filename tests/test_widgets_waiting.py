"""The waiting explorer without a browser: what a picker changes, and what cannot be."""

import json
import re
from dataclasses import replace

import pytest
from coded import mentions, raises
from test_pipeline_simulator import like_pipelines, network

from sparsepipe import Link, simulate_pipelines
from sparsepipe.cli.plan_verbs import forecast_text
from sparsepipe.values.stragglers import Stragglers
from sparsepipe.views.widgets import WaitingExplorer
from sparsepipe.views.widgets.settings import JITTER, NOBODY, PIPELINE, SLOW, STOP, TYPED
from sparsepipe.views.widgets.waiting_figures import waits_table

RULES = ("all-reduce", "partial-reduce:wait=0.1", "local-sgd:every=2")


@pytest.fixture
def explorer(tmp_path):
    profile = replace(network(4, forward=0.01), sizes=(1.0,), origin={"batch_size": 8})
    made = WaitingExplorer(profile, Link(), rules=RULES, rule=RULES[1], minibatches=6, figures=tmp_path)
    made.controls.straggler.kind.value = SLOW
    return made


def keys(view):
    """What the legend has for bars."""
    bars = [trace for trace in json.loads(view.figure)["data"] if trace["type"] == "bar"]
    return [bar for bar in bars if bar.get("showlegend") is not False]


def test_what_is_picked_is_simulated_at_once(explorer):
    assert explorer.messages.value == ""
    *rules, source = keys(explorer.waiting.paces)
    assert [key["name"] for key in rules] == list(RULES) and source["name"] == "simulated"
    assert source["marker"]["line"]["width"] and not any("line" in key["marker"] for key in rules)
    assert source["marker"]["color"] not in {key["marker"]["color"] for key in rules}
    told = explorer.waiting.told
    assert "<b>partial-reduce:wait=0.1</b>: " in told.value
    explorer.controls.rule.value = "all-reduce"
    assert "<b>all-reduce</b>: " in told.value and 4 in explorer.shown.group_sizes
    explorer.controls.straggler.factor.value = 16
    assert mentions(json.loads(explorer.waiting.lost.figure)["layout"]["title"]["text"], "rank 0", 16)
    explorer.controls.pipelines.value = 2
    assert len(explorer.shown.pipelines) == 2


def test_a_straggler_costs_all_reduce_more_than_a_rule_that_does_not_wait(explorer):
    shares = {one.rule: one.samples_per_second / one.own_pace for one in explorer.compared.held}
    assert shares["all-reduce"] < 0.6 < 0.95 < shares["partial-reduce:wait=0.1"]


def test_what_a_straggler_costs_is_the_difference_of_what_is_shown(explorer):
    """ "390 together, 881 without the straggler: the straggler costs 492 of them", said the sentence."""
    shown = r"</b>: (\S+) samples/s together, (\S+) without the straggler: the straggler costs (\S+) of them"
    for factor in (3, 11):
        explorer.controls.straggler.factor.value = factor
        pace, free, lost = (
            float(text.replace(",", "")) for text in re.search(shown, explorer.waiting.told.value).groups()
        )
        assert free - pace == pytest.approx(lost, abs=1e-9 * free)


def test_a_table_of_waits_has_no_empty_column(explorer):
    """Where no pipeline waited, the column "for" was empty."""
    heads = []
    for rule in RULES:
        explorer.controls.rule.value = rule
        rows = [re.findall(r"<t[hd].*?>(.*?)</t[hd]>", row) for row in explorer.waiting.waits.value.split("<tr>")[1:]]
        assert all(any(cells) for _, *cells in zip(*rows, strict=True))
        heads.append(rows[0][-1])
    assert "waited for" in heads and "waited" in heads


def test_who_is_held_up_until_nothing_is_left_did_not_wait_for_time():
    pipelines, cluster = like_pipelines(2, 2, "wsp:every=1,bound=0")
    slow = Stragglers.parse("slow:rank=0,factor=10")
    found = simulate_pipelines(pipelines, network(2), cluster, [1] * 9, stragglers=slow)
    assert mentions(waits_table(found), "27.0 s") and "time to be" not in waits_table(found)
    assert mentions(forecast_text(found), "27.0 s")


def test_controls_that_say_nothing_are_hidden(explorer):
    picker = explorer.controls.straggler

    def shown():
        controls = {name: getattr(picker, name) for name in ("pipeline", "rank", "factor", "chance", "seconds", "text")}
        assert all(one.disabled == (one.layout.display == "none") for one in controls.values())
        return [name for name, one in controls.items() if not one.disabled]

    assert shown() == ["rank", "factor"]
    picker.kind.value = JITTER
    assert shown() == ["chance", "seconds"]
    picker.kind.value = STOP
    assert shown() == ["rank", "seconds"] and str(explorer.stragglers()).startswith("stop:")
    picker.kind.value = NOBODY
    assert shown() == [] and not explorer.stragglers().parts
    assert explorer.messages.value == "" and len(explorer.compared.outcomes) == len(RULES)


def test_a_straggler_is_typed_as_the_command_line_takes_it(explorer):
    picked = explorer.shown
    explorer.controls.straggler.kind.value = TYPED
    explorer.controls.straggler.text.value = "slow:rank=0,factor=4"
    assert explorer.shown is picked and explorer.messages.value == "", "the same, however it is said"
    explorer.controls.straggler.text.value = "slow:rank=0,factor=4;sleepy"
    assert "Unknown straggler" in explorer.messages.value and "Traceback" not in explorer.messages.value


def test_a_slow_pipeline_is_all_ranks_of_it(explorer):
    explorer.controls.straggler.kind.value = PIPELINE
    explorer.controls.straggler.pipeline.value = 1
    _, planned = explorer.simulations.plan(explorer.controls)
    assert {part.rank for part in explorer.stragglers().parts} == set(planned.ranks_of(1))


def test_what_cannot_be_is_said_and_the_picture_stays(explorer):
    before = explorer.waiting.paces.figure
    picker = explorer.controls.straggler
    for kind, number, what in ((SLOW, picker.rank, "rank 60"), (PIPELINE, picker.pipeline, "pipeline 60")):
        picker.kind.value = kind
        shown, of = explorer.compared, explorer.waiting.stale
        number.value = 60
        assert (
            f"{what} does not" in (text := str(explorer.messages.value)) and f"0 to {7 if kind == SLOW else 3}" in text
        )
        assert (
            explorer.compared is shown
            and "4 pipelines" in of.value
            and "sp-faded" in explorer.waiting.widget._dom_classes
        )
        assert explorer.exporter.button.disabled and "cannot be simulated" in explorer.exporter.button.tooltip
        explorer.exporter.button.click()
        assert f"{what} does not exist" in explorer.messages.value and "was exported" in explorer.messages.value.lower()
        number.value = 0
        assert explorer.messages.value == of.value == "" and not explorer.exporter.button.disabled
        assert "sp-faded" not in explorer.waiting.widget._dom_classes
    explorer.controls.straggler.kind.value = SLOW
    assert explorer.waiting.paces.figure == before
    with raises("replication.unknown"):
        WaitingExplorer(explorer.profile, Link(), rules=("majority",))


def test_what_is_exported_is_what_is_drawn(explorer):
    made = explorer.exporter.make()
    assert set(made.figures) == {"explorer_waiting", "explorer_lost_seconds", "explorer_groups"}
    assert made.origin.settings["stragglers"] == "slow:rank=0,factor=4"
    table = made.figures["explorer_waiting"][1]
    assert len(table) == 2 * len(RULES)


def test_a_rule_that_did_not_average_yet_shows_no_groups(explorer):
    profile = explorer.profile
    other = WaitingExplorer(profile, Link(), rules=("diloco",), rule="diloco", minibatches=4)
    assert other.waiting.groups.layout.display == "none" and "no average yet" in other.waiting.told.value
