"""The coordinator's state by hand: an epoch of two pipelines, deaths, holders, what is refused and what is counted."""

import pytest
from coded import raises

from sparsepipe.errors import InputError
from sparsepipe.runtime.pipelines.base import Address, Holder, Kind
from sparsepipe.runtime.pipelines.member import Sums
from sparsepipe.runtime.pipelines.minibatch_queue import MinibatchQueue
from sparsepipe.runtime.pipelines.state import START_SECONDS, GivenUp, Request, RunOfPipelines, RunState
from sparsepipe.runtime.pipelines.work import WAIT
from sparsepipe.util.text.numbers import validation_text
from sparsepipe.values.replication import SERVER, rule


def test_progress_of_other_data_is_refused() -> None:
    for progress in (
        {"done": 3, "epoch_minibatches": 10, "left": {}},
        {"done": 12, "epoch_minibatches": 10, "left": {"1": [10]}},
        {"done": 12, "epoch_minibatches": 10, "left": {"9": [1]}},
        {"done": 12, "epoch_minibatches": 10, "left": {"one": [1]}},
        {"done": -1, "epoch_minibatches": 10, "left": {}},
        {"done": 10, "epoch_minibatches": 5, "left": {}},
    ):
        with pytest.raises(InputError, match="^progress"):
            MinibatchQueue(10, 20, progress)


def asks(state, call, who=0, attempt=0, now=0.0, **given):
    return state.ask(Request(call, who, 0, attempt, given), now=now)


def takes(state, who, *places):
    """The first of each answer: the minibatch at that place; None: there is none."""
    answers = [asks(state, "take_minibatch", who, task=0, place=place) for place in places]
    return [answer[0] if answer else None for answer in answers]


def holder(pipeline, rank=0):
    return Holder(pipeline, rank, (f"layer{rank}",), Address("127.0.0.1", 1 + rank, "ab"))


def begun(num_pipelines=2, *, rule=None, whole=2, epoch=7, total=14, started=True):
    state = RunState(RunOfPipelines(num_pipelines, rule))
    for k in range(num_pipelines):
        asks(state, "begin", k, whole=whole, num_holders=1, epoch_minibatches=epoch, total_minibatches=total)
        asks(state, "register", k, holder=holder(k))
    if started and num_pipelines > 1:
        assert asks(state, "next_task", 0, number=0) is WAIT
        state.expire(now=START_SECONDS)
    return state


def test_minibatches_are_handed_out_once_all_pipelines_are_ready() -> None:
    state = begun(3, started=False)
    assert asks(state, "next_task", 0, now=5, number=0) is WAIT
    assert asks(state, "next_task", 2, now=6, number=0) is WAIT
    assert state.next_deadline() == 5 + START_SECONDS
    state.expire(now=5 + START_SECONDS - 0.1)
    assert asks(state, "next_task", 0, number=0) is WAIT
    assert asks(state, "next_task", 1, number=0).kind is Kind.TRAIN
    assert asks(state, "next_task", 0, number=0).kind is Kind.TRAIN
    assert state.next_deadline() is None


def test_minibatches_are_handed_out_once_there_is_a_parameter_server() -> None:
    """Pipelines were through with their epochs before the server had started: nothing was averaged."""
    for comes in (True, False):
        state = begun(rule=rule("wsp"), started=False)
        assert [asks(state, "next_task", k, now=1, number=0) for k in (0, 1)] == [WAIT, WAIT]
        if comes:
            asks(state, "register", SERVER, now=2, holder=Holder(SERVER, 0, ("a",), Address("127.0.0.1", 1, "00")))
        else:
            state.expire(now=1 + START_SECONDS)
        assert asks(state, "next_task", 0, now=2, number=0).kind is Kind.TRAIN


@pytest.mark.parametrize("what", ["expire", "dies", "stop"])
def test_nobody_waits_for_a_pipeline_that_does_not_start(what) -> None:
    state = begun(started=False)
    assert asks(state, "next_task", 0, number=0) is WAIT
    if what == "expire":
        state.expire(now=START_SECONDS)
    elif what == "dies":
        asks(state, "leave", 1)
    else:
        state.stop(now=1)
    assert asks(state, "next_task", 0, number=0).kind is (Kind.FINISH if what == "stop" else Kind.TRAIN)
    if what == "expire":  # it comes later, and takes part
        assert asks(state, "next_task", 1, number=0).kind is Kind.TRAIN


