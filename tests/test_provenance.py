"""Provenance: the same value has the same digest, another link has another, and what is doubtful is told."""

import json
from dataclasses import replace

import pytest
from coded import mentions
from hypothesis import given
from hypothesis import strategies as st

from sparsepipe.errors import InputError
from sparsepipe.records import Origin, RunRecord
from sparsepipe.records.campaigns import differences, new_campaign, when
from sparsepipe.records.provenance import Provenance, in_few_words, plan_digest
from sparsepipe.util.derived import canonical, digest
from sparsepipe.values.cluster import Cluster, Link
from sparsepipe.values.graph import Layer, LayerGraph
from sparsepipe.values.plan import Plan, Stage
from sparsepipe.values.profile import CostSample, LayerCost, Profile

CLUSTER = Cluster.uniform(2, device_type="cpu", link=Link(1e9, 1e-5))
PLAN = Plan((Stage(("a",), (0,)), Stage(("b",), (1,))), warnings=("it waits",))


def profile(ratio=1.0):
    graph = LayerGraph.from_ids([Layer("a", "a", 4), Layer("b", "b", 0)], [("a", "b")])
    costs = (LayerCost((CostSample(10, 1, 2, 3),)),) * 2
    origin = {"source": "measured", "layers_over_whole": ratio}
    return Profile(graph, {"cpu": costs}, (10.0, 12.5), origin, {"cpu": 1e-9})


def record(folder, name, created="2026-11-25T09:00:00+00:00", campaign=None, beside=(), seconds=60.0):
    config = {"batch_size": 4, "model": "m"}
    made = RunRecord.create(folder / name, PLAN, config, replace(Origin.here(campaign=campaign), created=created))
    row = {"event": "summary", "seconds": seconds, "samples_per_second": 8.0}
    (made.folder / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    if beside:
        made.note_beside(*beside)
    return RunRecord.load(made.folder)


def test_one_links_bandwidth_changes_the_digest_of_the_cluster():
    """`prediction` and `bubble_anatomy` rested on two links a factor 3.6 apart, and no file could tell."""
    same = Cluster.uniform(2, device_type="cpu", link=Link(1e9, 1e-5))
    slower = replace(CLUSTER, network=Link(2.5e8, 1e-5))
    assert same.digest == CLUSTER.digest != slower.digest
    told = [Provenance.of(profile(), cluster).to_json() for cluster in (CLUSTER, slower)]
    assert told[0]["digest"] != told[1]["digest"]
    assert told[0]["clusters"][0]["network"]["bandwidth"] == 1e9


def test_a_value_read_from_its_file_has_the_digest_it_was_written_with(tmp_path):
    (tmp_path / "c.toml").write_text(CLUSTER.to_toml())
    assert Cluster.load(tmp_path / "c.toml").digest == CLUSTER.digest
    assert Profile.load(profile().save(tmp_path / "p.json")).digest == profile().digest
    assert plan_digest(Plan.load(PLAN.save(tmp_path / "plan.json"))) == plan_digest(PLAN)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(values)
def test_every_json_value_has_a_digest_that_survives_a_file(value):
    text = json.dumps(canonical(value), allow_nan=False)
    assert digest(json.loads(text)) == digest(value) == digest(canonical(value))


def test_json_round_trip_and_old_files(tmp_path):
    whole = Provenance.of(
        profile(0.5), CLUSTER, [PLAN], {"schedule": "1f1b"}, [record(tmp_path, "r-001")], load={"warning": "busy"}
    )
    assert Provenance.from_json(json.loads(json.dumps(whole.to_json(), allow_nan=False))) == whole
    assert mentions(whole.warnings[0], "0.500 x")
    assert whole.warnings[1:] == ("busy", "it waits")
    assert whole.doubts == ("profile of cpu: layers' sum is 0.500 × a whole step", "busy")  # a plan's warning is none


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {},
        {"format": "sparsepipe-provenance-1", "runs": 3},
        {"format": "sparsepipe-provenance-1", "plans": ["x"]},
        {"format": "sparsepipe-provenance-1", "warnings": [1]},
        {"format": "sparsepipe-provenance-1", "settings": []},
        {"format": "sparsepipe-provenance-1", "campaign": {}},
    ],
)
def test_what_is_no_provenance_is_refused(document):
    with pytest.raises(InputError, match="provenance"):
        Provenance.from_json(document)


