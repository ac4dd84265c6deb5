"""Who is to blame for a wait: the rank at the end of the chain of those who wait."""

from pathlib import Path

from coded import mentions

from sparsepipe.runtime.processes.signs_of_life import Heartbeats


def _ranks(folder: Path, count: int) -> list[Heartbeats]:
    return [Heartbeats(folder / "where", count, rank) for rank in range(count)]


def test_the_one_who_does_not_wait_is_named(tmp_path) -> None:
    """0 waits for 1, 1 for 2, and 2 computes."""
    ranks = _ranks(tmp_path, 4)
    ranks[0].tell("wait", 7, 1)
    ranks[1].tell("wait", 6, 2)
    ranks[2].tell("backward", 5)
    ranks[3].tell("forward", 9)
    found = ranks[0].find_straggler(1)
    assert (found.rank, found.kind, found.minibatch) == (2, "backward", 5)
    assert mentions(str(found), "rank 2", "minibatch 5", 0)


def test_those_who_meet_wait_for_the_one_who_does_not_come(tmp_path) -> None:
    ranks = _ranks(tmp_path, 3)
    ranks[1].tell("forward", 3)
    ranks[0].tell("average", 2)
    ranks[2].tell("meet")
    assert ranks[0].find_straggler(-1).rank == 1
    ranks[0].tell("wait", 4, 2)
    assert ranks[0].find_straggler(2).rank == 1, "who waits for one that meets waits for whom that one misses"


def test_of_a_circle_the_one_who_waited_first_is_named(tmp_path) -> None:
    """Nobody waits in a circle by the action lists: rank 1 was stopped while it waited, and what it waited for came."""
    ranks = _ranks(tmp_path, 3)
    ranks[1].tell("wait", 0, 0)
    ranks[2].tell("wait", 0, 1)
    ranks[0].tell("wait", 0, 2)
    assert ranks[0].find_straggler(2).rank == 1
