"""The waiting explorer without a browser: what a picker changes, and what cannot be."""

import json
from dataclasses import replace

import pytest
from test_pipeline_simulator import network

from sparsepipe import InputError, Link
from sparsepipe.widgets import WaitingExplorer
from sparsepipe.widgets.waiting import JITTER, NOBODY, PIPELINE, SLOW, STOP

RULES = ("all-reduce", "partial-reduce:wait=0.1", "local-sgd:every=2")


@pytest.fixture
def explorer(tmp_path):
    profile = replace(network(4, forward=0.01), sizes=(1.0,), origin={"batch_size": 8})
    made = WaitingExplorer(profile, Link(), rules=RULES, rule=RULES[1], minibatches=6, figures=tmp_path)
    made.straggler.value = SLOW
    return made


def bars(view):
    return [trace for trace in json.loads(view.figure)["data"] if trace["type"] == "bar"]


def test_what_is_picked_is_simulated_at_once(explorer):
    assert explorer.messages.value == ""
    assert [bar["name"] for bar in bars(explorer.paces)[:-1]] == list(RULES)
    told = explorer.told.value
    assert told.startswith("<b>partial-reduce:wait=0.1</b>")
    explorer.rule.value = "all-reduce"
    assert explorer.told.value.startswith("<b>all-reduce</b>") and 4 in explorer.shown.group_sizes
    explorer.factor.value = 16
    assert "rank 0 is 16 times as slow" in json.loads(explorer.lost.figure)["layout"]["title"]["text"]
    explorer.pipelines.value = 2
    assert len(explorer.shown.pipelines) == 2


def test_a_straggler_costs_all_reduce_more_than_a_rule_that_does_not_wait(explorer):
    shares = {one.rule: one.samples_per_second / one.own_pace for one in explorer._of_straggler()}
    assert shares["all-reduce"] < 0.6 < 0.95 < shares["partial-reduce:wait=0.1"]


def test_sliders_that_say_nothing_are_grey(explorer):
    assert not explorer.factor.disabled and explorer.chance.disabled and explorer.seconds.disabled
    explorer.straggler.value = JITTER
    assert explorer.factor.disabled and not explorer.chance.disabled and not explorer.seconds.disabled
    explorer.straggler.value = STOP
    assert not explorer.rank.disabled and str(explorer.stragglers()).startswith("stop:")
    explorer.straggler.value = NOBODY
    assert explorer.rank.disabled and not explorer.stragglers().parts
    assert explorer.messages.value == "" and len(explorer._drawn) == len(RULES)


def test_a_slow_pipeline_is_all_ranks_of_it(explorer):
    explorer.straggler.value = PIPELINE
    explorer.rank.value = 3
    _, planned = explorer._plan()
    assert {part.rank for part in explorer.stragglers().parts} == set(planned.ranks_of(1))


def test_what_cannot_be_is_said_and_the_picture_stays(explorer):
    before = explorer.paces.figure
    explorer.rank.value = 60
    assert "rank 60 is not there; expected 0 to 7" in explorer.messages.value
    assert explorer.paces.figure == before
    explorer.rank.value = 7
    assert explorer.messages.value == ""
    with pytest.raises(InputError, match="no such rule"):
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
    assert other.groups.layout.display == "none" and "no average yet" in other.told.value
