"""The verbs about traces: show, replay, whatif, export."""

import argparse
from collections.abc import Callable, Mapping

from ..display.html import left_out
from ..display.markup import one_line
from ..errors import InputError
from ..io.files import write_json
from ..record import RunRecord, load_trace
from ..replaying import replay, what_if
from ..trace import Trace
from .output import Answer, cell, table
from .run_folders import run_folder

_MOST_ROWS = 12  # of a table for people


def show(options: argparse.Namespace) -> Answer:
    """Where all devices' time went, and which ranks waited for which."""
    from ..plots.anatomy import PARTS, anatomy_table

    trace = _opened(options)
    shares = anatomy_table({"trace": trace}).iloc[0]
    waits = [{"rank": rank, "peer": peer, "seconds": seconds} for (rank, peer), seconds in trace.waited().items()]
    document = {
        "source": trace.source,
        "spans": len(trace.spans),
        "ranks": list(trace.ranks),
        "stages": sorted({span.stage for span in trace.spans}),
        "seconds": trace.shown_seconds,
        "bubble_fraction": trace.bubble_fraction,
        "anatomy": {part: float(shares[part]) for part in PARTS},
        "waits": waits,
    }
    missing = f" ({left_out(trace)})" if trace.left_out else ""
    lines = [
        f"{one_line(options.file)}: {trace.source}, {len(trace.spans)} spans of {len(trace.ranks)} ranks in "
        f"{trace.shown_seconds:.3f} s{missing}",
        ", ".join(f"{part} {shares[part]:.1%}" for part in PARTS),
    ]
    if waits:
        rows = [[cell(value) for value in wait.values()] for wait in waits]
        lines += ["", *_first_rows(["rank", "waited for", "seconds"], rows)]
    return Answer(document, "\n".join(lines))


def replay_trace(options: argparse.Namespace) -> Answer:
    """Each step as measured and as its own durations and orders say."""
    found = replay(_opened(options))
    head, rows = ["step", "measured (s)", "replayed (s)", "difference", "pipeline alone"], list[list[str]]()
    for step in found.steps:
        whole = step.replayed_seconds / step.measured_seconds - 1 if step.measured_seconds else 0.0
        alone = step.pipeline_replayed_seconds / step.pipeline_measured_seconds - 1
        times = (step.measured_seconds, step.replayed_seconds)
        rows.append([str(step.step), *(f"{seconds:.4f}" for seconds in times), f"{whole:+.2%}", f"{alone:+.2%}"])
    told = (
        f"{len(found.steps)} steps, off by {found.largest_error:.2%} at most; forwards and backwards alone, without "
        f"transfers and delays of launches, by {found.largest_pipeline_error:.2%}"
    )
    text = "\n".join([*_first_rows(head, rows), told])
    return Answer({"steps": [step.to_json() for step in found.steps]}, text)


def whatif(options: argparse.Namespace) -> Answer:
    """The slow-down against an even step, its split and its culprit."""
    found = what_if(_opened(options))
    head, rows = ["what", "slow-down by it alone", "step without it (s)", "of the loss"], list[list[str]]()
    for part in sorted(found.without, key=found.share, reverse=True):
        name = " ".join(map(str, filter(lambda word: word != "", part)))
        rows.append([name, f"{found.by[part]:.3f} ×", f"{found.without[part]:.4f}", f"{found.share(part):.0%}"])
    told = (
        f"a step takes {found.measured_seconds:.4f} s, {found.launched_seconds:.4f} s without delays of launches, "
        f"{found.even_seconds:.4f} s if all were even: {found.slowdown:.3f} × as long"
    )
    return Answer(found.to_json(), "\n".join([told, *_first_rows(head, rows), found.culprit]))


def export(options: argparse.Namespace) -> Answer:
    """Write the trace as Chrome's events, or as a page: which of them, the file's ending says."""
    path = options.out
    if path.suffix.lower() not in (".json", ".html"):
        raise InputError(
            f"--out {path}: expected a name that ends in .json (for Perfetto and Chrome) or .html (a page of its own)"
        )
    trace = _opened(options)
    if path.suffix.lower() == ".html":
        from ..io.files import write_atomic
        from ..plots.trace_page import trace_page

        write_atomic(path, trace_page(trace, title=one_line(options.file.name)))
        told = "open it in a browser"
    else:
        write_json(path, trace.to_chrome())
        told = "open it at ui.perfetto.dev or chrome://tracing"
    facts = {"file": str(path), "spans": len(trace.spans), "ranks": list(trace.ranks)}
    return Answer(facts, f"{one_line(path)}: {len(trace.spans)} spans; {told}")


def _first_rows(head: list[str], rows: list[list[str]]) -> list[str]:
    """A table of the first rows, and how many were left out."""
    more = [f"and {len(rows) - _MOST_ROWS} more (--json has all)"] if len(rows) > _MOST_ROWS else []
    return [table([head, *rows[:_MOST_ROWS]]), *more]


def _opened(options: argparse.Namespace) -> Trace:
    given = options.file
    path = given if given.is_file() else run_folder(given)
    if not (path.exists() or path.suffix):  # a name, which no run has
        path = RunRecord.load(path).folder
    trace = load_trace(path)
    if not trace.spans:
        raise InputError(f"{path}: has no trace yet; choose a run that has trained, or another file")
    return trace


VERBS: Mapping[str, Callable[[argparse.Namespace], Answer]] = {
    "trace show": show,
    "trace replay": replay_trace,
    "trace whatif": whatif,
    "trace export": export,
}
