"""What one rank of a torch job did when: phases of its steps, pieces of work between communication, and exchanges.

The phases come from the host's threads: loaders and optimizers are annotated, and the autograd engine gives each of its
operators the number of the forward's operator. So a forward is told from the backward that belongs to it, also where
microbatches alternate:

    host     │load│ forward 0 │ forward 1 │ backward 0 │ backward 1 │ update │
    numbers         1 2 3 4     5 6 7 8     4 3 2 1      8 7 6 5

On a CPU the host's thread does the work: it waits where none of its operators runs and an exchange ends. On a GPU the
kernels do the work, each in the phase of the call that launched it. The device waits where none of them runs, the next
is launched already, and an exchange ends. The rest of its pauses are delays of launches.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from .events import Columns, IssuedCall, Mark, RankEvents, RankFacts

Floats = NDArray[np.float64]

_STEP = re.compile(r"ProfilerStep\s*#\s*(\d{1,12})")
_LOADER = re.compile(r"enumerate\(DataLoader\)|\bdata_?load(?:er|ing)?\b", re.IGNORECASE)
_OPTIMIZER = re.compile(r"Optimizer\.step#")
_ACTION = re.compile(r"(Forward|Backward) (\d{1,6})$|PP:(\d{1,6})([FBIW])(\d{1,6})$")
_DIRECT = {"send", "recv", "recvAnySource", "coalesced", "SendRecv"}  # NCCL joins what is sent and received at once
_RESUMES = 0.002  # seconds in which a host's thread goes on after what it waited for
_RECORDED = 0.003  # seconds by which the end of an exchange may be recorded after the rank goes on
_TICK = 5e-6  # seconds by which the times of kernels are exact
_MOST_STEPS = 100_000
_MOST_PAUSES = 1000  # before the end of an exchange, in which its wait is looked for
_NESTED = 8  # annotations around a forward or backward, at most


class StepPhase(NamedTuple):
    """A part of a step on the host: what it is about, of which microbatch and stage of the step (-1: unknown)."""

    kind: str  # forward, backward, update, load
    microbatch: int
    stage: int
    start: float
    end: float
    step: int = 0  # index in the rank's steps


class Piece(NamedTuple):
    """Work without communication: `busy` of its seconds are work, the rest delays of launches."""

    kind: str
    microbatch: int
    stage: int
    start: float
    end: float
    busy: float
    step: int


class RankExchange(NamedTuple):
    """A collective, send or receive: issued at `start`, done at `end`, the rank waits for it from `asked` on.

    `asked` equals `end` if the rank does not wait.
    """

    name: str
    group: str
    peer: int
    elements: int
    step: int  # index in the rank's steps
    start: float
    end: float
    asked: float

    @property
    def direct(self) -> bool:
        """Return whether it is between two ranks."""
        return self.name in _DIRECT

    @property
    def receives(self) -> bool:
        """Return whether something may come with it from another rank."""
        return self.direct and self.name != "send"


@dataclass(frozen=True, eq=False)
class Activity:
    """The steps of a rank as (number, start, end), its work and its exchanges, in the order of time."""

    facts: RankFacts
    steps: tuple[tuple[int, float, float], ...]
    pieces: tuple[Piece, ...]
    exchanges: tuple[RankExchange, ...]
    on_device: bool
    assumed: tuple[str, ...]


def activity_of(events: RankEvents) -> Activity:
    """Return what the rank did. Raises InputError for a trace without a training step."""
    operators, backward = events.operators.columns(), events.backward.columns()
    steps, main, assumed = _steps(events, operators)
    host = _Host(events, main, operators, backward)
    phases = [phase._replace(step=index) for index, (_, *step) in enumerate(steps) for phase in host.phases(*step)]
    on_device = len(events.kernels.starts) > 0
    calls = _calls(events)
    if on_device:
        pieces, waits = _on_device(events, phases, calls)
    else:
        engine = {main, *np.unique(backward.threads).tolist()}
        pieces, waits = _on_host(operators, engine, phases, calls)
    begins = [start for _, start, _ in steps]
    exchanges = []
    for (call, issued), (asked, until) in zip(calls, waits, strict=True):
        step = bisect_right(begins, issued) - 1
        if step >= 0 and issued < steps[step][2]:
            group = call.group or call.ranks
            exchanges.append(RankExchange(call.name, group, call.peer, call.elements, step, call.start, until, asked))
    return Activity(events.facts, tuple(steps), tuple(pieces), tuple(exchanges), on_device, tuple(assumed))


# --- steps and phases -------------------------------------------------------------------------------------------------


def _steps(events: RankEvents, operators: Columns) -> tuple[list[tuple[int, float, float]], int, list[str]]:
    """((number, start, end) of each step, the thread that trains, what was assumed)."""
    marked = [(int(match[1]), mark) for mark in events.marks if (match := _STEP.match(mark.name))]
    starts, ends, threads, _ = operators
    if marked:
        threads_of = [mark.thread for _, mark in marked]
        main = max(set(threads_of), key=threads_of.count)
        steps = sorted((mark.start, number, mark.end) for number, mark in marked if mark.thread == main)
        return _checked([(number, start, end) for start, number, end in steps], events), main, []
    updates = sorted((mark.start, mark.end, mark.thread) for mark in events.marks if _OPTIMIZER.match(mark.name))
    if updates:
        main = updates[0][2]
        first = min(starts.min() if len(starts) else updates[0][0], updates[0][0])
        begins = [float(first), *(end for _, end, thread in updates if thread == main)]
        steps_between = [(k, a, b) for k, (a, b) in enumerate(zip(begins[:-1], begins[1:], strict=True))]
        note = "a step ends with each step of the optimizer, because there is no ProfilerStep"
        return _checked(steps_between, events), main, [note]
    if not len(starts):
        raise InputError(
            "trace.no_steps",
            f"{events.facts.path}: no ProfilerStep, no optimizer and no operators; profile with activities=[CPU, CUDA] "
            "and call profiler.step()",
        )
    main = int(np.argmax(np.bincount(threads, ends - starts)))
    whole = (0, float(starts.min()), float(ends.max()))
    return [whole], main, ["the whole trace is one step, because it has neither ProfilerStep nor optimizer"]


def _checked(steps: list[tuple[int, float, float]], events: RankEvents) -> list[tuple[int, float, float]]:
    if len(steps) > _MOST_STEPS:
        raise InputError(
            "trace.too_many_events", f"{events.facts.path}: more than {_MOST_STEPS:,} steps; profile fewer"
        )
    checked = []
    for k, (number, start, end) in enumerate(steps):
        until = min(end, steps[k + 1][1]) if k + 1 < len(steps) else end
        if until > start:
            checked.append((number, start, until))
    if not checked:
        raise InputError("trace.no_steps", f"{events.facts.path}: its steps take no time; profile again")
    return checked


class _Host:
    """The work of the host in the order of time, of which each step takes its part."""

    def __init__(self, events: RankEvents, main: int, operators: Columns, backward: Columns) -> None:
        self._main, self._operators, self._backward = main, operators, backward
        self._marks = sorted(events.marks, key=lambda mark: mark.start)
        self._begins = [mark.start for mark in self._marks]
        self._direct = sorted(call.start for call in events.issued if call.name in _DIRECT)

    def phases(self, begin: float, end: float) -> list[StepPhase]:
        """Return the phases of one step, which cover it."""
        marks = self._marks[bisect_left(self._begins, begin) : bisect_left(self._begins, end)]
        loads = [mark for mark in marks if mark.thread == self._main and _LOADER.search(mark.name)]
        anchors = [StepPhase("load", -1, -1, mark.start, mark.end) for mark in loads]
        anchors += [StepPhase("update", -1, -1, m.start, m.end) for m in marks if _OPTIMIZER.match(m.name)]
        anchors += self._computed(marks, begin, end)
        anchors.sort(key=lambda phase: (phase.start, -phase.end))
        return list(_filled(anchors, begin, end))

    def _computed(self, marks: Sequence[Mark], begin: float, end: float) -> Iterator[StepPhase]:
        """The forwards and backwards of a step, by the numbers that the autograd engine gives its operators."""
        clusters = self._backwards(marks, begin, end)
        starts, ends, _, numbers = self._operators.between(begin, end)
        inside = numbers >= 0
        for cluster in clusters:
            inside[slice(*np.searchsorted(starts, cluster[:2]))] = False
        starts, ends, numbers = starts[inside], ends[inside], numbers[inside]
        order = np.argsort(numbers, kind="stable")
        starts, ends, numbers = starts[order], ends[order], numbers[order]
        actions = [(mark, match) for mark in marks if (match := _ACTION.match(mark.name))]
        begins = [mark.start for mark, _ in actions]
        for microbatch, (start, stop, least, most) in enumerate(clusters):
            low, high = np.searchsorted(numbers, least), np.searchsorted(numbers, most, side="right")
            before = starts[low:high] < start
            if before.any():
                first, last = float(starts[low:high][before].min()), float(ends[low:high][before].max())
                before_first = bisect_right(begins, first)
                around = actions[max(before_first - _NESTED, 0) : before_first]
                yield _named(StepPhase("forward", microbatch, -1, first, min(last, start)), around)
            before_start = bisect_right(begins, start)
            around = actions[max(before_start - _NESTED, 0) : before_start]
            yield _named(StepPhase("backward", microbatch, -1, start, stop), around)

    def _backwards(self, marks: Sequence[Mark], begin: float, end: float) -> list[tuple[float, float, int, int]]:
        """(start, end, lowest number, highest number) of each backward of a step.

        The engine runs the operators of one backward with the highest number first: a higher one belongs to the next.
        So does what follows a send or a receive outside of its operators.
        """
        starts, ends, _, numbers = self._backward.between(begin, end)
        direct = self._direct[bisect_left(self._direct, begin) : bisect_left(self._direct, end)]
        others = [mark.start for mark in marks if _OPTIMIZER.match(mark.name) or _LOADER.search(mark.name)]
        cuts = sorted([*direct, *others])
        clusters: list[list[float]] = []
        for start, stop, number in zip(starts.tolist(), ends.tolist(), numbers.tolist(), strict=True):
            if clusters:
                last = clusters[-1]
                between = bisect_right(cuts, start) > bisect_right(cuts, last[1])
                if not between and (number < 0 or last[3] < 0 or number <= last[3]):
                    last[1] = max(last[1], stop)
                    if number >= 0:
                        last[2] = min(last[2], number) if last[2] >= 0 else number
                        last[3] = max(last[3], number)
                    continue
            clusters.append([start, stop, number, number])
        return [(start, stop, int(least), int(most)) for start, stop, least, most in clusters]


def _named(phase: StepPhase, actions: Sequence[tuple[Mark, re.Match[str]]]) -> StepPhase:
    """The phase with the microbatch and stage of an annotation of torch.distributed.pipelining around it."""
    for mark, match in actions:
        if mark.start <= phase.start and phase.end <= mark.end + _RESUMES:
            if match[1]:
                return phase._replace(microbatch=int(match[2]))
            return phase._replace(stage=int(match[3]), microbatch=int(match[5]))
    return phase


def _filled(anchors: Sequence[StepPhase], begin: float, end: float) -> Iterator[StepPhase]:
    """Extend the anchors until they cover the step: time between two belongs to a neighbour that computes.

    What comes before a forward or backward belongs to it, and what comes before anything else to what was before that.
    """
    at, last = begin, None
    for phase in anchors:
        if phase.end <= at:
            continue
        start = max(phase.start, at)
        if start > at:
            if phase.kind in ("forward", "backward"):
                leads = last is not None and last.kind == "forward" and phase.kind == "backward"
                leads = leads and last is not None and last.microbatch == phase.microbatch
                owner = last if leads and last is not None else phase
            elif last is not None and last.kind != "load":
                owner = last
            else:
                owner = (
                    StepPhase("forward", 0, -1, at, start) if phase.kind != "load" else phase._replace(kind="update")
                )
            yield owner._replace(start=at, end=start)
        stop = min(phase.end, end)
        if stop > start:
            yield phase._replace(start=start, end=stop)
        at, last = max(at, stop), phase
    if at < end:
        kind = last.kind if last is not None and last.kind != "load" else "forward"
        yield StepPhase(kind, last.microbatch if last is not None and last.kind == kind else 0, -1, at, end)


# --- communication ----------------------------------------------------------------------------------------------------


def _calls(events: RankEvents) -> list[tuple[IssuedCall, float]]:
    """The rank's exchanges in the order of their beginnings, with names and groups, and when its host issued them."""
    if events.kernels_of_communication:
        calls = list(_with_names(events))
    else:
        described = sorted(events.described, key=lambda call: call.start)
        begins = [call.start for call in described]
        calls = []
        for call in events.issued:
            k = bisect_right(begins, call.start) - 1
            about = described[k] if k >= 0 and described[k].end >= call.start else call
            if about.thread == call.thread:
                elements = about.elements or call.elements
                known = call._replace(group=about.group, ranks=about.ranks, peer=about.peer, elements=elements)
            calls.append((known if about.thread == call.thread else call, call.start))
    return sorted(calls, key=lambda pair: (pair[0].start, pair[0].end))


