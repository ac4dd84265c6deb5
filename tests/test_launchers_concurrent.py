"""Runs that share the machine know of each other; a run's record says what it rests on and which campaign it is of."""

import os

from sparsepipe.launching.prepare import prepare
from sparsepipe.networks import network
from sparsepipe.records.campaigns import differences
from sparsepipe.records.provenance import Provenance, plan_digest
from sparsepipe.runtime import RunConfig
from sparsepipe.runtime.workloads.resolved import resolve
from sparsepipe.values.plan import Plan, Stage

MODEL = "minkvgg11bn-narrow"


def prepared(folder, campaign=None):
    layers = tuple(layer.id for layer in network(MODEL, num_classes=2).graph().layers)
    plan, config = Plan((Stage(layers, (0,)),)), RunConfig(MODEL, "digits")
    return prepare(plan, resolve(config), run_dir=folder, resume=False, campaign=campaign)


def test_a_run_beside_another_job_is_marked_and_so_is_the_other(tmp_path):
    """06_launch took a run launched from the board while another job was at work: 116 samples/s."""
    one, (held,) = prepared(tmp_path / "one")
    other, (second,) = prepared(tmp_path / "other")
    os.close(held)  # the first has ended
    third, (last,) = prepared(tmp_path / "third")
    os.close(second)
    os.close(last)
    assert one.beside == ("other",) and other.beside == ("one", "third") and third.beside == ("other",)
    assert any("as another job" in text for text in differences([one, third]))
    alone, (lock,) = prepared(tmp_path / "alone")
    os.close(lock)
    assert alone.beside == ()


def test_a_record_says_what_it_rests_on(tmp_path):
    record, (lock,) = prepared(tmp_path / "run", campaign="m-20261125T090000-abc")
    os.close(lock)
    known = Provenance.from_json(record.origin["provenance"])
    assert record.campaign == known.campaign == "m-20261125T090000-abc"
    assert known.plans[0]["digest"] == plan_digest(record.plan) and known.settings["model"] == MODEL
