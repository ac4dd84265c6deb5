"""Stragglers: what is typed, what it delays and kills, the same whoever asks in whatever order, and what is refused."""

import random
from pathlib import Path
from statistics import median

import pytest
from coded import mentions, raises

from sparsepipe.values.stragglers import Stragglers, read_minibatch_times

SPEC = "jitter:p=0.1,seconds=0.05;slow:rank=3,factor=4,from=100,to=300;stop:rank=1,at=50,seconds=20;kill:rank=2,at=80"


@pytest.fixture
def times(tmp_path: Path) -> Path:
    """Worker 4 is fast, 7 takes twice as long and from minibatch 20 on three times, 9 once less than all others."""
    rows = [(7, t, 20 if t <= 11 else 30) for t in (1, 11, 21, 31)]
    rows += [(9, t, 10 if t != 11 else 5) for t in (1, 11, 21)]
    rows += [(4, t, 10) for t in (31, 21, 11, 1)]
    return written(tmp_path / "times.csv", rows)


def written(path: Path, rows: list, header: str = ",worker,gpu,time,batch_time_norm") -> Path:
    lines = [f"{place},{worker},25,{time},{taken}" for place, (worker, time, taken) in enumerate(rows)]
    path.write_text("\n".join([header, *lines, ""]))
    return path


@pytest.mark.parametrize(
    "spec",
    [
        SPEC,
        SPEC + ";seed=7",
        "slow:rank=0,factor=1.5",
        "slow:rank=0,factor=2,from=3",
        "jitter:p=1,seconds=1e-06,rank=2",
        "",
    ],
)
def test_stragglers_are_written_as_they_are_read(spec):
    read = Stragglers.parse(spec)
    assert str(read) == spec
    assert Stragglers.parse(str(read)) == read


def test_a_file_is_written_as_it_is_read(times):
    spec = f"trace:{times},workers=7+4+7"
    assert str(Stragglers.parse(spec)) == spec == str(Stragglers.parse(f"trace:file={times},workers=7+4+7"))


def test_a_slow_rank_takes_longer_in_its_minibatches_alone():
    slow = Stragglers.parse("slow:rank=3,factor=4,from=100,to=300")
    assert [slow.extra_seconds(3, m, 0.5) for m in (99, 100, 299, 300)] == [0, 1.5, 1.5, 0]
    assert slow.extra_seconds(2, 150, 0.5) == 0
    assert Stragglers.parse("slow:rank=3,factor=4").extra_seconds(3, 10**6, 1) == 3


def test_a_rank_stops_once_and_is_killed_once():
    stragglers = Stragglers.parse("stop:rank=1,at=50,seconds=20;kill:rank=2,at=80")
    delays = {(r, m): stragglers.extra_seconds(r, m, 1) for r in range(4) for m in range(200)}
    assert {place: delay for place, delay in delays.items() if delay} == {(1, 50): 20}
    assert [place for place in delays if stragglers.kills(*place)] == [(2, 80)]


def test_delays_of_several_parts_add_up():
    stragglers = Stragglers.parse("slow:rank=0,factor=2;slow:rank=0,factor=4;stop:rank=0,at=1,seconds=5")
    assert stragglers.extra_seconds(0, 0, 1) == 1 + 3
    assert stragglers.extra_seconds(0, 1, 1) == 1 + 3 + 5


def test_jitter_comes_as_often_as_said_and_alike_in_whatever_order_it_is_asked():
    places = [(rank, minibatch) for rank in range(4) for minibatch in range(5000)]
    first = {place: Stragglers.parse("jitter:p=0.1,seconds=2").extra_seconds(*place, 1) for place in places}
    assert set(first.values()) == {0, 2}
    for rank in range(4):  # 500 expected of each, with a deviation of 21
        assert 400 < sum(first[rank, m] > 0 for m in range(5000)) < 600
    random.Random(0).shuffle(places)
    again = Stragglers.parse("jitter:p=0.1,seconds=2")
    assert {place: again.extra_seconds(*place, 1) for place in places} == first
    other = Stragglers.parse("jitter:p=0.1,seconds=2;seed=1")
    agree = sum(first[p] > 0 and other.extra_seconds(*p, 1) > 0 for p in places)
    assert 100 < agree < 300  # 200 expected of draws that do not depend on each other
    for later in (0, 1):  # 150 of 15,000 pairs of neighbouring ranks, in the same minibatch and in the next
        agree = sum(first[rank, m] > 0 and first[rank + 1, m - later] > 0 for rank in range(3) for m in range(1, 5000))
        assert 90 < agree < 210