@pytest.mark.parametrize(
    ("updates", "weights"), [([4, 2, 7], [1 / 3] * 3), ([4, -1, 7], [0.5, 0, 0.5]), ([-1] * 3, [1 / 3] * 3)]
)
def test_who_trained_on_nothing_counts_for_nothing_in_the_last_mean(updates, weights) -> None:
    state = begun(3, rule=rule("partial-reduce"), whole=1, epoch=1, total=1)
    state.stop(now=1)
    for k in range(3):
        assert asks(state, "next_task", k, number=0).kind is Kind.FINISH
    for k, update in enumerate(updates[:-1]):
        assert asks(state, "last_merge", k, update=update) is WAIT
    merge = asks(state, "last_merge", 2, update=updates[-1])
    assert merge.members == (0, 1, 2) and list(merge.weights) == weights
    assert merge == asks(state, "last_merge", 0, update=updates[0])


def test_an_epoch_by_hand() -> None:
    """Seven minibatches in units of two: 0 takes 0 1 4 5, 1 takes 2 3 and what is left, 6; neither waits at the end."""
    state = begun()
    assert asks(state, "next_task", 0, number=0) == (0, Kind.TRAIN, 0, 6, 0)
    assert asks(state, "next_task", 1, number=0) == (0, Kind.TRAIN, 0, 4, 0)
    assert takes(state, 0, 1, 0, 2, 3) == [1, 0, 4, 5]
    assert takes(state, 1, 0, 1, 2, 0) == [2, 3, None, 2]
    for place in (0, 1):
        asks(state, "done", 1, task=0, place=place, row={})
    assert asks(state, "next_task", 1, number=1) == (1, Kind.TRAIN, 0, 1, 1)
    asks(state, "done", 1, task=1, place=0, row={})
    assert asks(state, "next_task", 1, number=2) == (2, Kind.CLOSE_EPOCH, 0, 0, 0)
    for place in range(4):
        asks(state, "done", 0, task=0, place=place, row={})
    assert asks(state, "next_task", 0, number=1) == (1, Kind.TRAIN, 1, 6, 2)


@pytest.mark.parametrize("dies", [False, True])
def test_an_epoch_is_closed_by_a_pipeline_that_trained_on_it(dies) -> None:
    """Pipeline 1 has trained none of epoch 0: its weights, those of the epoch before, were validated for it. Only if
    nobody is left that has trained on the epoch they are."""
    state = begun(whole=1, epoch=2, total=6)
    assert asks(state, "next_task", 0, number=0).kind is Kind.TRAIN
    assert takes(state, 0, 0, 1) == [0, 1]
    assert asks(state, "next_task", 1, number=0)[1:3] == (Kind.TRAIN, 1), "all of epoch 0 is handed out"
    for place in (0, 1):
        asks(state, "done", 0, task=0, place=place, row={"loss": 1.0, "samples": 2})
    closer = 1 if dies else 0
    if dies:
        asks(state, "leave", 0)
        asks(state, "done", 1, task=0, place=0, row={"loss": 1.0, "samples": 2})
    assert asks(state, "next_task", closer, number=1) == (1, Kind.CLOSE_EPOCH, 0, 0, 0)
    asks(state, "closed", closer, epoch=0, row={"validation": {"loss": 2.0, "accuracy": 0.5, "counted": 2}})
    (row,) = (row for _, row in state.changes.rows if row["event"] == "epoch")
    assert row["validated_pipelines"] == [closer]
    assert row["train"] == {"loss": 1.0, "samples": 4, "counted": 4, "minibatches": 2}
    assert validation_text(row) == f"validation accuracy 50.0% (weights of pipeline {closer})"


def test_an_epoch_without_labels_has_no_loss_and_its_counts() -> None:
    sums = Sums()
    sums.add({"loss": None, "samples": 3, "counted": 0, "correct": 0}, now=1.0)
    nothing = {"loss": None, "accuracy": None, "samples": 3, "counted": 0, "minibatches": 1}
    assert sums.train == nothing
    sums.add({"loss": 2.0, "samples": 3, "counted": 1, "correct": 1}, now=2.0)
    assert sums.train == {"loss": 2.0, "accuracy": 1.0, "samples": 6, "counted": 1, "minibatches": 2}


