"""Put the traces of a torch job's ranks together: one trace, in which ranks wait for each other.

Collectives are matched by process group, step and order. Their ends bound the differences of clocks: no rank is done
before all have begun. A collective becomes a "send" at which a rank issues it and an "average" for which it waits.
What a pipeline's stage waits for becomes a "wait" for the rank of the stage next to it. Microbatches are numbered over
all steps and replicas:

    step 0, replica 0 │ step 0, replica 1 │ step 1, replica 0 …
         0 1 2 3      │      4 5 6 7      │      8 9 10 11
"""

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...errors import InputError
from ...util.text.numbers import duration, number_of
from ...values.trace import Span, Trace
from .activity import Activity, Piece, RankExchange

_RANK_IN_NAME = re.compile(r"rank[-_]?(\d{1,7})", re.IGNORECASE)
_LETTERS = {"forward": "F", "backward": "B", "update": "U"}
_TOLERANCE = 0.001  # seconds by which a collective may end on one rank before it begins on another
_MEETS = re.compile(r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|barrier", re.IGNORECASE)


def _of_ranks(activities: Sequence[Activity]) -> tuple[dict[int, Activity], list[str]]:
    """(the activities by rank: as the file says it, else as its name does, else in the order of names; notes)."""
    ranks: dict[int, Activity] = {}
    without = []
    worlds = {activity.facts.world_size: activity.facts.path for activity in activities if activity.facts.world_size}
    if len(worlds) > 1:
        (ranks_of_first, path), (ranks_of_other, other_path), *_ = worlds.items()
        raise InputError(
            "trace.other_job",
            f"{path}: from a job of {number_of(ranks_of_first, 'rank')}, but {other_path} of {ranks_of_other}; "
            "keep the files of one job",
        )
    for activity in activities:
        rank = activity.facts.rank
        if rank < 0 and (match := _RANK_IN_NAME.search(activity.facts.path.name)):
            rank = int(match[1])
        if rank < 0:
            without.append(activity)
        elif rank in ranks:
            raise InputError(
                "trace.rank_twice",
                f"{activity.facts.path}: rank {rank} is also in {ranks[rank].facts.path}; keep one profile, "
                "with a file for each rank, and move older files to another folder",
            )
        else:
            ranks[rank] = activity
    for activity in without:
        ranks[next(k for k in range(len(activities) + len(ranks) + 1) if k not in ranks)] = activity
    notes = ["ranks without a number are numbered in the order of their files' names"] if without else []
    return {rank: ranks[rank] for rank in sorted(ranks)}, notes if len(activities) > 1 else []


@dataclass(frozen=True)
class _Collective:
    """An exchange that all members of a group take part in: rank → what it did."""

    name: str
    members: Mapping[int, RankExchange]


def joined_trace(activities: Sequence[Activity]) -> Trace:
    """Return the trace of a job by what each of its ranks did. Raises InputError if they do not belong together."""
    ranks, numbered = _of_ranks(activities)
    ranks, notes = _common_steps(ranks)
    assumed = numbered + notes
    collectives, notes = _matched(ranks)
    assumed += notes
    stages, notes = _stages(ranks)
    assumed += notes
    offsets, error, notes = _clocks(ranks, collectives, stages)
    assumed += notes
    collectives, notes = _without_contradictions(collectives, offsets)
    assumed += notes
    assumed += _assumptions(ranks)
    builder = _Spans(ranks, offsets, stages)
    spans = sorted(builder.spans(collectives), key=lambda span: (span.start, span.end, span.rank))
    facts: dict[str, object] = {
        "steps": builder.steps,
        "joined": True,
        "assumed": list(dict.fromkeys(assumed)),
        "unknown": _unknown(ranks),
    }
    if len(ranks) > 1:
        facts["clock_error"] = error
    return Trace(tuple(spans), "measured", facts)


def _common_steps(ranks: Mapping[int, Activity]) -> tuple[dict[int, Activity], list[str]]:
    """The ranks with the steps alone that all of them have, and what was left out."""
    numbers = set.intersection(*({number for number, _, _ in activity.steps} for activity in ranks.values()))
    if not numbers:
        raise InputError(
            "trace.no_common_step",
            f"{next(iter(ranks.values())).facts.path.parent}: no step that all ranks have; profile the same steps",
        )
    common, notes = {}, []
    for rank, activity in ranks.items():
        remaining = [index for index, (number, _, _) in enumerate(activity.steps) if number in numbers]
        if len(remaining) < len(activity.steps):
            notes = [f"steps that not all ranks have are left out; {number_of(len(numbers), 'step')} remain"]
        places = {index: k for k, index in enumerate(remaining)}
        common[rank] = replace(
            activity,
            steps=tuple(activity.steps[index] for index in remaining),
            pieces=tuple(p._replace(step=places[p.step]) for p in activity.pieces if p.step in places),
            exchanges=tuple(e._replace(step=places[e.step]) for e in activity.exchanges if e.step in places),
        )
    return common, notes


# --- which exchanges belong together, and what the clocks of ranks differ by ------------------------------------------


def _matched(ranks: Mapping[int, Activity]) -> tuple[list[_Collective], list[str]]:
    """The collectives, by group, step and order."""
    issued: defaultdict[tuple[str, int], dict[int, list[RankExchange]]] = defaultdict(dict)
    for rank, activity in ranks.items():
        for exchange in activity.exchanges:
            if not exchange.direct:
                members = activity.facts.groups.get(exchange.group)
                group = str(list(members)) if members else exchange.group
                issued[group, exchange.step].setdefault(rank, []).append(exchange)
    collectives, unmatched = [], 0
    for of_ranks in issued.values():
        counts = {len(exchanges) for exchanges in of_ranks.values()}
        for k in range(max(counts)):
            together = {rank: exchanges[k] for rank, exchanges in of_ranks.items() if k < len(exchanges)}
            names = {exchange.name for exchange in together.values()}
            if len(counts) == 1 and len(names) == 1:
                collectives.append(_Collective(next(iter(names)), together))
            else:
                unmatched += 1
                collectives += [_Collective(e.name, {rank: e}) for rank, e in together.items()]
    notes = []
    if unmatched:
        notes = [f"{number_of(unmatched, 'collective')} of {len(collectives)} could not be matched between ranks"]
    return collectives, notes


# Of two ranks, of each exchange: what must at least and may at most be added to the second clock, and the likeliest.
_Bounds = dict[tuple[int, int], list[tuple[float, float, float]]]


def _clocks(
    ranks: Mapping[int, Activity], collectives: Iterable[_Collective], stages: "Mapping[int, _RankPosition]"
) -> tuple[dict[int, float], float, list[str]]:
    """(seconds to add to the times of each rank, by how much clocks may still differ, notes).

    A rank's clock is changed only if it contradicts the others: if by it a collective ended before another rank began,
    or a stage computed before the stage before it had sent. Ranks end a collective at the same time; what neighbouring
    stages send in both directions leaves an interval, whose middle is taken.
    """
    base = min(activity.facts.origin for activity in ranks.values())
    offsets = {rank: activity.facts.origin - base for rank, activity in ranks.items()}
    bounds = _collective_bounds(collectives, offsets)
    sent = _sending_bounds(ranks, offsets, stages)
    sent = {(a, b): triples for (a, b), triples in sent.items() if not {(a, b), (b, a)} & bounds.keys()}
    changes = {pair: _correction(triples) for pair, triples in (bounds | sent).items()}
    neighbours: defaultdict[int, list[tuple[int, float]]] = defaultdict(list)
    for (first, second), change in changes.items():
        neighbours[first].append((second, change))
        neighbours[second].append((first, -change))
    moved: set[int] = set()
    corrections: dict[int, float] = {}
    for start in ranks:
        if start in corrections:
            continue
        corrections[start] = 0.0
        todo = [start]
        while todo:
            rank = todo.pop()
            for other, change in neighbours[rank]:
                if other not in corrections:
                    moved |= {other} if change else set()
                    corrections[other] = corrections[rank] + change
                    todo.append(other)
    residual = 0.0
    for (first, second), triples in bounds.items():
        left = np.abs(np.array([later for *_, later in triples]) - (corrections[second] - corrections[first]))
        residual = max(residual, float(np.median(left)))
    for pair, triples in sent.items():
        if changes[pair]:
            least, most, _ = np.array(triples).T
            residual = max(residual, float(most.min() - least.max()) / 2)
    notes = []
    if moved:
        names, most_moved = ", ".join(map(str, sorted(moved)[:8])), max(map(abs, corrections.values()))
        notes = [
            f"clocks of ranks {names} are corrected by what ranks exchange, by {duration(most_moved)} at most; they "
            f"may still differ by {residual * 1e3:.2f} ms"
        ]
    return {rank: offsets[rank] + corrections[rank] for rank in ranks}, residual, notes


def _collective_bounds(collectives: Iterable[_Collective], offsets: Mapping[int, float]) -> _Bounds:
    bounds: _Bounds = defaultdict(list)
    for collective in collectives:
        members = sorted(collective.members.items())
        if len(members) < 2 or not _MEETS.search(collective.name):
            continue
        (first, a), *others = members
        for rank, b in others:
            shift = offsets[rank] - offsets[first]
            bounds[first, rank].append((a.start - b.end - shift, a.end - b.start - shift, a.end - b.end - shift))
    return bounds


def _sending_bounds(
    ranks: Mapping[int, Activity], offsets: Mapping[int, float], stages: "Mapping[int, _RankPosition]"
) -> _Bounds:
    """Bounds by microbatches: a forward begins behind that of the stage before, a backward behind that of the next.

    Left out are two ranks of which they contradict each other, whatever the clocks: these do not send to each other.
    """
    # The last piece of each, because the ones before it may lie before what it waits for.
    work = {
        rank: {(piece.kind, piece.step, piece.microbatch): (piece.start, piece.end) for piece in activity.pieces}
        for rank, activity in ranks.items()
    }
    rank_at = {position: rank for rank, position in stages.items()}
    bounds: _Bounds = {}
    for rank, position in stages.items():
        after = rank_at.get(replace(position, stage=position.stage + 1))
        if after is None:
            continue
        shift = offsets[after] - offsets[rank]
        triples = []
        for (kind, step, microbatch), (_, sent) in work[rank].items():
            forward = work[after].get(("forward", step, microbatch))
            backward = work[after].get(("backward", step, microbatch))
            begun = work[rank].get(("backward", step, microbatch))
            if kind == "forward" and forward and backward and begun:
                least, most = sent - forward[0] - shift, begun[0] - backward[1] - shift
                triples.append((least, most, (least + most) / 2))
        if triples and max(least for least, *_ in triples) <= min(most for _, most, _ in triples) + _TOLERANCE:
            bounds[rank, after] = triples
    return bounds


def _correction(triples: Sequence[tuple[float, float, float]]) -> float:
    """Seconds to add to a clock; 0 if most collectives agree with it as it is."""
    least, most, later = np.array(triples).T
    if np.mean((least <= _TOLERANCE) & (most >= -_TOLERANCE)) > 0.5:
        return 0.0
    middle = float(np.median(later))
    return min(max(middle, float(least.max())), float(most.min())) if least.max() <= most.min() else middle


def _without_contradictions(
    collectives: Iterable[_Collective], offsets: Mapping[int, float]
) -> tuple[list[_Collective], list[str]]:
    """The collectives, those apart of which one rank had ended before another began: they are not the same."""
    checked, count = [], 0
    for collective in collectives:
        starts = [e.start + offsets[rank] for rank, e in collective.members.items()]
        ends = [e.end + offsets[rank] for rank, e in collective.members.items()]
        if max(starts) > min(ends) + _TOLERANCE and _MEETS.search(collective.name):
            count += 1
            checked += [_Collective(collective.name, {rank: e}) for rank, e in collective.members.items()]
        else:
            checked.append(collective)
    notes = [f"{number_of(count, 'matched collective')} do not overlap in time and are not used"] if count else []
    return checked, notes


# --- pipelines, and what cannot be known ------------------------------------------------------------------------------


@dataclass(frozen=True)
class _RankPosition:
    """Name the replica of the network that a rank belongs to, and its stage of the pipeline."""

    replica: int
    stage: int


def _stages(ranks: Mapping[int, Activity]) -> tuple[dict[int, _RankPosition], list[str]]:
    """Each rank's replica and stage, by what its forwards receive from whom."""
    direct = {rank for rank, activity in ranks.items() if any(exchange.direct for exchange in activity.exchanges)}
    if not direct:
        return {rank: _RankPosition(k, 0) for k, rank in enumerate(ranks)}, []
    before = {rank: peer for rank, activity in ranks.items() if (peer := _sender(activity, "forward")) in ranks}
    notes = []
    if not before:
        members = sorted(direct)
        before = dict(zip(members[1:], members[:-1], strict=True))
        notes = ["stages of the pipeline follow the numbers of ranks, because sends do not name their receiver"]
    positions: dict[int, _RankPosition] = {}
    replica = 0
    for rank in ranks:
        chain, first = {rank}, rank
        while (peer := before.get(first, -1)) >= 0 and peer not in chain:
            chain.add(peer)
            first = peer
        positions[rank] = _RankPosition(-1 - first, len(chain) - 1)
    firsts: dict[int, int] = {}
    for rank, position in positions.items():
        replica = firsts.setdefault(position.replica, len(firsts))
        positions[rank] = _RankPosition(replica, position.stage)
    return positions, notes


def _sender(activity: Activity, kind: str) -> int:
    """The rank from which most of the work of `kind` receives; -1 unknown."""
    counts: defaultdict[int, int] = defaultdict(int)
    for exchange in activity.exchanges:
        if exchange.receives and exchange.peer >= 0:
            piece = _next(activity.pieces, exchange.end)
            if piece is not None and piece.kind == kind:
                counts[exchange.peer] += 1
    return max(counts, key=lambda peer: counts[peer]) if counts else -1


def _next(pieces: Sequence[Piece], when: float) -> Piece | None:
    """The forward or backward that begins at `when` or after it."""
    low, high = 0, len(pieces)
    while low < high:
        middle = (low + high) // 2
        if pieces[middle].start < when - 1e-6:
            low = middle + 1
        else:
            high = middle
    for piece in pieces[low : low + 8]:
        if piece.kind in ("forward", "backward"):
            return piece
    return None


def _assumptions(ranks: Mapping[int, Activity]) -> list[str]:
    notes = [note for activity in ranks.values() for note in activity.assumed]
    if all(activity.on_device for activity in ranks.values()):
        notes.append("without the cause: no waiting for data, free transfers, every rank as fast as the middle one")
    else:
        notes.append(
            "without the cause: no waiting for data, free transfers, every rank as fast as the middle one; on a CPU, "
            "time of the host between operators counts as computing"
        )
    return notes


def _unknown(ranks: Mapping[int, Activity]) -> list[str]:
    notes = []
    if any(not exchange.direct for activity in ranks.values() for exchange in activity.exchanges):
        notes.append("which link slows a collective, because all of its ranks are done at the same time")
    world = max(activity.facts.world_size for activity in ranks.values())
    if world > len(ranks):
        missing = number_of(world - len(ranks), "rank")
        notes.append(f"{missing} of {world}: time in collectives is transfer, or waiting for a rank without a trace")
    return notes


class _Spans:
    """The spans of a trace, rank by rank."""

    def __init__(
        self, ranks: Mapping[int, Activity], offsets: Mapping[int, float], positions: Mapping[int, _RankPosition]
    ) -> None:
        self._ranks, self._offsets, self._positions = ranks, offsets, positions
        self._rank_at = {(position.replica, position.stage): rank for rank, position in positions.items()}
        pieces = [piece for activity in ranks.values() for piece in activity.pieces]
        self._microbatches = 1 + max((piece.microbatch for piece in pieces), default=0)
        self._replicas = 1 + max(position.replica for position in positions.values())
        if not any(piece.kind in ("forward", "backward") for piece in pieces):
            raise InputError(
                "trace.nothing_to_replay",
                f"{next(iter(ranks.values())).facts.path}: no forward or backward in its steps; profile training",
            )
        starts = [piece.start + offsets[rank] for rank, activity in ranks.items() for piece in activity.pieces[:1]]
        starts += [e.start + offsets[rank] for rank, activity in ranks.items() for e in activity.exchanges[:1]]
        self._zero = min(starts)
        numbers = [number for number, _, _ in next(iter(ranks.values())).steps]
        size = self._microbatches * self._replicas
        self.steps = [[number, k * size, (k + 1) * size] for k, number in enumerate(numbers)]

    def spans(self, collectives: Sequence[_Collective]) -> Iterator[Span]:
        """Yield all spans, those of a rank in the order of time."""
        of_rank: dict[int, list[tuple[RankExchange, str]]] = {rank: [] for rank in self._ranks}
        for k, collective in enumerate(collectives):
            if any(exchange.asked < exchange.end for exchange in collective.members.values()):
                for rank, exchange in collective.members.items():
                    name = re.sub(r"\s+", "_", collective.name) or "collective"
                    of_rank[rank].append((exchange, f"{name} {k} of step {self.steps[exchange.step][0]}"))
        for rank, exchanges in of_rank.items():
            yield from self._of_rank(rank, exchanges)

    def _of_rank(self, rank: int, exchanges: Sequence[tuple[RankExchange, str]]) -> Iterator[Span]:
        activity, stage = self._ranks[rank], self._positions[rank].stage
        for exchange, name in exchanges:
            minibatch = self._minibatch(rank, exchange.step, 0)
            issued = self._at(rank, exchange.start)
            yield Span(rank, name, issued, issued, "send", stage, minibatch)
            if exchange.asked < exchange.end:
                asked, end = self._at(rank, exchange.asked), self._at(rank, exchange.end)
                yield Span(rank, name, asked, end, "average", stage, minibatch)
        cuts = sorted(exchange.start for exchange, _ in exchanges)
        for piece in activity.pieces:
            yield from self._of_piece(rank, piece, cuts)
        waits: dict[str, Span] = {}  # one for each forward or backward, whatever it receives
        for exchange in activity.exchanges:
            if exchange.receives and exchange.asked < exchange.end:
                needed = _next(activity.pieces, exchange.end)
                for span in self._waited(rank, exchange, needed) if needed is not None else ():
                    first = waits.setdefault(span.name, span)
                    waits[span.name] = span._replace(start=min(first.start, span.start), end=max(first.end, span.end))
        yield from waits.values()

    def _of_piece(self, rank: int, piece: Piece, cuts: Sequence[float]) -> Iterator[Span]:
        """A piece, divided where a collective is issued; its pauses come before its work."""
        inside = cuts[bisect_right(cuts, piece.start) : bisect_left(cuts, piece.end)]
        stage = piece.stage if piece.stage >= 0 else self._positions[rank].stage
        minibatch = self._minibatch(rank, piece.step, piece.microbatch)
        letter = _LETTERS.get(piece.kind)
        name = f"{stage}{letter}{minibatch}" if letter else piece.kind
        share = piece.busy / (piece.end - piece.start) if piece.end > piece.start else 0.0
        for start, end in zip([piece.start, *inside], [*inside, piece.end], strict=True):
            begin, stop = self._at(rank, end - share * (end - start)), self._at(rank, end)
            yield Span(rank, name, min(begin, stop), stop, piece.kind, stage, minibatch)

    def _waited(self, rank: int, exchange: RankExchange, piece: Piece) -> Iterator[Span]:
        """Yield the wait of a forward for the stage before, of a backward for the stage after."""
        position = self._positions[rank]
        stage = piece.stage if piece.stage >= 0 else position.stage
        away = -1 if piece.kind == "forward" else 1
        peer = (
            exchange.peer if exchange.peer in self._ranks else self._rank_at.get((position.replica, stage + away), -1)
        )
        if peer >= 0:
            minibatch = self._minibatch(rank, piece.step, piece.microbatch)
            name = f"{stage}{_LETTERS[piece.kind]}{minibatch}"
            asked, end = self._at(rank, exchange.asked), self._at(rank, exchange.end)
            yield Span(rank, name, asked, end, "wait", stage, minibatch, peer)

    def _minibatch(self, rank: int, step: int, microbatch: int) -> int:
        replica = self._positions[rank].replica
        return (step * self._replicas + replica) * self._microbatches + max(microbatch, 0)

    def _at(self, rank: int, seconds: float) -> float:
        return seconds + self._offsets[rank] - self._zero