def test_a_subtitle_tells_the_doubtful_part_in_a_line():
    assert Provenance.of(profile(), CLUSTER, [PLAN]).doubt is None
    doubt = Provenance.of(profile(0.506)).doubt
    assert mentions(doubt, "0.506 ×")
    many = Provenance().with_warnings("a; do this", "b, expected c", "d", "e")
    assert many.doubt == "doubtful: a; b; and 2 more"
    long = Provenance().with_warnings("a" * 140, "b" * 40)
    assert long.doubt == f"doubtful: {'a' * 140}; and 1 more"
    assert in_few_words("The loop is long.") == "The loop is long"


def test_a_run_under_other_load_makes_doubtful_what_shows_it(tmp_path):
    """06_launch took runs that had shared the machine with another job, and no figure told."""
    run = record(tmp_path, "r-001")
    row = {"event": "summary", "seconds": 60.0, "load": {"other_cpu_share": 0.34, "steal_share": None}}
    (run.folder / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    found = Provenance.of(runs=[run, record(tmp_path, "r-002")])
    assert mentions(found.doubt, "r-001", "34%")
    assert found.runs[0]["load"]["other_cpu_share"] == 0.34


def test_numbers_that_are_no_times_are_not_doubtful_for_a_busy_machine(tmp_path):
    """Bytes and accuracies of figure 7 stood under "its threads waited for a processor", "different campaigns"."""
    runs = [record(tmp_path, "r-001", campaign="a"), record(tmp_path, "r-002", campaign="b")]
    row = {"event": "summary", "seconds": 60.0, "load": {"other_cpu_share": 0.34, "steal_share": None}}
    (runs[0].folder / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    load = {"warning": "a busy machine"}
    found = Provenance.of(profile(0.506), CLUSTER, runs=runs, load=load, warnings=["half of the data"], timed=False)
    assert found.doubts == found.warnings == ("half of the data",)
    assert found.runs[0]["load"]["other_cpu_share"] == 0.34, "what was at work stays known"
    assert len(Provenance.of(profile(0.506), CLUSTER, runs=runs, load=load).doubts) == 4


def test_two_provenances_join():
    a, b = Provenance.of(profile(), CLUSTER), Provenance.of(profile(0.5), CLUSTER, campaign="x")
    joined = a | b
    assert len(joined.profiles) == 2 and len(joined.clusters) == 1 and joined.doubts == b.doubts
    assert a | a == a


def test_runs_of_one_campaign_may_be_compared(tmp_path):
    name = new_campaign("m", {"epochs": 1})
    runs = [
        record(tmp_path, "a", campaign=name),
        record(tmp_path, "b", "2026-11-25T12:00:00+00:00", campaign=name),
    ]
    assert differences(runs) == [] and Provenance.of(runs=runs).campaign == name
    assert mentions(when(runs), "2026-11-25", "09:00", "12:01", "UTC")


def test_runs_of_different_campaigns_or_hours_are_told(tmp_path):
    """A second run of 06_launch said "0.52 × one process": one of the two was an old record."""
    one = record(tmp_path, "a", campaign="m-1")
    other = record(tmp_path, "b", "2026-11-26T12:00:00+00:00", campaign="m-2")
    dates = "a (2026-11-25 09:00), b (2026-11-26 12:00)"
    assert differences([one, other]) == [f"runs of different campaigns: {dates}"]
    again = record(tmp_path, "a2", "2026-11-25T09:05:00+00:00", campaign="m-1")
    assert differences([other, again, one]) == [f"runs of different campaigns: {dates}"], "each campaign once"
    assert mentions(Provenance.of(runs=[one, other]).doubt, dates)
    alone, soon = record(tmp_path, "c"), record(tmp_path, "d", "2026-11-25T09:30:00+00:00")
    late = record(tmp_path, "e", "2026-11-25T11:00:00+00:00")
    assert differences([alone, soon]) == []
    assert differences([alone, late]) == ["runs of different hours: 2026-11-25 09:00, 2026-11-25 11:00"]
    undated = record(tmp_path, "f", "")
    assert differences([undated, alone]) == [] and when([undated]) == ""


def test_a_run_beside_another_job_is_told(tmp_path):
    """A run launched from the board beside another job stood in a bar chart as if it had been alone: 116 samples/s."""
    alone, beside = record(tmp_path, "a"), record(tmp_path, "b", beside=["c-001"])
    assert differences([alone, beside]) == ["b ran at the same time as another job: c-001"]
    together = [record(tmp_path, "d", beside=["e"]), record(tmp_path, "e", beside=["d"])]
    assert differences(together) == []
    assert differences([alone, *together]) == ["runs under different load: d, e ran at once, the other did not"]
    third = record(tmp_path, "f")
    assert differences([alone, *together, third])[-1].endswith("d, e ran at once, the others did not")