def _with_names(events: RankEvents) -> Iterator[tuple[IssuedCall, float]]:
    """Kernels of communication named by the annotation in which they were launched, such as nccl:all_to_all."""
    starts, _, threads, links = events.launches.columns()
    of_calls = np.isin(links, [call.correlation for call in events.kernels_of_communication])
    places = zip(starts[of_calls].tolist(), threads[of_calls].tolist(), strict=True)
    launched = dict(zip(links[of_calls].tolist(), places, strict=True))
    issued = sorted(events.issued, key=lambda call: call.start)
    begins = [call.start for call in issued]
    for call in events.kernels_of_communication:
        at, thread = launched.get(call.correlation, (call.start, -1))
        k = bisect_right(begins, at) - 1
        if k >= 0 and issued[k].end >= at and issued[k].thread == thread:
            name = issued[k].name
        elif call.name.lower().startswith(("nccl", "rccl", "msccl")):  # ncclDevKernel_AllReduce_Sum_f32_RING_LL(…)
            name = re.split(r"[_(<]", re.sub(r"^\w*?kernel_", "", call.name, flags=re.IGNORECASE))[0][:40]
        else:
            name = call.name
        yield call._replace(name=name or "collective"), at


# --- work -------------------------------------------------------------------------------------------------------------


def _merged(starts: Floats, ends: Floats) -> tuple[Floats, Floats]:
    """The union of intervals as sorted intervals that do not touch."""
    if not len(starts):
        return starts, ends
    order = np.argsort(starts, kind="stable")
    starts, latest = starts[order], np.maximum.accumulate(ends[order])
    new = np.concatenate([[True], starts[1:] > latest[:-1]])
    last = np.concatenate([new[1:], [True]])
    return starts[new], latest[last]


