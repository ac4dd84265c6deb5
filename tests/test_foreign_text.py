"""Names out of files of others act nowhere: not as HTML, not as a figure's markup, not as a terminal's codes."""

import ast
import json
import re
from argparse import Namespace
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import ipywidgets
import numpy as np
import plotly.graph_objects as go
import pytest
from test_plots_waiting import written_run
from test_records_fuzzed import record as whole_record

import sparsepipe
from sparsepipe import (
    Cluster,
    CostSample,
    DeviceType,
    InputError,
    Layer,
    LayerCost,
    LayerGraph,
    Link,
    Node,
    Plan,
    Profile,
    Span,
    Trace,
    plots,
)
from sparsepipe.cli import main
from sparsepipe.cli.output import table
from sparsepipe.cli.run_verbs import runs_list, runs_show
from sparsepipe.errors import RunFailed, one_line, visible
from sparsepipe.planning import partition
from sparsepipe.planning.sweeps import Candidate
from sparsepipe.records import RunRecord
from sparsepipe.runtime import RunConfig
from sparsepipe.util.io.files import write_json, write_rows
from sparsepipe.views import html
from sparsepipe.views.markup import Html, figure_text, joined, markdown_text
from sparsepipe.views.plots.outcomes import Outcome
from sparsepipe.views.plots.table import Point
from sparsepipe.views.tables import in_bold
from sparsepipe.views.values import left_out
from sparsepipe.views.widgets import LaunchBoard, LayerGraphExplorer, PartitionExplorer, RunsTable
from sparsepipe.views.widgets.exporter import Exporter
from sparsepipe.views.widgets.html_view import HtmlView, Messages
from sparsepipe.views.widgets.live import Doing, doings_table, learned, log_of

NAME = "<img src=x onerror=alert(1)><b>\"'&$x$%{y}\x1b[31m\u202e"
LINES = f"{NAME}\n{NAME}"
PACKAGE = Path(sparsepipe.__file__).parent


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, list[tuple[str, str | None]]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, attributes))

    def handle_data(self, data: str) -> None:
        self.text += data


def assert_harmless(text: str, *, shows: str = "<img src=x onerror=alert(1)>") -> None:
    """Nothing of the name became a tag or an attribute, no code is left in it, and readers see it as it is."""
    text = str(text)
    tags = Tags()
    tags.feed(text)
    assert not {"img", "script"} & {tag for tag, _ in tags.found}
    assert not [name for _, attributes in tags.found for name, _ in attributes if name.startswith(("on", "src"))]
    assert "\x1b" not in text and "\u202e" not in text
    assert shows in tags.text, "the name is shown"
    assert "$x$" not in text, "no formula for MathJax"


def hostile_profile() -> Profile:
    layers = tuple(Layer(f"{k}{NAME}", NAME, 1e6) for k in range(6))
    cost = LayerCost((CostSample(1000, 0.01, 0.02, 1e6, 1e3, 1e6), CostSample(2000, 0.02, 0.04, 2e6, 2e3, 2e6)))
    costs = {f"{kind}{NAME}": (cost,) * len(layers) for kind in ("a", "b")}
    origin = {"model": NAME, "data": NAME, "batch_size": 4, "synthetic": True}
    return Profile(LayerGraph.chain(layers), costs, (1500.0, 1600.0), origin)


PROFILE = hostile_profile()
KINDS = [DeviceType(name) for name in PROFILE.device_types]
CLUSTER = Cluster((Node(f"1{NAME}", (KINDS[0],) * 2, Link(1e9)), Node(f"2{NAME}", (KINDS[1],), Link(1e9))), Link(1e8))
PLAN = partition(PROFILE, CLUSTER)
PLANS = {
    f"{k}{NAME}": Plan(PLAN.stages, PLAN.schedule, PLAN.weights, planner=f"{k}{NAME}", warnings=(NAME,)) for k in "ab"
}
TRACE = Trace(tuple(Span(0, f"{NAME}{m}", m, m + 0.5, "forward", 0, m) for m in range(3)), "measured")


