"""The verbs about traces: show, simulate, whatif, export."""

import argparse
from collections.abc import Callable, Mapping

from ..errors import InputError, one_line
from ..planning.replaying import replay, what_if
from ..records import RunRecord, load_trace
from ..util.io.files import write_atomic, write_json
from ..util.text.numbers import number_of
from ..values.trace import Trace
from ..views import Table, table_text, text
from ..views.values import left_out
from .launches import run_folder
from .output import Answer, cell

_ALL_IN = "--json has all"
_SHOWN_SHARE = 0.01  # of a rank's time, from which waiting for data is shown


def show(options: argparse.Namespace) -> Answer:
    """Print the time of all devices by cause, and which ranks waited for which."""
    from ..views.plots.timeline import PARTS, anatomy_table

    trace = _opened(options)
    shares = anatomy_table({"trace": trace}).iloc[0]
    loading = dict.fromkeys(map(str, trace.ranks), 0.0)  # share of each rank's time
    for span in trace.spans:
        if span.kind == "load" and trace.shown_seconds:
            loading[str(span.rank)] += span.seconds / trace.shown_seconds
    waits = [{"rank": rank, "peer": peer, "seconds": seconds} for (rank, peer), seconds in trace.waited().items()]
    document = {
        "source": trace.source,
        "spans": len(trace.spans),
        "ranks": list(trace.ranks),
        "stages": sorted({span.stage for span in trace.spans}),
        "seconds": trace.shown_seconds,
        "bubble_fraction": trace.bubble_fraction,
        "anatomy": {part: float(shares[part]) for part in PARTS},
        "loading": loading,
        "waits": waits,
        "clock_error": trace.facts.get("clock_error"),
    }
    missing = f" ({left_out(trace)})" if trace.left_out else ""
    lines = [
        f"{one_line(options.file)}: {trace.source}, {number_of(len(trace.spans), 'span')} of "
        f"{number_of(len(trace.ranks), 'rank')} in {trace.shown_seconds:.3f} s{missing}",
        ", ".join(f"{part} {shares[part]:.1%}" for part in PARTS),
    ]
    if slow := {rank: share for rank, share in loading.items() if share >= _SHOWN_SHARE}:
        lines.append("waiting for data: " + ", ".join(f"rank {rank} {share:.1%}" for rank, share in slow.items()))
    if waits:
        rows = [[cell(value) for value in wait.values()] for wait in waits]
        table = Table(("rank", "waited for", "seconds"), rows).first()
        lines += ["", table_text(table, all_in=_ALL_IN)]
    return Answer(document, "\n".join(lines))


def simulate_trace(options: argparse.Namespace) -> Answer:
    """Each step as measured and as its own durations and orders say."""
    found = replay(_opened(options))
    return Answer(found.to_json(), text(found, all_in=_ALL_IN))


def whatif(options: argparse.Namespace) -> Answer:
    """The slow-down against an even step, its split and its culprit."""
    found = what_if(_opened(options))
    return Answer(found.to_json(), text(found, all_in=_ALL_IN))


def export(options: argparse.Namespace) -> Answer:
    """Write the trace as Chrome's events, or as a page: which of them, the file's ending says."""
    path = options.out
    if path.suffix.lower() not in (".json", ".html"):
        raise InputError(
            "trace.out_suffix",
            f"--out {path}: expected a name that ends in .json (for Perfetto and Chrome) or .html (a web page)",
        )
    trace = _opened(options)
    if path.suffix.lower() == ".html":
        from ..views.plots.timeline import trace_page

        write_atomic(path, trace_page(trace, title=one_line(options.file.name)))
        told = "open it in a browser"
    else:
        write_json(path, trace.to_chrome())
        told = "open it at ui.perfetto.dev or chrome://tracing"
    facts = {"file": str(path), "spans": len(trace.spans), "ranks": list(trace.ranks)}
    return Answer(facts, f"{one_line(path)}: {number_of(len(trace.spans), 'span')}; {told}")


def _opened(options: argparse.Namespace) -> Trace:
    given = options.file
    path = given if given.is_file() else run_folder(given)
    if not (path.exists() or path.suffix or set("*?[") & set(str(path))):  # a name, which no run has
        path = RunRecord.load(path).folder
    trace = load_trace(path)
    if not trace.spans:
        raise InputError(
            "run.no_trace", f"{path}: has no trace yet; choose a run that has trained, or give another file"
        )
    return trace


VERBS: Mapping[str, Callable[[argparse.Namespace], Answer]] = {
    "trace show": show,
    "trace simulate": simulate_trace,
    "trace whatif": whatif,
    "trace export": export,
}
