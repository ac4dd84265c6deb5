"""Runs over ssh with --encrypt: the same losses, and nothing in clear on the network between the hosts."""

import numpy as np
import pytest
from hosts_desk import FLUSH, MODEL, config, listened_to
from runtime_jobs import plan_of

from sparsepipe.records import RunRecord
from sparsepipe.runtime.plan_fit import PREDICTIONS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_sealed_replicas_on_hosts_train_like_one_device_also_when_they_are_started_again(desk):
    """Three replicas of the last stage, of which two share a host: one dies after the first checkpoint.

    Those are summed within their host first. Each host tells of the losses of its own minibatches.
    """
    heard, folder, own = {}, desk.folder / "sealed", {"stragglers": "kill:rank=2,at=6", "max_restarts": 1}
    plan, counts = plan_of(MODEL, [[0], [1, 2, 3]], **FLUSH), [1, 2, 1]
    told = desk.told("sealed", plan, config(encrypt=True, **own), *desk.network.hosts, counts=counts)
    with listened_to(desk.network, heard):
        assert desk.launch(told) == ["finished"]
    assert heard["clear"] == 0 and heard["encrypted"] > 10, heard
    assert desk.losses("sealed") == pytest.approx(desk.losses("one"), rel=2e-4, abs=2e-5)  # sums in another order
    record = RunRecord.load(folder)
    assert [row["minibatches"] for row in record.metrics("resume")] == [5]
    assert {span.rank for span in record.trace().spans if span.kind == "average"} == {1, 2, 3}
    assert [row["run_dir"] for row in record.metrics("summary")] == [str(folder)]
    newest = folder / "checkpoints" / "minibatch-00000010"
    assert {path.name for path in newest.iterdir()} == {"manifest.json", *(f"stage{k}.safetensors" for k in range(2))}
    desk.check_nothing_is_left()


def test_outputs_computed_on_hosts_are_those_of_one_process_to_the_bit(desk):
    """From the weights of a run on the desk, which each host gets as far as its stages need them.

    The last stage is on both hosts, so that what one computes crosses the network: in clear, and it is heard.
    """
    hosts, trained, heard = desk.network.hosts[:2], desk.folder / "one", {}
    told = [
        desk.told("alone", plan_of(MODEL, [[0]], **FLUSH), config(), forward_only=trained),
        desk.told("spread", plan_of(MODEL, [[0], [1, 2]]), config(), *hosts, counts=[2, 1], forward_only=trained),
    ]
    with listened_to(desk.network, heard):
        assert desk.launch(*told) == ["finished"] * 2
    assert heard["clear"] > 10 and heard["encrypted"] == 0, heard
    one, other = (dict(np.load(desk.folder / name / PREDICTIONS)) for name in ("alone", "spread"))
    assert one.keys() == other.keys() and all(np.array_equal(one[key], other[key]) for key in one)
    (summary,) = RunRecord(desk.folder / "spread").metrics("summary")
    assert summary["predictions"] == str(desk.folder / "spread" / PREDICTIONS)
    assert summary["checkpoint"] == str(trained / "checkpoints" / "minibatch-00000010")
    desk.check_nothing_is_left()