@pytest.fixture
def record(tmp_path) -> RunRecord:
    """A run whose every text is hostile: its folder's name, model, data, engine, reason, versions, spans."""
    made = whole_record(tmp_path / "runs" / NAME)
    write_json(made.folder / "config.json", {**made.config, "model": LINES, "data": LINES, "engine": LINES})
    write_json(
        made.folder / "origin.json", {**made.origin, "machine": LINES, "facts": {"data": LINES}, "created": LINES}
    )
    write_json(made.folder / "status.json", {"state": "failed", "reason": LINES})
    write_rows(made.folder / "metrics.jsonl", [{**row, "engine": LINES, "run_dir": LINES} for row in made.metrics()])
    for path in made.folder.glob("trace-rank*.jsonl"):
        rows = [{**json.loads(line), "name": LINES} for line in path.read_text().splitlines()]
        write_rows(path, rows)
    PLANS["a" + NAME].save(made.folder / "plan.json")
    (made.folder / "logs" / "rank0.log").write_text(LINES)
    return RunRecord(made.folder)


def test_values_in_notebooks(record):
    for value in (PLANS["a" + NAME], PROFILE, CLUSTER, record):
        assert_harmless(html(value))
        assert type(html(value)) is str, "for whoever puts it into a page of their own"
    assert_harmless(html(TRACE))
    broken = RunRecord(record.folder)
    (record.folder / "status.json").write_text(json.dumps({"state": NAME}))
    assert_harmless(html(broken))


def html_values(root: ipywidgets.Widget) -> Iterator[str]:
    if isinstance(root, ipywidgets.HTML):
        assert isinstance(root, HtmlView)
        yield root.value
    for child in getattr(root, "children", ()):
        yield from html_values(child)


def test_widgets(record, tmp_path):
    runs = RunsTable(record.folder.parent, figures=tmp_path / NAME)
    runs.listing.marks.value = (NAME,)
    runs.deletion.button.click()
    rows = json.loads(runs.listing.marks.document)["rows"]
    assert rows[0][0] == NAME, "as it is: the page makes text of every cell, and puts no HTML together"
    assert (PACKAGE / "views" / "widgets" / "runs_list.js").read_text().count("innerHTML") == 1
    assert_harmless(runs.deletion.question.told.value)
    runs.trace.click()
    assert_harmless(runs.messages.value)
    board = LaunchBoard(PLANS, RunConfig("net", "d"), runs=tmp_path / "none")
    explorer = PartitionExplorer(PROFILE, CLUSTER)
    layers = LayerGraphExplorer(PROFILE, PLAN, note=NAME)
    layers.show(PROFILE.graph.layers[0].id)
    assert_harmless(layers.details.value)
    for widget in (runs.widget, board.widget, explorer.widget, layers.widget):
        for text in html_values(widget):
            if NAME[:4] in text or "&lt;img" in text:
                assert_harmless(text)
    messages = Messages()
    messages.say(NAME)
    assert_harmless(messages.value)
    messages.fail(LINES)
    assert_harmless(messages.value)
    exporter = Exporter(messages, tmp_path / NAME, dict)
    exporter.told.value = f"written to {tmp_path / NAME}"
    assert_harmless(exporter.told.value)
    assert_harmless(HtmlView(NAME).value)


def test_what_is_told_of_a_job_that_runs(record):
    hostile: Any = NAME  # a trace file of another may hold anything: what reads it refuses, what shows it escapes
    assert_harmless(doings_table([Doing(hostile, 0, 0.5, 0.1, 0.1, 0.1, {0: 0.1})]))
    assert_harmless(log_of(record.folder, 0))
    assert learned(record.metrics())


def test_spans_of_wrong_types_are_refused():
    row = TRACE.to_rows()[0]
    for field in ("rank", "stage", "minibatch", "peer", "start", "end"):
        with pytest.raises(InputError, match=field):
            Trace.from_rows([row | {field: NAME}], "measured")
    for field, value in (
        ("name", 3),
        ("kind", NAME),
        ("kind", ["forward"]),
        ("rank", True),
        ("rank", -1),
        ("end", -1.0),
    ):
        with pytest.raises(InputError):
            Trace.from_rows([row | {field: value}], "measured")


def test_the_page_of_a_trace():
    """A rank "<!--<script>" left it blank: it begins a comment in which no script ends."""
    page = plots.trace_page(Trace(TRACE.spans, "measured"), title=NAME + "<!--<script>")
    data = page.split('type="application/json">')[1].split("</script>")[0]
    assert "<" not in data and json.loads(data)["ranks"] == [0]
    assert page.count("<script") == 2 and "<img" not in page and "<!--" not in page


SWEPT = Candidate(NAME, NAME, NAME, NAME, PLAN, 1.0, 2.0, True)


