"""What slows a job down: its steps with and without what is slow, against an even step.

The method is that of "Understanding Stragglers in Large Model Training Using What-if Analysis" (ByteDance, 2025): an
even step has no launch delays, every computation takes the mean of its kind and every communication the median. The
slow-down of a part is that of a step which is even but for this part (their equations 1 to 4); what the part costs is
what the measured step would gain if this part alone were even. Only a part that accounts for four fifths of the loss is
called the cause: many real jobs have none.

Of several pipelines a stage is compared with those with the same layers (copies.py), and an even computation takes what
it takes the middle one of their ranks, the faster of two: by their mean the many minibatches of the fast would be
slower, and the few of a slow one faster. Minibatches stay where they were trained in every step of these, also where
pipelines that take them by pace would share them out again.

Of a torch job (fact "joined") an even step is one without the cause, so that what a part costs is what its removal
brings: no waiting for data, transfers that take no time, and computations as on the middle one of the ranks.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median_low
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...util.text.numbers import Printed
from ...values.trace import Trace
from .copies import Copies
from .dependencies import Dependencies, Node
from .timing import COMPUTE, Floats

_OF_DEVICES = ("stage", "replica", "pipeline", "rank")  # a replica of one plan, or one of several pipelines
CATEGORIES = (*_OF_DEVICES, "operation", "loader", "link")
_COMMUNICATION = ("average", "send", "transfer")  # of which an even one takes the median: most of them wait for nobody
_TRANSFERS = ("send", "transfer")
_EXPLAINS = 0.8  # of the loss, of what is called its cause
_NOTHING = 1.03  # a slow-down below which there is nothing to look for
_NAMED = 0.1  # of the step, which the cause of a torch job costs at least
_MOST_OF = 0.5, 1.5  # of a torch job's loss, what a cause accounts for, and how many times as much as any other
_SLOW = 1.1  # times as long as others with the same layers, from which on a rank of several pipelines is named
_KEPT = "minibatches keep their pipelines here; gains by dynamic assignment are not included"
_AT_ONCE = 16  # variants: so that they stay in the processor's cache
_MOST_PARTS = 256  # of a category: those with the most to explain


class Part(NamedTuple):
    """Part that may be slow: a stage, replica, pipeline, rank, kind of operation; all launches, transfers, sizes.

    Of a torch job, too: the loader of a rank, the link between two ranks, such as "2 to 3", and all communication.
    """

    category: str
    key: int | str = ""


@dataclass(frozen=True)
class WhatIf(Printed):
    """The mean step in seconds: measured, with no launch delays, even; and what each part adds and costs.

    `slowdown` is that of the step without launch delays over the even one. `by` are slow-downs of steps that are even
    but for the part, `without` the seconds of the measured step if the part were even. `cause` is the part that the
    culprit names, `assumed` and `unknown` are what a trace of another program leaves to say.
    """

    measured_seconds: float
    launched_seconds: float
    even_seconds: float
    by: Mapping[Part, float]
    without: Mapping[Part, float]
    culprit: str
    cause: Part | None = None
    assumed: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    @property
    def cost(self) -> float:
        """The share of the measured step that the cause costs; 0 if there is none."""
        return self.cost_of(self.cause) if self.cause else 0.0

    def cost_of(self, part: Part) -> float:
        """Return the share of a step that would be saved if the part were even: below 1, whatever was measured."""
        before = self._before(part)
        return (before - self.without[part]) / before if before else 0.0

    def _before(self, part: Part) -> float:
        """Return the seconds of a step that `without` of the part is compared with: both are measured or replayed."""
        return self.measured_seconds if part.category == "launch" else self.launched_seconds

    @property
    def slowdown(self) -> float:
        return self.launched_seconds / self.even_seconds

    def share(self, part: Part) -> float:
        """Return what of the time lost compared with an even step the part accounts for."""
        lost = self.measured_seconds - self.even_seconds
        return self.cost_of(part) * self._before(part) / lost if lost > 0 else 0.0

    def to_json(self) -> dict[str, Any]:
        """As one object; stages, replicas or pipelines, and ranks are keys as text."""
        return {
            "slowdown": self.slowdown,
            "culprit": self.culprit,
            "cause": {"category": self.cause.category, "key": str(self.cause.key)} if self.cause else None,
            "cost": self.cost,
            "assumed": list(self.assumed),
            "unknown": list(self.unknown),
            "by": _grouped(self.by),
            "without_seconds": _grouped(self.without),
            "measured_seconds": self.measured_seconds,
            "launched_seconds": self.launched_seconds,
            "even_seconds": self.even_seconds,
        }


def what_if(trace: Trace) -> WhatIf:
    """Estimate the step time of a trace without one slow part, such as a stage, a rank or a kind of operation.

    Args:
        trace: A measured or simulated trace.

    Returns:
        Mean step time in seconds (measured, without launch delays, and with equal times), and the slowdown by each
        part.

    Raises:
        InputError: A trace that contains no training.

    Example:
        >>> slow = sp.simulate(plan, profile, cluster, sizes, stragglers="slow:rank=1,factor=4")
        >>> sp.what_if(slow).slowdown > sp.what_if(trace).slowdown
        True

    See also:
        guides/traces_and_what_if, `replay`
    """
    known = Dependencies.of(trace)
    copies = Copies.of(trace, known.nodes)
    even = _even(known, copies)
    parts = dict(_parts(known, even, copies))
    sizes = _sizes(known)
    measured = float(np.mean([step.seconds for step in known.steps])) / known.num_joined
    launched, ideal = (float(mean) or 1e-9 for mean in _means(known, [known.seconds, even]))
    by = {Part("launch"): measured / launched}
    without = {Part("launch"): launched}
    seconds = known.seconds
    mixes = [(part, np.where(mask, seconds, even), np.where(mask, even, seconds)) for part, mask in parts.items()]
    mixes.append((Part("size"), even * sizes, seconds / sizes))
    only = _means(known, (mix for _, mix, _ in mixes))
    left = _means(known, (mix for _, _, mix in mixes))
    by |= {part: value / ideal for (part, *_), value in zip(mixes, only, strict=True)}
    without |= {part: value for (part, *_), value in zip(mixes, left, strict=True)}
    facts = {key: tuple(trace.facts.get(key, ())) for key in ("assumed", "unknown")}
    result = WhatIf(measured, launched, ideal, by, without, "", None, facts["assumed"], facts["unknown"])
    cause, culprit = _culprit(result, known, copies)
    return replace(result, culprit=culprit, cause=cause)


def _means(known: Dependencies, variants: Iterable[Floats]) -> list[float]:
    """The mean step of each variant of the nodes' seconds."""
    mean_seconds: list[float] = []
    batch: list[Floats] = []
    for variant in [*variants, None]:
        if variant is not None:
            batch.append(variant)
        if batch and (variant is None or len(batch) == _AT_ONCE):
            means = known.step_seconds(np.stack(batch, axis=1)).mean(axis=0) / known.num_joined
            mean_seconds += means.tolist()
            batch = []
    return mean_seconds