def test_epochs_that_are_closed_at_once_are_told_of_in_order() -> None:
    state = begun(whole=1, epoch=1, total=3)
    for number in (0, 1):
        assert asks(state, "next_task", 0, number=number).kind is (Kind.CLOSE_EPOCH if number else Kind.TRAIN)
        if not number:
            asks(state, "done", 0, task=0, place=0, row={"loss": 1.0, "samples": 2})
    assert asks(state, "next_task", 1, number=0) == (0, Kind.TRAIN, 1, 1, 0)
    asks(state, "done", 1, task=0, place=0, row={"loss": 2.0, "samples": 2})
    assert asks(state, "next_task", 1, number=1) == (1, Kind.CLOSE_EPOCH, 1, 0, 0)
    for pipeline in (1, 0):
        asks(state, "closed", pipeline, epoch=pipeline, row={"validation": None})
    rows = [row for _, row in state.changes.rows if row["event"] == "epoch"]
    assert [(row["epoch"], row["train"]["loss"]) for row in rows] == [(0, 1.0), (1, 2.0)]


def measured(stage, trained, *, engine="native", other=0.0):
    """What pipeline `stage` says that it measured of a part of an epoch: it has one stage, and one rank."""
    stages, load = [{"stage": stage, "ranks": [stage], "trained": trained}], {"other_cpu_share": other}
    run = {"engine": engine, "stages": stages, "load": load}
    return {"trained": trained, "sent_bytes": 10, "stages": stages, "load": load, "run": run}


@pytest.mark.parametrize("dies", [False, True])
def test_an_epoch_and_the_run_have_the_stages_of_all_pipelines(dies) -> None:
    """Pipeline 1 closes an epoch that 0 still trains on: its row waits for what 0 measured, or for its death."""
    state = begun(whole=1, epoch=3, total=6)
    for who in (0, 1):
        asks(state, "next_task", who, number=0)
    takes(state, 1, 0, 1)
    for place in (0, 1):
        asks(state, "done", 1, task=0, place=place, row={})
    for _ in range(2):  # to say it again changes nothing
        asks(state, "measured", 1, task=0, row=measured(1, 2, engine="torch", other=0.5))
    assert asks(state, "next_task", 1, number=1) == (1, Kind.CLOSE_EPOCH, 0, 0, 0)
    asks(state, "closed", 1, epoch=0, row={"validation": None})
    assert not [row for _, row in state.changes.rows if row["event"] == "epoch"]
    if dies:
        asks(state, "leave", 0)
    else:
        asks(state, "done", 0, task=0, place=0, row={})
        asks(state, "measured", 0, task=0, row=measured(0, 1))
        asks(state, "next_task", 0, number=1)
    (row,) = (row for _, row in state.changes.rows if row["event"] == "epoch")
    assert [one["stage"] for one in row["stages"]] == ([1] if dies else [0, 1])
    assert row["sent_bytes"] == (10 if dies else 20) and row["load"]["other_cpu_share"] == 0.5
    asks(state, "tell", 1, event="summary", row={"stages": [], "engine": "torch"})
    summary = state.changes.rows[-1][1]
    assert [one["stage"] for one in summary["stages"]] == ([1] if dies else [0, 1])
    assert summary["engine"] == ("torch" if dies else "native+torch") and "pipeline" not in {*summary, *row}


def test_what_one_that_died_had_is_handed_out_first() -> None:
    state = begun(epoch=20, total=20)
    asks(state, "next_task", 0, number=0)
    asks(state, "next_task", 1, number=0)
    asks(state, "take_minibatch", 0, task=0, place=3)
    asks(state, "done", 0, task=0, place=0, row={})
    asks(state, "leave", 0)
    assert takes(state, 1, *range(8)) == [2, 3, 1, 4, 5, 6, 7, 8]
    with pytest.raises(GivenUp, match="0.*pipeline 0"):
        asks(state, "done", 0, task=0, place=1, row={})
    asks(state, "begin", 0, 1, whole=2, num_holders=1, epoch_minibatches=20, total_minibatches=20)
    assert asks(state, "live", 0, 1) == [1] and asks(state, "live", 1) == []
    assert asks(state, "next_task", 0, 1, number=0) == (0, Kind.TRAIN, 0, 10, 2)
    assert asks(state, "live", 1) == [0]