def _waits(
    begins: Floats, ends: Floats, calls: Sequence[tuple[IssuedCall, float]], launched: Sequence[float] | None
) -> list[tuple[float, float]]:
    """For each call, since when and until when the rank waits for it; both its end if the rank does not.

    `begins` and `ends` are those of the rank's work. It waits for a call that ends while it does not work, if it asked
    for it just before or goes on just after; on a device, if what follows is `launched` before that.
    """
    waits = [(call.end, call.end) for call, _ in calls]
    late = _RECORDED if launched is None else _TICK
    done = float("-inf")
    for k in sorted(range(len(calls)), key=lambda k: calls[k][0].end):
        call, longest = calls[k][0], 0.0
        following = int(np.searchsorted(begins, call.end, side="right"))  # the work that begins next
        for index in range(following, max(following - _MOST_PAUSES, 0) - 1, -1):
            before = float(ends[index - 1]) if index else float("-inf")
            after = float(begins[index]) if index < len(begins) else float("inf")
            if after < call.end - late:
                break
            since, until = max(before, call.start, done), min(after, call.end)
            if launched is not None:
                is_wait = index >= len(begins) or launched[index] <= call.end
            else:
                soon = after - call.end <= _RESUMES
                is_wait = call.name in _DIRECT or soon or call.start >= before - _RESUMES
            if is_wait and until - since > longest:
                longest, waits[k] = until - since, (since, until)
        done = max(done, waits[k][1]) if longest else done
    return waits