def _even(known: Dependencies, copies: Copies) -> Floats:
    """Each node's seconds if all of its kind took the same."""
    even = known.seconds.copy()
    places: dict[tuple[str, int], list[int]] = {}
    for node_index, node in enumerate(known.nodes):
        if node.operation:
            places.setdefault(copies.kind(node), []).append(node_index)
    for place_nodes in places.values():
        seconds, nodes = known.seconds[place_nodes], [known.nodes[node_index] for node_index in place_nodes]
        communicates = any(node.kind in _COMMUNICATION for node in nodes)
        if known.step_ranges and (communicates or nodes[0].kind == "load"):
            even[place_nodes] = 0.0
        elif communicates:
            even[place_nodes] = np.median(seconds)
        elif known.step_ranges:
            even[place_nodes] = _as_on_middle_rank(nodes, seconds)
        elif copies.several:
            even[place_nodes] = _middle_rank(nodes, seconds)
        else:
            even[place_nodes] = np.mean(seconds)
    return even


def _middle_rank(nodes: Iterable[Node], seconds: Floats) -> float:
    """The mean of the middle one of the nodes' ranks; of two in the middle, of the faster."""
    ranks: dict[int, list[float]] = {}
    for node, one in zip(nodes, seconds.tolist(), strict=True):
        ranks.setdefault(node.rank, []).append(one)
    return median_low(float(np.mean(ranks_of_node)) for ranks_of_node in ranks.values())