def test_holders_are_known_once_all_have_registered() -> None:
    state = RunState(RunOfPipelines(2))
    length = {"whole": 1, "epoch_minibatches": 4, "total_minibatches": 4}
    asks(state, "begin", 0, num_holders=2, **length)
    holders = [Holder(0, rank, (f"layer{rank}",), Address("127.0.0.1", 1, "ab")) for rank in (0, 1)]
    asks(state, "register", 0, holder=holders[0])
    asks(state, "register", 0, holder=holders[0])
    assert asks(state, "holders", 1, pipeline=0) == []
    asks(state, "register", 0, holder=holders[1])
    assert asks(state, "holders", 1, pipeline=0) == holders
    asks(state, "leave", 0)
    assert asks(state, "holders", 1, pipeline=0) == []
    server = Holder(SERVER, 0, ("layer0", "layer1"), Address("127.0.0.1", 2, "cd"))
    asks(state, "register", SERVER, holder=server)
    assert asks(state, "holders", 1, pipeline=SERVER) == [server]


def test_pipelines_of_unlike_data_are_refused() -> None:
    state = begun()
    with raises("pipelines.minibatches_differ", "8 minibatches", "14", "7", "14", number=1):
        asks(state, "begin", 1, 1, whole=2, num_holders=1, epoch_minibatches=8, total_minibatches=14)
    with raises("pipelines.data_differ", number=1):
        asks(state, "begin", 1, 1, whole=2, num_holders=1, epoch_minibatches=7, total_minibatches=14, data="ab")


def test_what_must_not_be_asked_is_refused() -> None:
    state = begun()
    for call, given in (
        ("next_task", {"number": 3}),
        ("take_minibatch", {"task": 0, "place": 0}),
        ("merge_of", {"contribution": 0}),
        ("contribute", {"update": 1, "samples": 2}),
        ("holders", {"pipeline": 7}),
        ("no such call", {}),
    ):
        with pytest.raises(RuntimeError):
            asks(state, call, **given)
    with pytest.raises(RuntimeError, match="pipeline 5"):
        asks(state, "live", 5)


def test_staleness_sizes_and_paces_are_counted() -> None:
    state = begun(rule=rule("partial-reduce", {"wait": 1.0}), whole=1, epoch=100, total=100, started=False)
    for k in (0, 1, 0):
        asks(state, "next_task", k, number=0, now=0.0)
    for k, now in ((0, 1.0), (1, 1.5)):
        asks(state, "done", k, task=0, place=0, row={"samples": 8, "loss": 1.0 + k}, now=now)
        assert asks(state, "contribute", k, update=1, samples=8, now=now) == 0
    merge = asks(state, "merge_of", 0, contribution=0, now=1.5)
    assert merge.members == (0, 1) and merge.weights == (0.5, 0.5)
    asks(state, "merged", 0, merge=merge.number, facts={"update": 3, "waited": 0.25, "bytes": 100}, now=2.0)
    asks(state, "merged", 1, merge=merge.number, facts={"update": 1, "applied": False}, now=2.0)
    part = {"stages": [], "load": {}, "trained": 1, "sent_bytes": 0, "run": {"stages": [], "load": {}, "engine": "e"}}
    asks(state, "measured", 0, task=0, row=part | {"straggler_seconds": 0.5}, now=2.0)
    told = state.replication
    assert told["rule"] == "partial-reduce" and told["group_sizes"] == {"2": 1} and told["staleness"] == {"2": 1}
    lost = {
        "group": 0.25,
        "exchange": 0.0,
        "bound": 0.0,
        "straggler": 0.5,
    }  # it had waited for half a second when it was decided
    paces = {"minibatches": 1, "samples_per_second": 8.0, "own_pace": 8 / 0.75}
    assert told["pipelines"][0] == {**paces, "lost_seconds": lost}
    paces = {"minibatches": 1, "samples_per_second": 8 / 1.5, "own_pace": 8 / 1.5}
    assert told["pipelines"][1] == {**paces, "lost_seconds": dict.fromkeys(lost, 0.0)}