def figures(record: RunRecord) -> dict[str, go.Figure]:
    points = [
        Point(f"{k}{NAME}", f"{c}{NAME}", 4, 100.0, bound_samples_per_second=800.0, memory_bytes=1e9)
        for c in "xy"
        for k in "ab"
    ]
    alone = [Point("one device", f"{c}{NAME}", 1, 50.0) for c in "xy"]
    clouds = {NAME: np.eye(3), f"2{NAME}": np.eye(3)}
    write_json(record.folder / "config.json", {**record.config, "compression": NAME})
    shown = RunRecord(record.folder)
    several = written_run(record.folder.parent / "several", "quorum", stragglers=f"trace:{NAME}")
    outcome = Outcome(f"quorum:{NAME}", NAME, "simulated", (1.0,), (2.0,), {2: 1}, {1: 1}, {"group": 1.0}, run=NAME)
    return {
        "waiting": plots.waiting([outcome], note=NAME),
        "groups": plots.groups([outcome], note=NAME),
        "lost_seconds": plots.lost_seconds([outcome], note=NAME),
        "losses": plots.losses(several, note=NAME),
        "distances": plots.distances(several, note=NAME),
        "accuracy": plots.accuracy(shown, note=NAME, level=(NAME, 0.5)),
        "throughput": plots.throughput(shown),
        "compression": plots.compression(shown, note=NAME),
        "progress": plots.progress({NAME: record.metrics()}, note=NAME),
        "anatomy": plots.anatomy({NAME: TRACE}, note=NAME),
        "timeline": plots.timeline(TRACE, names=[NAME], note=NAME),
        "layer_costs": plots.layer_costs(PROFILE, note=NAME),
        "layer_graph": plots.layer_graph(PROFILE, PLAN, note=NAME),
        "cut_bytes": plots.cut_bytes(PROFILE, note=NAME),
        "time_by_size": plots.time_by_size(PROFILE, note=NAME),
        "stages": plots.stages(PLAN, note=NAME),
        "compare": plots.compare(PLAN, note=NAME),
        "clouds": plots.clouds(clouds, note=NAME),
        "voxel_counts": plots.voxel_counts({NAME: np.arange(5)}, note=NAME),
        "mixes": plots.mixes(points, note=NAME),
        "scaling": plots.scaling(points, points, note=NAME),
        "traffic": plots.traffic(points[:2], note=NAME),
        "tasks": plots.tasks({NAME: [shown]}, note=NAME),
        "speedups": plots.speedups([*points, *alone], note=NAME),
        "trade_off": plots.trade_off([SWEPT], [SWEPT], note=NAME),
        "sparse_dense": plots.sparse_dense({"sparse": [(0.25, PROFILE)]}, note=NAME),
        "iteration_times": plots.iteration_times(
            {NAME: [(0, 0.1), (9, 0.2)]}, {NAME: [(9, NAME)]}, title=NAME, note=NAME
        ),
        "learning_curves": plots.learning_curves({NAME: {NAME: [(0.0, 1.0)]}}, unit=NAME, title=NAME, note=NAME),
        "gaps": plots.gaps([plots.Gap(NAME, 3, 2, NAME, 0.1, 0.2)], note=NAME),
        "orders": plots.orders(
            [plots.OrderedEpoch(NAME, NAME, 1.2, 1.0), plots.OrderedEpoch(NAME, NAME, 1.1)], note=NAME
        ),
        "held_against": plots.held_against([plots.HeldAgainst(NAME, NAME, 1.0, 2.0, NAME, 3.0, NAME)], note=NAME),
        "system_bars": plots.system_bars(
            [plots.SystemBar(NAME, NAME, 1.0), plots.SystemBar(NAME, f"2{NAME}", 1.0, "log", 0.5, 2.0)],
            unit=NAME,
            title=NAME,
            note=NAME,
        ),
    }


