"""The file of one rank's spans: JSON lines, bounded in size, checked as they are read back.

    {"left_out": [33, 65], "spans": 412}        at its head, where something was left out: minibatches, first and last
    {"rank": 0, "name": "0F0", "start": …}      the spans, in the order in which they ended

All ranks together keep `TRACE_BYTES` of a run (16 MiB, some 10,000 minibatches of two ranks; the environment variable
SPARSEPIPE_TRACE_MEGABYTES sets another size). If a rank's share is full, whole blocks of minibatches are left out
(epochs, or parts of long ones) until half of it is free again, and the file says which. What stays:

    ■■ · ■ · ■ · ■ · ■ · ■ · ■■■■     the first block, the newest epochs whole, every second, fourth, … of the others

An epoch longer than half of the share keeps its newest minibatches.
"""

import json
import os
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

from ..errors import DamagedRecord, InputError
from ..util.io.fields import integer
from ..util.io.files import open_regular, read_numbered_rows
from ..values.trace import WORK, Span, span_of, with_input_halves

TRACE_BYTES = 16 * 2**20  # of all ranks of a run
MEGABYTES = "SPARSEPIPE_TRACE_MEGABYTES"
_LEAST = 2**16  # bytes of a rank, however many there are
_MARK = b'{"left_out"'
_MOST_LINE_BYTES = 2**20
_PLACE = re.compile(rb'"kind": "(?:' + "|".join(WORK).encode() + rb')", "stage": \d+, "minibatch": (\d{1,15})\b')

Range = tuple[int, int]  # minibatches, first and last


@dataclass(frozen=True)
class RankSpans:
    """The content of one rank's file: its spans, and the ranges of minibatches that were left out."""

    spans: tuple[Span, ...] = ()
    left_out: tuple[Range, ...] = ()
    num_left_out: int = 0  # spans


