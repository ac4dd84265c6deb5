import json

import pytest

from sparsepipe import InputError, Plan, RunRecord, Stage
from sparsepipe.errors import DamagedRecord
from sparsepipe.records import Origin
from sparsepipe.records.run_progress import begin_plan, forget_processes, keep_processes, num_processes, plan_at
from sparsepipe.util.io.files import write_rows

ONE = Plan((Stage(("a", "b"), (0,)),))
TWO = Plan((Stage(("a",), (0,)), Stage(("b",), (1,))))
GPIPE = TWO.with_schedule("gpipe", num_microbatches=2)


@pytest.fixture
def record(tmp_path) -> RunRecord:
    return RunRecord.create(tmp_path / "run", ONE, {}, Origin())


def plans_of(record: RunRecord) -> tuple:
    return RunRecord(record.folder).plans


def test_each_plan_is_kept_with_the_minibatch_it_began_at(record):
    assert record.plans == ((0, ONE),)
    begin_plan(record.folder, TWO, 8)
    begin_plan(record.folder, TWO, 16)  # goes on under the same plan
    begin_plan(record.folder, ONE, 24)
    assert plans_of(record) == ((0, ONE), (8, TWO), (24, ONE))
    assert RunRecord(record.folder).plan == ONE == Plan.load(record.folder / "plan.json")
    names = sorted(path.name for path in (record.folder / "plans").iterdir())
    assert names == ["000.json", "001.json", "002.json"]
    document = json.loads((record.folder / "plans/001.json").read_text())
    assert document == {"first_minibatch": 8, "plan": TWO.to_json()}


def test_the_plan_of_a_minibatch(record):
    begin_plan(record.folder, TWO, 8)
    begin_plan(record.folder, GPIPE, 4)  # back to an earlier checkpoint: what came after it is done again
    plans = plans_of(record)
    assert [plan_at(plans, m) for m in (0, 3, 4, 7, 8, 100)] == [ONE, ONE, GPIPE, GPIPE, GPIPE, GPIPE]
    write_rows(record.folder / "metrics.jsonl", [{"event": "step", "epoch": m // 4, "minibatch": m} for m in range(8)])
    again = RunRecord(record.folder)
    assert [again.plan_of_epoch(epoch) for epoch in (0, 1, 2)] == [ONE, GPIPE, GPIPE]


def test_a_plan_that_no_worker_followed_is_left_out(record):
    """A kill came after plans/ was written and before plan.json was."""
    begin_plan(record.folder, TWO, 8)
    ONE.save(record.folder / "plan.json")
    assert plans_of(record) == ((0, ONE),)
    begin_plan(record.folder, GPIPE, 6)
    assert plans_of(record) == ((0, ONE), (6, GPIPE))
    begin_plan(record.folder, TWO, 8)
    GPIPE.save(record.folder / "plan.json")
    begin_plan(record.folder, GPIPE, 12)
    assert plans_of(record) == ((0, ONE), (6, GPIPE))
    assert not (record.folder / "plans/002.json").exists()


def test_records_of_earlier_versions_tell_their_plans_without_the_minibatch(record):
    for path in (record.folder / "plans").iterdir():
        path.unlink()
    assert plans_of(record) == ((0, ONE),), "it never changed"
    for k in range(1, 11):  # ten of them: by number, not as text
        ONE.with_schedule("1f1b", num_microbatches=k).save(record.folder / f"plan-before-{k}.json")
    TWO.save(record.folder / "plan.json")
    found = plans_of(record)
    assert [first for first, _ in found] == [0, *[None] * 10]
    assert [plan.num_microbatches for _, plan in found] == [*range(1, 11), 1] and found[-1].plan == TWO
    begin_plan(record.folder, GPIPE, 40)
    assert plans_of(record) == (*found, (40, GPIPE))


def test_a_plan_written_by_hand_is_the_newest(record):
    GPIPE.save(record.folder / "plan.json")
    assert plans_of(record) == ((0, ONE), (None, GPIPE))


@pytest.mark.parametrize("content", ["", "[]", '{"plan": {}}', '{"first_minibatch": -1, "plan": {}}', "\0"])
def test_a_damaged_plan_is_named_and_nothing_is_changed(record, content):
    begin_plan(record.folder, TWO, 8)
    path = record.folder / "plans/000.json"
    path.write_text(content)
    before = {path: path.read_bytes() for path in record.folder.rglob("*.json")}
    with pytest.raises(DamagedRecord, match=r"plans/000\.json"):
        _ = RunRecord(record.folder).plans
    with pytest.raises(InputError, match=r"plans/000\.json"):
        begin_plan(record.folder, GPIPE, 12)
    assert before == {path: path.read_bytes() for path in record.folder.rglob("*.json")}
    path.unlink()
    assert plans_of(record) == ((8, TWO),), "the others are read without it"


def test_a_damaged_newest_plan_can_be_replaced(record):
    (record.folder / "plan.json").write_text("{")
    begin_plan(record.folder, TWO, 8)
    assert plans_of(record) == ((0, ONE), (8, TWO))


def test_a_job_has_as_many_processes_as_its_plan_has_ranks_unless_that_leaves_out_some(record):
    folder = record.folder
    assert num_processes(folder, ONE) == 1 and num_processes(folder, TWO) == 2
    keep_processes(folder, 3)
    assert num_processes(folder, ONE) == 3 and num_processes(folder, TWO) == 2, "TWO is not what it follows"
    begin_plan(folder, TWO, 8)
    assert num_processes(folder, TWO) == 3
    forget_processes(folder)
    forget_processes(folder)
    assert num_processes(folder, TWO) == 2


@pytest.mark.parametrize("document", ["", "[]", "{}", '{"count": 0}', '{"count": "3"}', '{"count": 1e9}'])
def test_a_damaged_number_of_processes_is_named_in_one_line(record, document):
    (record.folder / "processes.json").write_text(document)
    with pytest.raises(InputError, match=r"processes\.json") as caught:
        num_processes(record.folder, ONE)
    assert "\n" not in str(caught.value)