@pytest.mark.parametrize("at", range(4))
def test_a_stop_costs_a_pace_the_same_wherever_it_comes(at) -> None:
    """As in a simulation: 4 s of minibatches and 5 of the stop."""
    state = begun(rule=rule("quorum"), whole=1, epoch=100, total=100)
    assert asks(state, "next_task", 0, number=0, now=START_SECONDS).kind is Kind.TRAIN
    for place in range(4):
        assert takes(state, 0, place) == [place]
        now = START_SECONDS + place + 1 + 5 * (place >= at)
        asks(state, "done", 0, task=0, place=place, row={"samples": 8, "loss": 1.0}, now=now)
    one = state.replication["pipelines"][0]
    assert (one["samples_per_second"], one["own_pace"]) == (32 / 9, 32 / 9)


def test_a_death_costs_a_pace_what_is_lost_and_the_time_until_it_trains_again() -> None:
    """As in a simulation: 2 s of two minibatches, 1 of a third that is lost, 5 of two deaths, 2 of two more."""
    state = begun(rule=rule("quorum"), whole=1, epoch=100, total=100)
    begin, row = START_SECONDS, {"samples": 8, "loss": 1.0}
    assert [asks(state, "next_task", k, number=0, now=begin).kind for k in (0, 1)] == [Kind.TRAIN] * 2
    for place in (0, 1):
        asks(state, "take_minibatch", task=0, place=place + 1)
        asks(state, "done", task=0, place=place, row=row, now=begin + place + 1)
    asks(state, "leave", now=begin + 3)
    for attempt, now in ((1, 4.0), (2, 6.0)):
        length = {"whole": 1, "num_holders": 1, "epoch_minibatches": 100, "total_minibatches": 100}
        asks(state, "begin", attempt=attempt, now=begin + now, **length)
        if attempt == 1:  # it dies anew, before it trains
            asks(state, "leave", attempt=attempt, now=begin + 5)
    assert asks(state, "next_task", attempt=2, number=0, now=begin + 8).kind is Kind.TRAIN
    for place in (0, 1):
        asks(state, "take_minibatch", attempt=2, task=0, place=place + 1)
        asks(state, "done", attempt=2, task=0, place=place, row=row, now=begin + 8 + place + 1)
    one = state.replication["pipelines"][0]
    assert (one["minibatches"], one["samples_per_second"], one["own_pace"]) == (4, 32 / 10, 32 / 4)


def test_who_is_too_far_ahead_until_all_is_handed_out_was_held_up_till_then() -> None:
    """As in a simulation: it got no other minibatch, and its wait was counted as nothing."""
    state = begun(rule=rule("wsp", {"every": 1, "bound": 0}), whole=1, epoch=3, total=3)
    begin, row = START_SECONDS, {"samples": 8, "loss": 1.0}
    for k in (0, 1):
        assert asks(state, "next_task", k, number=0, now=begin).kind is Kind.TRAIN
    asks(state, "contribute", 0, update=1, samples=8, now=begin + 0.5)
    assert asks(state, "take_minibatch", 0, now=begin + 0.5, task=0, place=1) is WAIT  # ahead: it still trains
    for k, now in ((0, begin + 1), (1, begin + 4)):
        asks(state, "done", k, task=0, place=0, row=row, now=now)
    asks(state, "contribute", 1, update=1, samples=8, now=begin + 4)
    assert asks(state, "take_minibatch", 1, now=begin + 4, task=0, place=1) == [2]
    assert asks(state, "take_minibatch", 0, now=begin + 4, task=0, place=1) == []
    one = state.replication["pipelines"][0]
    assert (one["samples_per_second"], one["own_pace"], one["lost_seconds"]["bound"]) == (8 / 4, 8 / 1, 3.0)