def _as_on_middle_rank(nodes: Sequence[Node], seconds: Floats) -> Floats:
    """The nodes' seconds scaled so that each minibatch takes as long as on the middle rank, whatever cuts it."""
    ranks: defaultdict[int, defaultdict[int, float]] = defaultdict(lambda: defaultdict(float))
    for node, taken in zip(nodes, seconds.tolist(), strict=True):
        ranks[node.rank][node.minibatch] += taken
    middle = median_low(float(np.mean([*minibatches.values()])) for minibatches in ranks.values())
    totals = np.array([ranks[node.rank][node.minibatch] for node in nodes])
    return np.where(totals > 0, seconds * middle / np.where(totals > 0, totals, 1.0), 0.0)


def _parts(known: Dependencies, even: Floats, copies: Copies) -> Iterator[tuple[Part, NDArray[np.bool_]]]:
    """Every part that may be slow, and its nodes."""
    ranks = np.array([node.rank for node in known.nodes])
    keys = {
        "stage": np.array([copies.stage(node) for node in known.nodes]),
        copies.word: np.array([copies.copy(rank) for rank in ranks.tolist()]),
        "rank": ranks,
        "operation": np.array([node.operation for node in known.nodes]),
    }
    excess = known.seconds - even
    kinds = np.array([node.kind for node in known.nodes])
    computes = np.isin(kinds, [*COMPUTE, "update"])
    if known.step_ranges:
        excess = np.where(computes, excess, 0.0)
    for category in (one for one in CATEGORIES if one in keys):
        names, key_index = np.unique(keys[category], return_inverse=True)
        most = np.argsort(-np.bincount(key_index, excess), kind="stable")[:_MOST_PARTS]
        for k in sorted(most.tolist()):
            if (key := names[k].item()) != "":
                mask = key_index == k
                yield Part(category, key), mask & computes if known.step_ranges and category in _OF_DEVICES else mask
    yield Part("transfer"), np.isin(kinds, _TRANSFERS)
    if known.step_ranges:
        yield Part("communication"), np.isin(kinds, _COMMUNICATION)
        yield from _loaders_and_links(known, kinds)


def _loaders_and_links(known: Dependencies, kinds: NDArray[np.str_]) -> Iterator[tuple[Part, NDArray[np.bool_]]]:
    """The loader of each rank of a torch job, and each link that its transfers use."""
    of: defaultdict[Part, list[int]] = defaultdict(list)
    for k in np.flatnonzero(np.isin(kinds, ["load", "transfer"])).tolist():
        node = known.nodes[k]
        loads = node.kind == "load"
        of[Part("loader", node.rank) if loads else Part("link", f"{node.peer} to {node.rank}")].append(k)
    most = sorted(of, key=lambda part: -float(known.seconds[of[part]].sum()))[:_MOST_PARTS]
    for part in most:
        mask = np.zeros(len(known.nodes), dtype=bool)
        mask[of[part]] = True
        yield part, mask


def _sizes(known: Dependencies) -> Floats:
    """By what factor each node takes longer for the size of its microbatch: what forward and backward have in common.

    A trace says nothing of sizes; a rank's own mean of each operation, and in the ratio to it whatever all operations
    on a microbatch share, tell them.
    """
    computes = np.array([node.kind in COMPUTE for node in known.nodes])
    key = {(node.rank, node.stage, node.operation): 0 for node in known.nodes if node.kind in COMPUTE}
    key = {name: k for k, name in enumerate(key)}
    which = np.array([key.get((node.rank, node.stage, node.operation), 0) for node in known.nodes])
    minibatches = {minibatch: k for k, minibatch in enumerate({node.minibatch for node in known.nodes})}
    of = np.array([minibatches[node.minibatch] for node in known.nodes])
    seconds = np.where(computes, known.seconds, 0.0)
    pairs = np.unique(np.stack([which[computes], of[computes]]), axis=1)  # each kind of work on each minibatch
    usual = np.bincount(which, seconds, max(len(key), 1)) / np.maximum(
        np.bincount(pairs[0], minlength=max(len(key), 1)), 1
    )
    expected = np.bincount(pairs[1], usual[pairs[0]], len(minibatches))
    taken = np.bincount(of, seconds, len(minibatches))
    factor = np.where(expected > 0, taken / np.where(expected > 0, expected, 1.0), 1.0)
    return np.where(computes, np.maximum(factor[of], 1e-9), 1.0)


def _culprit(found: WhatIf, known: Dependencies, copies: Copies) -> tuple[Part | None, str]:
    """(the narrowest part that accounts for most of the loss, None if there is none; the sentence about it).

    Of several pipelines it says what is not told of them, too.
    """
    if not copies.several:
        return _cause(found, known, copies)
    if found.measured_seconds < _NOTHING * found.even_seconds:
        return None, f"{_slowest(known, copies)}; {_KEPT}"
    cause, sentence = _cause(found, known, copies)
    return cause, f"{sentence}; {_KEPT}"