def test_two_jitters_of_one_rank_are_drawn_independently():
    both = Stragglers.parse("jitter:p=0.5,seconds=1;jitter:p=0.5,seconds=2,rank=0")
    counts = [0, 0, 0, 0]
    for minibatch in range(4000):
        counts[int(both.extra_seconds(0, minibatch, 1))] += 1
    assert all(850 < count < 1150 for count in counts)
    assert {both.extra_seconds(1, minibatch, 1) for minibatch in range(100)} == {0, 1}


def test_a_file_s_workers_are_ranks_and_its_readings_hold_until_the_next(times):
    trace = Stragglers.parse(f"trace:{times}")  # rank 0 is worker 4, 1 is 7, 2 is 9; 4's median is everybody's own
    assert {trace.extra_seconds(0, m, 0.5) for m in range(80)} == {0}
    assert [trace.extra_seconds(1, m, 0.5) for m in (0, 9, 10, 19, 20, 39, 40, 59, 60)] == [0.5] * 4 + [1] * 2 + [
        0.5
    ] * 2 + [1]
    assert {trace.extra_seconds(2, m, 0.5) for m in range(80)} == {0}  # never faster than itself
    chosen = Stragglers.parse(f"trace:{times},workers=7+4+7")
    assert [chosen.extra_seconds(rank, 25, 1) for rank in range(3)] == [2, 0, 2]


def test_alibabas_jobs_are_played_back(shared_data):
    folder = shared_data / "outside" / "minibatch-times" / "mini-batch-time" / "data"
    if not folder.is_dir():
        pytest.skip(f"no minibatch times at {folder}")
    readings = read_minibatch_times(folder / "job_4_norm.csv")
    medians = [median(readings[worker].times) for worker in range(10)]
    job_4 = Stragglers.parse(f"trace:{folder / 'job_4_norm.csv'}")
    job_4.check(10)
    slow = [median(job_4.extra_seconds(rank, m, 1) for m in range(0, 21830, 10)) + 1 for rank in range(10)]
    # Half of the workers are 3.3 to 4.4 times as slow as the median of the others, all along (PEERS N1).
    assert sorted(range(10), key=slow.__getitem__)[5:] == sorted(range(10), key=medians.__getitem__)[5:]
    others = median(sorted(slow)[:5])
    assert all(3 < one / others < 5 for one in sorted(slow)[5:])
    job_1 = Stragglers.parse(f"trace:{folder / 'job_1_norm.csv'}")
    late = [max(job_1.extra_seconds(rank, m, 1) for m in range(2988)) for rank in range(10)]
    assert late.index(max(late)) == 6 and max(late) > 1


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        (
            "sleep:p=1",
            ("straggler.unknown", "sleep", "jitter, slow, stop, trace, kill"),
        ),
        ("slow:rank=1", ("option.missing", "straggler slow", "factor")),
        ("slow:rank=1,factor=0.5", ("straggler.factor", "0.5")),
        ("slow:rank=1,factor=2,from=5,to=5", ("number.not_whole", "straggler slow: to", "5", "6")),
        ("slow:rank=1,factor=2,until=5", ("option.unknown", "until", "expected one of rank, factor, from, to")),
        ("slow:rank=-1,factor=2", ("number.not_whole", "straggler slow: rank", "-1")),
        ("slow:rank=1.0,factor=2", ("number.not_whole", "straggler slow: rank", "1.0")),
        ("jitter:p=2,seconds=1", ("straggler.chance", "2")),
        ("jitter:p=0.1,seconds=-1", ("number.malformed", "jitter: seconds", "-1.0")),
        ("jitter:p=0.1,seconds=inf", ("number.malformed", "jitter: seconds", "inf")),
        ("stop:rank=1,at=soon,seconds=1", ("number.not_whole", "stop: at", "soon")),
        ("kill:at=1", ("option.missing", "straggler kill", "rank")),
        ("kill:rank=1,at=1,rank=2", ("option.twice", "rank")),
        ("seed=x", ("number.not_whole", "straggler seed", "x")),
        ("seed=1;seed=2", ("straggler.seed_twice",)),
        ("trace", ("option.missing", "straggler trace", "file")),
        ("trace:/no/such/file.csv", ("file.not_found", "/no/such/file.csv", "file of minibatch times")),
        ("trace:/", ("file.is_folder", "file of minibatch times")),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line(spec, error):
    with raises(*error) as caught:
        Stragglers.parse(spec)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("part", ["jitter:p=1,seconds=1,rank=8", "slow:rank=8,factor=2", "kill:rank=8,at=0"])