def test_nobody_is_at_its_end_before_all_have_the_last_average() -> None:
    """A pipeline whose first rank was through was taken for gone by those that still waited for its others."""
    state = begun(3, rule=rule("partial-reduce"), whole=1, epoch=1, total=1)
    for k in range(3):  # each has two stages
        state.members[k].num_holders = 2
    state.stop(now=1)
    for k in range(3):
        assert asks(state, "next_task", k, number=0).kind is Kind.FINISH
    for k in range(3):  # a run that went on where it had ended hung: a rank was there before the others of its pipeline
        assert [asks(state, "last_merge", each, update=4) for each in range(3)] == [WAIT] * 3
        asks(state, "register", k, holder=holder(k, 1))
    merge = asks(state, "last_merge", 2, update=4)
    assert merge.members == (0, 1, 2)
    for stage in (1, 0):
        assert asks(state, "next_task", 0, number=1) is WAIT
        asks(state, "merged", 0, merge=merge.number, facts={"stage": stage, "last": True})
    asks(state, "merged", 1, merge=merge.number, facts={"stage": 1, "last": True})
    asks(state, "merged", 1, merge=merge.number, facts={"stage": 1, "last": True})  # said twice
    asks(state, "leave", 2)  # who dies meanwhile is waited for no more
    assert [asks(state, "next_task", k, number=1) for k in (0, 1)] == [WAIT, WAIT]
    asks(state, "merged", 1, merge=merge.number, facts={"stage": 0, "last": True})
    assert asks(state, "next_task", 1, number=1).kind is Kind.CLOSE_RUN


def test_one_at_its_end_has_no_weights_to_give() -> None:
    state = begun(whole=1, epoch=1, total=1)
    holders = [holder(k) for k in (0, 1)]
    assert asks(state, "next_task", 0, number=0).kind is Kind.TRAIN
    assert asks(state, "next_task", 1, number=0) is WAIT
    assert asks(state, "live", 1) == [0] and asks(state, "holders", 1, pipeline=0) == holders[:1]
    asks(state, "done", 0, task=0, place=0, row={})
    kinds = [asks(state, "next_task", 0, number=number).kind for number in range(1, 4)]
    assert kinds == [Kind.FINISH, Kind.CLOSE_RUN, Kind.END]
    assert asks(state, "live", 1) == [] and asks(state, "holders", 1, pipeline=0) == []
    assert asks(state, "next_task", 1, number=0).kind is Kind.FINISH


def test_a_pipeline_that_moves_ends_its_task_where_it_is_and_goes_on_in_other_units() -> None:
    """What it has taken it trains; others take the rest meanwhile, and know again who holds what once all is moved."""
    state = begun(epoch=7, total=7)
    first, _ = (asks(state, "next_task", k, number=0) for k in (0, 1))
    assert (first.most, takes(state, 0, 0, 1), takes(state, 1, 0, 1)) == (6, [0, 1], [2, 3])
    before = state.changes.version
    asks(state, "end_task", 0, task=0)
    asks(state, "end_task", 0, task=0)
    assert state.changes.version == before + 1, "asked again, nothing changes"
    assert takes(state, 0, 2, 3) == [None, None] and takes(state, 1, 2) == [4]
    with pytest.raises(RuntimeError):
        asks(state, "end_task", 0, task=7)
    for place in (0, 1):
        asks(state, "done", 0, task=0, place=place, row={"samples": 1, "loss": 1.0, "counted": 1, "correct": 0})
    asks(state, "move", 0)
    assert asks(state, "holders", 1, pipeline=0) == []
    with pytest.raises(RuntimeError):
        asks(state, "next_task", 0, number=1)  # it does not say how it is cut
    asks(state, "begin", 0, whole=1, num_holders=2, epoch_minibatches=7, total_minibatches=7)
    asks(state, "register", 0, holder=holder(0))
    assert asks(state, "holders", 1, pipeline=0) == [], "not all of them"
    asks(state, "register", 0, holder=holder(0, 1))
    assert asks(state, "holders", 1, pipeline=0) == [holder(0), holder(0, 1)]
    again = asks(state, "next_task", 0, number=1)
    assert (again.kind, again.epoch, again.most, again.update) == (Kind.TRAIN, 0, 1, 1), "the minibatch that is left"
    assert asks(state, "take_minibatch", 0, task=1, place=0) == [6]


def test_each_change_of_a_plan_is_told_once() -> None:
    state = begun()
    for minibatch in (4, 9, 4):
        asks(state, "tell", 1, event="replan", row={"minibatch": minibatch, "moved_bytes": 8})
    rows = [row for _, row in state.changes.rows if row["event"] == "replan"]
    assert [(row["pipeline"], row["minibatch"]) for row in rows] == [(1, 4), (1, 9)]