def strings(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from strings(item, name)
    elif isinstance(value, list):
        for item in value:
            yield from strings(item, key)


def test_every_figure(record):
    drawn = figures(record)
    functions = {name.removesuffix("_table") for name in plots.__all__ if name.endswith("_table")}
    assert drawn.keys() == functions & set(plots.__all__), "a figure that is not tried here"
    unseen = ("customdata", "legendgroup", "offsetgroup", "meta")  # for programs
    for name, figure in drawn.items():
        document = json.loads(figure.to_json())
        document["layout"] = {key: part for key, part in document["layout"].items() if key not in ("template", "meta")}
        templates = "".join(trace.get("hovertemplate") or "" for trace in document["data"])
        found = [
            text for key, text in strings(document) if key not in unseen or (key == "customdata" and key in templates)
        ]
        shown = [text for text in found if "img src" in text]
        assert shown, f"{name} shows no name"
        for text in shown:
            assert "<img" not in text and "$x$" not in text and "%{y}\\x1b" not in text, (name, text)
            assert "\x1b" not in text and "\u202e" not in text
            assert re.sub(r"</?(b|br|span|extra|i)\b[^>]*>", "", text).count("<") == 0, (name, text)
        assert any(text.startswith("<b>") for text in found), f"{name} keeps its own markup"


def test_a_click_in_the_layer_graph_names_the_layer_itself():
    figure = plots.layer_graph(PROFILE, PLAN)
    assert {layer.id for layer in PROFILE.graph.layers} <= {
        text for trace in figure.data for text in np.ravel(trace.customdata if trace.customdata is not None else [])
    }


def test_the_terminal(record, capsys):
    """A newline in a name broke the table, and codes of a model's name moved the cursor."""
    options = Namespace(folder=record.folder.parent, run=record.folder)
    lines = runs_list(options).text.splitlines()
    assert len(lines) == 2 and r"\x1b[31m\u202e\n<img" in lines[1]
    for verb in (["runs", "list", "--folder", str(record.folder.parent)], ["runs", "show", str(record.folder)]):
        code = main([*verb])
        told = capsys.readouterr()
        assert code in (0, 2) and not set(told.out + told.err) & {"\x1b", "\u202e"}
    assert "\x1b" not in runs_show(options).text.replace("\n", "")
    assert str(PLANS["a" + NAME]).isascii() or "\x1b" not in str(PLANS["a" + NAME])
    for error in (InputError("a.b", LINES), RunFailed("a.b", LINES)):
        assert "\n" not in str(error) and "\x1b" not in str(error)
        assert error._render_traceback_() == [f"{type(error).__name__}: {one_line(LINES)}"]
    assert table([("a", "b"), (LINES, "\t")]).count("\n") == 1


def test_half_characters_are_written_out():
    """A lone surrogate, which JSON may hold, cannot be printed or written to a file."""
    for text in (one_line("a\ud800b"), Html.escape("a\ud800b"), visible("a\ud800b")):
        assert str(text) == r"a\ud800b" and text.encode()


def test_markup_is_put_together_by_type():
    assert Html("<b>{}</b>").format("<") == "<b>&lt;</b>" and joined(["<", Html("<i>")]) == "&lt;<i>"
    assert Html.escape(Html("<b>")) == "<b>" and HtmlView(Html("<b>x</b>")).value == "<b>x</b>"
    assert figure_text('layers\' "sum"') == 'layers\' "sum"', "quotes stay in figures"
    trace = Trace(TRACE.spans, "measured", {"left_out": {"minibatches": [[1, 2]] * 6, "spans": 5, "seconds": 1.0}})
    assert left_out(trace) == "left out: 5 spans of minibatches 1–2, 1–2, 1–2, 1–2 and 2 more parts (1,000 ms)"


# --- the tree -----------------------------------------------------------------------------------------------------

NAMES = "a b br i p div span pre code table thead tbody tr td th ul li svg rect polyline title extra img script style"
TAG = re.compile(rf"</?({'|'.join(NAMES.split())})[\s>/]|<!--|%\{{")


def constants(node: ast.AST) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value


def unescaped(tree: ast.AST) -> Iterator[int]:
    """Lines where tags and values are put together other than by `Html`."""
    markup = {"Html"}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            texts = [part.value for part in node.values if isinstance(part, ast.Constant)]
            if any(TAG.search(text) for text in texts):
                yield node.lineno
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mod):
            sides = [side.value for side in (node.left, node.right) if isinstance(side, ast.Constant)]
            if any(isinstance(side, str) and TAG.search(side) for side in sides):
                yield node.lineno
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            if node.func.attr in ("format", "join", "replace") and isinstance(owner, ast.Constant):
                if isinstance(owner.value, str) and TAG.search(owner.value):
                    yield node.lineno
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in markup:
            if not all(isinstance(argument, ast.Constant) for argument in node.args):
                yield node.lineno