def bytes_of_rank(num_ranks: int) -> int:
    """Return the bytes of trace that each of `num_ranks` ranks keeps.

    Raises InputError if SPARSEPIPE_TRACE_MEGABYTES is not a size.
    """
    given = os.environ.get(MEGABYTES)
    try:
        size = TRACE_BYTES if given is None else int(float(given) * 2**20)
    except (ValueError, OverflowError):
        size = -1
    if not 0 < size < 2**60:
        raise InputError(
            "trace.megabytes_malformed",
            f"{MEGABYTES} is {given!r}, expected the maximum trace size in megabytes, above 0",
        )
    return max(_LEAST, size // num_ranks)


def read_spans(path: Path, *, most_bytes: int | None = None, epoch_minibatches: int | None = None) -> RankSpans:
    """Read the spans of one rank. Of a file longer than `most_bytes` blocks are left out, as if it were being written.

    Raises DamagedRecord that names file and row if one of them is damaged.
    """
    left_out: list[Range] = []
    count = 0
    wanted: Callable[[bytes], bool] | None = None
    try:
        if most_bytes is not None and path.is_file() and path.stat().st_size > most_bytes:
            thinning = Thinning.of(_lines(path), limit=most_bytes, epoch_minibatches=epoch_minibatches)
            left_out, count, wanted = [*thinning.ranges], thinning.num_spans, thinning.keeps()
        rows = read_numbered_rows(path, wanted=wanted)
    except InputError as error:
        raise DamagedRecord(error.code, str(error), **error.fields) from None
    except OSError as error:
        raise DamagedRecord("file.unreadable", f"{path}: cannot be read ({error.strerror})") from None
    spans = []
    for line_number, row in rows:
        try:
            if "left_out" in row:
                first, last, more = _mark(row)
                left_out.append((first, last))
                count += more
            else:
                spans.append(span_of(row))
        except InputError as error:
            raise DamagedRecord(error.code, f"{path}:{line_number}: {error}; remove the line", **error.fields) from None
    return RankSpans(with_input_halves(spans), tuple(merged(left_out)), count)


def put_together(ranks: Sequence[RankSpans]) -> tuple[list[Span], dict[str, Any]]:
    """Put the spans of all ranks in time order. What one rank leaves out is left out of the others, too.

    Else a rank would seem to idle. Returns the spans, and as facts which minibatches are missing, in how many spans
    (`left_out`: "minibatches", "spans", and the "seconds" they took).
    """
    ranges = merged(range_ for rank in ranks for range_ in rank.left_out)
    if not ranges:
        return sorted((s for rank in ranks for s in rank.spans), key=lambda s: (s.start, s.rank)), {}
    missing, count = _inside(ranges), sum(rank.num_left_out for rank in ranks)
    spans: list[Span] = []
    for rank in ranks:
        spans_left = list(_without(rank.spans, missing))
        count += len(rank.spans) - len(spans_left)
        spans += spans_left
    spans.sort(key=lambda span: (span.start, span.rank))
    facts = {
        "minibatches": [list(missing_range) for missing_range in ranges],
        "spans": count,
        "seconds": _seconds_between(spans, ranges),
    }
    return spans, {"left_out": facts}


@dataclass
class Thinning:
    """Selection of the blocks of minibatches to remove from a file."""

    block: int  # minibatches of one
    dropped: frozenset[int]  # numbers of blocks
    num_spans: int
    ranges: tuple[Range, ...] = field(default=())

    @classmethod
    def of(cls, lines: Iterable[bytes], *, limit: int, epoch_minibatches: int | None) -> "Thinning":
        """Decide for the rows of a file which blocks go, so that less than three quarters of `limit` bytes stay."""
        sizes, counts = _sizes(lines)
        newest = max(sizes, default=0)
        each = sum(sizes.values()) / max(len(sizes), 1)
        epoch = epoch_minibatches or 1
        block = epoch
        if epoch * each > limit / 8:  # an epoch is more than one block
            block = 1 << max(0, int(limit / 16 / max(each, 1)).bit_length() - 1)
        of_blocks: dict[int, int] = {}
        for minibatch, size in sizes.items():
            of_blocks[minibatch // block] = of_blocks.get(minibatch // block, 0) + size
        kept_blocks = _kept(of_blocks, limit=limit, recent=max(0, newest // epoch - 1) * epoch // block)
        dropped = frozenset(of_blocks.keys() - kept_blocks)
        gone = sum(count for minibatch, count in counts.items() if minibatch // block in dropped)
        ranges = merged((number * block, number * block + block - 1) for number in dropped)
        return cls(block, dropped, gone, tuple(ranges))

    def keeps(self) -> Callable[[bytes], bool]:
        """A filter of the lines of the file: marks, and spans of blocks that stay."""
        minibatch = 0

        def keeps(line: bytes) -> bool:
            nonlocal minibatch
            if line.startswith(_MARK):
                return True
            minibatch = _place_of(line, minibatch)
            return minibatch // self.block not in self.dropped

        return keeps

    def marks(self) -> list[bytes]:
        """Marks at the head of a file; the spans are counted in the first."""
        counts = [self.num_spans, *[0] * len(self.ranges)]
        return [_written(first, last, count) for (first, last), count in zip(self.ranges, counts, strict=False)]


def thinned(path: Path, *, limit: int, epoch_minibatches: int | None) -> bytes:
    """Return the content that a rank's file is left with when it has grown beyond `limit`."""
    thinning = Thinning.of(_lines(path), limit=limit, epoch_minibatches=epoch_minibatches)
    keeps = thinning.keeps()
    lines = [line for line in _lines(path) if keeps(line)]
    before = [_mark(json.loads(line)) for line in lines if line.startswith(_MARK)]
    ranges = merged([*((first, last) for first, last, _ in before), *thinning.ranges])
    count = thinning.num_spans + sum(more for *_, more in before)
    marks = Thinning(thinning.block, thinning.dropped, count, tuple(ranges)).marks()
    return b"".join([*marks, *(line for line in lines if not line.startswith(_MARK))])


def merged(ranges: Iterable[Range]) -> list[Range]:
    """Return the ranges in order, with touching and overlapping ones merged."""
    merged_ranges: list[Range] = []
    for first, last in sorted(ranges):
        if merged_ranges and first <= merged_ranges[-1][1] + 1:
            merged_ranges[-1] = (merged_ranges[-1][0], max(last, merged_ranges[-1][1]))
        else:
            merged_ranges.append((first, last))
    return merged_ranges


def _sizes(lines: Iterable[bytes]) -> tuple[dict[int, int], dict[int, int]]:
    """Bytes and spans of each minibatch; what is no work belongs to the minibatch worked on before it."""
    sizes: dict[int, int] = {}
    counts: dict[int, int] = {}
    minibatch = 0
    for line in lines:
        if not line.startswith(_MARK):
            minibatch = _place_of(line, minibatch)
            sizes[minibatch] = sizes.get(minibatch, 0) + len(line)
            counts[minibatch] = counts.get(minibatch, 0) + 1
    return sizes, counts


def _kept(sizes: dict[int, int], *, limit: int, recent: int) -> set[int]:
    """Blocks that stay, of their sizes by number: those from `recent` on, the first, and a share of the others."""
    kept_blocks: set[int] = set()
    room = limit / 2
    for number in sorted(sizes, reverse=True):
        room -= sizes[number]
        if room < 0 and kept_blocks or number < recent:
            break
        kept_blocks.add(number)
    others = sorted(sizes.keys() - kept_blocks)
    if others:
        kept_blocks.add(others[0])
    every, room = 1, limit * 3 / 4 - sum(sizes[number] for number in kept_blocks)
    while sum(sizes[number] for number in others if number % every == 0) > room and every <= others[-1]:
        every *= 2
    return kept_blocks | {number for number in others if number % every == 0 and every <= others[-1]}


def _without(spans: Iterable[Span], missing: Callable[[int], bool]) -> Iterator[Span]:
    place = 0
    for span in spans:
        place = span.minibatch if span.kind in WORK and span.minibatch >= 0 else place
        if not missing(place):
            yield span


def _inside(ranges: Sequence[Range]) -> Callable[[int], bool]:
    firsts: list[int] = []
    lasts: list[int] = []
    for first, last in sorted(ranges):
        if lasts and first <= lasts[-1]:
            lasts[-1] = max(last, lasts[-1])
        else:
            firsts.append(first)
            lasts.append(last)

    def missing(number: int) -> bool:
        range_index = bisect_right(firsts, number) - 1
        return range_index >= 0 and number <= lasts[range_index]

    return missing


def _seconds_between(spans: Sequence[Span], ranges: Sequence[Range]) -> float:
    """Seconds of the gaps that missing minibatches leave between the work on others."""
    ends: dict[int, float] = {}
    starts: dict[int, float] = {}
    for span in spans:
        if span.kind in WORK and span.minibatch >= 0:
            ends[span.minibatch] = max(span.end, ends.get(span.minibatch, span.end))
            starts[span.minibatch] = min(span.start, starts.get(span.minibatch, span.start))
    numbers = sorted(ends)
    latest = [*accumulate((ends[m] for m in numbers), max)]
    earliest = [*accumulate((starts[m] for m in reversed(numbers)), min)][::-1]
    places = ((bisect_left(numbers, first), bisect_right(numbers, last)) for first, last in ranges)
    gaps = (earliest[after] - latest[before - 1] for before, after in places if before and after < len(numbers))
    return sum((max(0.0, gap) for gap in gaps), 0.0)


def _place_of(line: bytes, before: int) -> int:
    match = _PLACE.search(line)
    return int(match[1]) if match else before


def _lines(path: Path) -> Iterator[bytes]:
    with open_regular(path) as handle:
        yield from iter(lambda: handle.readline(_MOST_LINE_BYTES), b"")


def _written(first: int, last: int, spans: int) -> bytes:
    return f'{{"left_out": [{first}, {last}], "spans": {spans}}}\n'.encode()


def _mark(row: dict[str, Any]) -> tuple[int, int, int]:
    """Return (first, last, spans) of a row that says what was left out. Raises InputError if it does not."""
    left_out_ranges = row["left_out"]
    if not isinstance(left_out_ranges, list) or len(left_out_ranges) != 2:
        raise InputError(
            "trace.left_out_malformed",
            f"left_out is {left_out_ranges!r:.60}, expected pairs of a first and a last minibatch",
        )
    first, last = (integer(number, "left_out", most=2**53) for number in left_out_ranges)
    if first > last:
        raise InputError(
            "trace.left_out_malformed",
            f"left_out is {left_out_ranges!r:.60}, expected the first minibatch before the last",
        )
    return first, last, integer(row.get("spans", 0), "spans", most=2**53)