def _slowest(known: Dependencies, copies: Copies) -> str:
    """Return which rank takes longest for its layers, beside others that have the same."""
    places: dict[tuple[str, int], list[int]] = {}
    for node_index, node in enumerate(known.nodes):
        if node.kind in COMPUTE:
            places.setdefault(copies.kind(node), []).append(node_index)
    taken: defaultdict[int, float] = defaultdict(float)
    expected: defaultdict[int, float] = defaultdict(float)
    for place_nodes in places.values():
        seconds, nodes = known.seconds[place_nodes], [known.nodes[node_index] for node_index in place_nodes]
        if len({node.rank for node in nodes}) > 1:
            middle = _middle_rank(nodes, seconds)
            for node, one in zip(nodes, seconds.tolist(), strict=True):
                taken[node.rank] += one
                expected[node.rank] += middle
    ratios = {rank: taken[rank] / expected[rank] for rank in sorted(taken) if expected[rank] > 0}
    if not ratios:
        at_work = {copies.copy(node.rank) for node in known.nodes if node.kind in COMPUTE}
        if len(at_work) == 1:
            return (
                f"pipeline {min(at_work)} alone trained in this trace, so ranks cannot be compared; choose a trace "
                "of more minibatches"
            )
        return "no two ranks have the same layers, so ranks cannot be compared"
    worst = max(ratios, key=lambda rank: ratios[rank])
    if ratios[worst] < _SLOW:
        return f"no rank takes {_SLOW:.1f} × as long as others with the same layers"
    return (
        f"rank {worst}{_where(worst, known, copies)} takes {ratios[worst]:.1f} × as long as others with the same layers"
    )


def _where(rank: int, known: Dependencies, copies: Copies) -> str:
    stages = sorted({copies.stage(node) for node in known.nodes if node.rank == rank and node.kind in COMPUTE})
    of_copy = f" of {copies.word} {copies.copy(rank)}" if len(set(copies.of_rank.values())) > 1 else ""
    return f" (stage {', '.join(map(str, stages))}{of_copy})"


def _cause(found: WhatIf, known: Dependencies, copies: Copies) -> tuple[Part | None, str]:
    if found.measured_seconds < _NOTHING * found.even_seconds:
        ratio = found.measured_seconds / found.even_seconds
        return None, f"nothing to explain: a step takes {ratio:.2f} × as long as an even one"
    computes = {node.operation for node in known.nodes if node.kind in COMPUTE}
    parts = [part for part in found.without if not (part.category == "operation" and part.key in computes)]
    counts = Counter(part.category for part in parts)  # the only rank, stage or replica is no slower than any other
    parts = [part for part in parts if part.category not in _OF_DEVICES or counts[part.category] > 1]
    for category in _order(copies):
        matching_parts = [part for part in parts if part.category == category]
        if not matching_parts:
            continue
        worst = max(matching_parts, key=found.share)
        if _dominates(worst, parts, found) if known.step_ranges else found.share(worst) >= _EXPLAINS:
            if causes := _sentence(worst, found, known, copies):
                return worst, causes
    ranked = sorted((part for part in parts if part.category != "rank"), key=found.share, reverse=True)
    if known.step_ranges:  # of those that overlap, the largest
        ranked = list({_family(part): part for part in sorted(parts, key=found.share)}.values())
        ranked.sort(key=found.share, reverse=True)
    causes = ", ".join(f"{_name(part)} {found.share(part):.0%}" for part in ranked[:3] if found.share(part) > 0)
    causes = causes or "no part accounts for any"
    small = known.step_ranges and max((found.cost_of(part) for part in parts), default=0.0) < _NAMED
    lead = f"nothing to explain: no cause costs {_NAMED:.0%} of a step" if small else "no single cause"
    return None, f"{lead}: of the time lost compared with an even step, {causes}"


def _order(copies: Copies) -> tuple[str, ...]:
    """The categories of parts, the narrowest first."""
    devices = ("rank", "stage", copies.word)
    return ("loader", "link", *devices, "launch", "transfer", "size", "operation", "communication")