def test_a_straggler_of_a_rank_that_is_not_there_is_refused(part):
    stragglers = Stragglers.parse(part)
    stragglers.check(9)
    with raises("straggler.rank_unknown", "7"):
        stragglers.check(8)


def test_more_ranks_than_workers_are_refused(times):
    trace = Stragglers.parse(f"trace:{times}")
    trace.check(3)
    with raises("straggler.too_few_workers", "3 ranks", num_ranks=4):
        trace.check(4)
    with raises("straggler.workers_malformed", "4+5", "4", "9", "3", "workers"):
        Stragglers.parse(f"trace:{times},workers=4+5")


GOOD = [(w, t, 10) for t in (1, 11, 21, 31, 41) for w in (0, 1)]


@pytest.mark.parametrize(
    ("rows", "error"),
    [
        ([row for row in GOOD if row[:2] != (1, 21)], ("minibatch_times.gap", "1", "11", "31")),
        ([row for row in GOOD if row[0] == 0 or row[1] > 11], ("minibatch_times.gap", "1", "1", "21")),
        ([row for row in GOOD if row[0] == 0 or row[1] < 31], ("minibatch_times.gap", "1", "21", "41")),
        ([*GOOD, (1, 21, 11)], ("minibatch_times.twice", "line 12", "1", "21")),
        ([*GOOD, (1, 51, "")], ("minibatch_times.not_positive", "line 12: batch_time_norm")),
        ([*GOOD, (1, 51, 0)], ("minibatch_times.not_positive", "line 12: batch_time_norm", "0")),
        ([*GOOD, (1, 51, "nan")], ("minibatch_times.not_positive", "batch_time_norm", "nan")),
        ([*GOOD, (1, "", 3)], ("minibatch_times.not_whole", "line 12: time")),
        ([*GOOD, ("one", 51, 3)], ("minibatch_times.not_whole", "line 12: worker", "one")),
        ([], ("minibatch_times.empty",)),
    ],
)
def test_a_file_with_gaps_or_nonsense_is_refused_in_one_line(tmp_path, rows, error):
    written(tmp_path / "good.csv", GOOD)
    Stragglers.parse(f"trace:{tmp_path / 'good.csv'}").check(2)
    path = written(tmp_path / "bad.csv", rows)
    with raises(*error) as caught:
        Stragglers.parse(f"trace:{path}")
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_a_table_without_its_columns_is_refused(tmp_path):
    path = written(tmp_path / "bad.csv", GOOD, header=",rank,gpu,time,batch_time_norm")
    with raises("minibatch_times.columns_unknown", "batch_time_norm"):
        read_minibatch_times(path)
    path.write_bytes(b"\x00\xff\x00")
    with raises("file.unreadable", "file of minibatch times"):
        read_minibatch_times(path)


def test_notes_say_what_holds_ranks_up(times):
    note = Stragglers.parse(f"{SPEC};trace:{times}").note()
    assert note == (
        "any rank sleeps 50 ms in 10% of its minibatches; rank 3 is 4 times as slow from minibatch 100 to 300; "
        "rank 1 stops for 20 s at minibatch 50; rank 2 is killed at minibatch 80; "
        "ranks are as slow as the workers of times.csv"
    )
    assert Stragglers().note() == Stragglers().clause() == ""


@pytest.mark.parametrize("count", [1, 2, 3])
def test_several_stragglers_stand_in_one_clause(count):
    """ "While rank 0 is 2 times as slow; rank 1 …, all-reduce loses": the sentence ended before its main clause."""
    parts = [f"rank {rank} is {rank + 2} times as slow" for rank in range(count)]
    clause = Stragglers.parse(";".join(f"slow:rank={rank},factor={rank + 2}" for rank in range(count))).clause()
    assert clause == {1: parts[0], 2: " and ".join(parts), 3: f"{parts[0]}, {' and '.join(parts[1:])}"}[count]


def test_ranks_that_are_as_slow_as_one_another_are_told_together():
    spec = "slow:rank=0,factor=4;slow:rank=2,factor=4;slow:rank=3,factor=4;slow:rank=1,factor=2;kill:rank=2,at=5"
    told = ["ranks 0, 2 and 3 are 4 times as slow", "rank 1 is 2 times as slow", "rank 2 is killed at minibatch 5"]
    assert Stragglers.parse(spec).note() == "; ".join(told)
    assert Stragglers.parse(spec).clause() == f"{told[0]}, {told[1]} and {told[2]}"
    twice = Stragglers.parse("slow:rank=0,factor=4,to=9;slow:rank=1,factor=4,from=2").note()
    assert mentions(twice, "rank 0", 4, "minibatch 0", 9, "rank 1", 4, "minibatch 2")