def _on_host(
    operators: Columns, engine: Collection[int], phases: Sequence[StepPhase], calls: Sequence[tuple[IssuedCall, float]]
) -> tuple[list[Piece], list[tuple[float, float]]]:
    """Pieces and waits of a rank that computes on the threads of its host: `engine`."""
    on_thread = np.isin(operators.threads, list(engine))
    asked = _waits(*_merged(operators.starts[on_thread], operators.ends[on_thread]), calls, None)
    waits = sorted(wait for wait in asked if wait[0] < wait[1])
    pieces = []
    for phase in phases:
        at = phase.start
        for k in range(max(bisect_right(waits, (phase.start, phase.start)) - 1, 0), len(waits)):
            since, until = waits[k]
            if since >= phase.end:
                break
            if until <= at:
                continue
            if since > at:
                pieces.append(Piece(phase.kind, phase.microbatch, phase.stage, at, since, since - at, phase.step))
            at = max(at, until)
        if at < phase.end:
            pieces.append(Piece(phase.kind, phase.microbatch, phase.stage, at, phase.end, phase.end - at, phase.step))
    return pieces, asked


def _on_device(
    events: RankEvents, phases: Sequence[StepPhase], calls: Sequence[tuple[IssuedCall, float]]
) -> tuple[list[Piece], list[tuple[float, float]]]:
    """Pieces and waits of a rank that computes by kernels."""
    starts, ends, _, links = events.kernels.columns()
    when, _, _, numbers = events.launches.columns()
    order = np.argsort(numbers, kind="stable")
    when, numbers = when[order], numbers[order]
    last = np.searchsorted(numbers, links, side="right") - 1  # the call that launched each kernel, or another one
    launches = starts.copy()
    if len(numbers):
        launches = np.where((last >= 0) & (numbers[last] == links), when[last], starts)
    begins, stops = _merged(starts, ends)
    resumed = launches[np.searchsorted(starts, begins)].tolist()
    asked = _waits(begins, stops, calls, resumed)
    waits = sorted(wait for wait in asked if wait[0] < wait[1])
    phase_begins = [phase.start for phase in phases]
    # A wait, a change of phase and a step's end cut the work of a device into pieces.
    pieces: list[Piece] = []
    cuts = [until for _, until in waits]
    loads = [phase for phase in phases if phase.kind == "load"]
    covered = float("-inf")
    run: list[float] = []  # start, end, busy of the piece that grows
    of: tuple[int, int] = (-1, -1)
    for start, end, launch in zip(starts.tolist(), ends.tolist(), launches.tolist(), strict=True):
        which = bisect_right(phase_begins, launch) - 1
        key = which, bisect_right(cuts, start)
        if which < 0 or launch >= phases[-1].end:
            continue
        if run and key == of:
            run[1], run[2] = max(run[1], end), run[2] + max(end - max(start, covered), 0.0)
        else:
            if run:
                pieces.append(_piece(phases[of[0]], run))
            run, of = [max(start, covered), max(end, covered), max(end - max(start, covered), 0.0)], key
        covered = max(covered, end)
    if run:
        pieces.append(_piece(phases[of[0]], run))
    pieces += _loading(loads, begins, stops, waits)
    pieces.sort(key=lambda piece: (piece.start, piece.end))
    return pieces, asked


def _piece(phase: StepPhase, run: Sequence[float]) -> Piece:
    kind = phase.kind if phase.kind != "load" else "forward"
    return Piece(kind, phase.microbatch, phase.stage, run[0], run[1], run[2], phase.step)


def _loading(
    loads: Sequence[StepPhase], begins: Floats, stops: Floats, waits: Sequence[tuple[float, float]]
) -> Iterator[Piece]:
    """The time in which a device has nothing to do while its host loads data."""
    if not loads:
        return
    since = np.array([start for start, _ in waits])
    until = np.array([end for _, end in waits])
    begins, stops = _merged(np.concatenate([begins, since]), np.concatenate([stops, until]))
    for phase in loads:
        index = int(np.searchsorted(stops, phase.start, side="right"))
        at = phase.start
        while at < phase.end:
            idle = min(float(begins[index]) if index < len(begins) else phase.end, phase.end)
            if idle > at:
                yield Piece("load", -1, -1, at, idle, idle - at, phase.step)
            if index >= len(begins):
                break
            at = max(at, float(stops[index]))
            index += 1