def _dominates(part: Part, parts: Iterable[Part], answer: WhatIf) -> bool:
    """Return whether a part of a torch job is worth a name: some of its loss is transfers, which are never free."""
    rivals = max((answer.share(other) for other in parts if _family(other) != _family(part)), default=0.0)
    same = (answer.share(other) for other in parts if other.category == part.category and other != part)
    least, times = _MOST_OF
    share = answer.share(part)
    most = share >= _EXPLAINS or (share >= least and share >= times * max(rivals, *same, 0.0))
    return most and answer.cost_of(part) >= _NAMED


def _family(part: Part) -> str:
    """Name the parts that overlap: devices, loaders, communication, launches or sizes."""
    if part.category in _OF_DEVICES:
        return "device"
    if part.category == "loader" or part == Part("operation", "load"):
        return "loader"
    computes = part.category == "operation" and part.key in (*COMPUTE, "update")
    return "communication" if part.category in ("link", "transfer", "operation") and not computes else part.category


def _sentence(part: Part, found: WhatIf, known: Dependencies, copies: Copies) -> str:
    """Return a sentence on a part's cost; for one with devices also its slowdown and when ("" if in no step)."""
    cost = f"{found.cost_of(part):.0%} of the job"
    if part.category not in _OF_DEVICES:
        return f"{_name(part)}: {cost}"
    where = _where(int(part.key), known, copies) if part.category == "rank" else ""
    last = max(node.stage for node in known.nodes)
    if part.category == "stage" and part.key == last and last and not copies.several:
        where = " (the last)"
    ratios = _ratios(part, known, copies)
    factor = float(np.median(ratios))
    slow = sum(ratio > 1 + (factor - 1) / 2 for ratio in ratios)
    if not slow:
        return ""
    when = "all steps" if slow == len(ratios) else f"{slow} of {len(ratios)} steps"
    return f"{_name(part)}{where} takes {factor:{_digits(factor)}} × as long as an even one in {when}: {cost}"


def _digits(factor: float) -> str:
    """Two places of a factor that one would write as 1.0: "1.04"."""
    return ".1f" if factor >= 1.05 else ".2f"


def _ratios(part: Part, known: Dependencies, copies: Copies) -> list[float]:
    """Of each step, how many times as long the part's computations take as those of the others, kind by kind."""
    of: dict[str, Callable[[Node], int]]
    of = {"rank": lambda n: n.rank, "stage": copies.stage, copies.word: lambda n: copies.copy(n.rank)}
    begins = [first for first, _ in known.step_ranges]
    works: defaultdict[tuple[int, tuple[str, int], bool, int, int, int], float] = defaultdict(float)
    for node, seconds in zip(known.nodes, known.seconds.tolist(), strict=True):
        if node.kind in COMPUTE:
            step = bisect_right(begins, node.minibatch) - 1 if begins else node.step
            within = of[part.category](node) == part.key
            works[step, copies.kind(node), within, node.rank, node.stage, node.minibatch] += seconds
    inside: defaultdict[tuple[int, tuple[str, int]], list[float]] = defaultdict(list)
    outside: defaultdict[tuple[int, tuple[str, int]], list[float]] = defaultdict(list)
    for (step, kind, within, *_), seconds in works.items():
        (inside if within else outside)[step, kind].append(seconds)
    compared = np.zeros((2, len(begins) or len(known.steps)))  # seconds of each step: the part's, and the others'
    for key in inside:
        if key in outside:
            compared[:, key[0]] += np.mean(inside[key]), np.median(outside[key])
    return [seconds / others if others > 0 else 1.0 for seconds, others in compared.T.tolist()]


def _name(part: Part) -> str:
    names = {"launch": "delays of launches", "transfer": "transfers", "size": "sizes of microbatches that vary"}
    names["communication"] = "communication"
    if part.category == "operation":
        return "data loaders of all ranks" if part.key == "load" else f"{part.key}"
    if part.category == "loader":
        return f"data loader of rank {part.key}"
    if part.category == "link":
        return f"link from rank {str(part.key).replace(' to ', ' to rank ')}"
    return names.get(part.category) or f"{part.category} {part.key}"


def _grouped(values: Mapping[Part, float]) -> dict[str, Any]:
    """`{"stage": {"0": …}, …, "launch": …}`, of each category the largest first."""
    grouped: dict[str, Any] = {}
    for part, value in sorted(values.items(), key=lambda item: -item[1]):
        if part.category in CATEGORIES:
            grouped.setdefault(part.category, {})[str(part.key)] = value
        else:
            grouped[part.category] = value
    return grouped