# Html(…) of what is no constant: it says of its argument that it is markup already.
KNOWN = {
    ("views/markup.py", "_whole"),  # a part of markup, whose names alone get a span around them
    ("views/plots/theme.py", "title_of"),  # a finished figure's title
    ("views/plots/export.py", "_title"),  # the same of another figure, to take its tags off
    ("views/plots/export.py", "_for_dark_pages_too"),  # a style sheet of the package's
    ("views/plots/accuracy.py", "accuracy"),  # a hover template's own unit
    ("views/widgets/looks.py", "static_picture"),  # what views have made of theirs
    ("views/widgets/explorer_page.py", "explorer_page"),  # the package's style sheet and JavaScript
    ("study/page.py", "page"),  # a style sheet of the package's, and a policy under which no script runs
    ("study/page.py", "of_markdown"),  # mistune has escaped it
    ("study/page.py", "with_links_to_pages"),  # Html already, of whose links to notebooks the ends change
    ("study/page.py", "_output"),  # what the executed notebook shows, on a page where no script runs
    ("study/page.py", "_with_dark_thumbnails"),  # the same, with SVGs beside its pictures
}


def test_html_is_put_together_by_the_helper_alone():
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        tree = ast.parse(path.read_text())
        allowed = {function for file, function in KNOWN if file == name}
        if name == "views/markup.py":
            continue
        for node in tree.body:
            for part in [node] if not isinstance(node, ast.ClassDef) else node.body:
                if getattr(part, "name", "") not in allowed:
                    found += [f"{name}:{line}" for line in unescaped(part)]
    assert not found


READERS_OF_ENTITIES = {"data/preparing.py"}


def test_no_other_door_to_html():
    """ipywidgets.HTML shows what it is given, html.escape leaves codes and dollars: neither is used elsewhere."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Attribute)
                and node.attr in ("HTML", "HTMLMath")
                and name != "views/widgets/html_view.py"
            ):
                found.append(f"{name}:{node.lineno} {node.attr}")
            if isinstance(node, ast.Import) and any(alias.name == "html" for alias in node.names):
                if name not in READERS_OF_ENTITIES:
                    found.append(f"{name}:{node.lineno} import html")
            if isinstance(node, ast.ImportFrom) and node.module in ("html", "IPython.display", "markupsafe"):
                if name != "views/markup.py":
                    found.append(f"{name}:{node.lineno} from {node.module}")
    assert not found


def test_figures_are_finished_in_one_place():
    """`finished` escapes what a figure shows: each figure function returns through it."""
    for path in (PACKAGE / "views" / "plots").glob("*.py"):
        tree = ast.parse(path.read_text())
        makes = any(isinstance(n, ast.Name) and n.id == "make_subplots" for n in ast.walk(tree))
        makes |= any(isinstance(n, ast.Attribute) and ast.unparse(n) == "go.Figure" and isinstance(n.ctx, ast.Load)
                     for f in ast.walk(tree) if isinstance(f, ast.Call) for n in [f.func])  # fmt: skip
        if makes and path.name not in (
            "theme.py",
            "cells.py",
            "export.py",
            "paper.py",
            "chromium.py",
            "chromium_process.py",
        ):
            assert "finished(" in path.read_text(), path.name


OWN_WORDS = {  # filled into the Markdown of notebooks as they are: numbers, and words of the notebook's own
    *("batch_size", "cloud_epochs", "epochs", "pipeline_minibatches", "emulated_stages", "largest", "smallest"),
    *("bound", "causes", "lines", "place.noted()", "reached", "same", "titles[name]", "verdict", "warning"),
    *("head", "name", "rows", "learned"),
    *("machine", "deepest", "real", "num_devices"),  # of 12_sizes: counts of stages, names of orders
}


ESCAPING = ("len(", "study.explain_", "study.throughput_markdown(")  # a number, or Markdown with escaped names


def test_answers_that_notebooks_share_escape_names():
    assert NAME not in in_bold([NAME]) and in_bold([NAME]) == f"**{markdown_text(NAME)}**"


def test_names_in_the_markdown_of_notebooks():
    found = []
    for path in sorted((PACKAGE.parent / "notebooks").glob("*.ipynb")):
        for cell in json.loads(path.read_text())["cells"]:
            source = "".join(cell["source"])
            if cell["cell_type"] != "code" or "Markdown(" not in source:
                continue
            for node in ast.walk(ast.parse(source)):
                if isinstance(node, ast.FormattedValue) and node.format_spec is None:
                    told = ast.unparse(node.value)
                    if not told.startswith(ESCAPING) and told not in OWN_WORDS:
                        found.append(f"{path.name}: {told}")
    assert not found


def test_markdown_shows_a_name_as_it_is():
    assert markdown_text("a_b") == "a&#95;b"
    for name in (NAME, LINES, "![x](javascript:1)", "`|`", "**b**"):
        assert not set(markdown_text(name)) & set("<>`*_[]()!|$\n\x1b")
