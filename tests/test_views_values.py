"""What notebooks show of values: true numbers, one SVG, no text of the user's as markup, nothing heavy imported."""

import json
import re
import subprocess
import sys
from xml.etree import ElementTree

import pytest
from coded import mentions

from sparsepipe import (
    Cluster,
    CostSample,
    DeviceType,
    Layer,
    LayerCost,
    LayerGraph,
    Link,
    Node,
    Plan,
    Profile,
    RunRecord,
    Span,
    Stage,
    Trace,
    partition,
    simulate,
)
from sparsepipe.records import Origin
from sparsepipe.views import html

COSTS = tuple(LayerCost((CostSample(0, 0.01 * (k + 1), 0.02, 1e6),)) for k in range(6))
PROFILE = Profile(LayerGraph.chain(tuple(Layer(f"conv{k}", "", 2e6) for k in range(6))), {"gpu": COSTS}, (100.0,))
CLUSTER = Cluster.uniform(2, device_type="gpu", link=Link(1e9, 1e-5))


def svg(text):
    """The drawing, parsed: that it can be is part of the test."""
    return ElementTree.fromstring(re.search(r"<svg.*?</svg>", text, re.DOTALL)[0])


def titles(text):
    return [node.text for node in svg(text).iter("{http://www.w3.org/2000/svg}title")]


def cells(text):
    """The page with its cells, wherever they stand in their columns."""
    return re.sub(r"<(t[dh]) style='text-align:[^']*'>", r"<\1>", text)


def test_a_plan_shows_its_stages():
    plan = partition(PROFILE, CLUSTER)
    text = html(plan)
    assert titles(text) == [f"stage {k}: {len(stage.layers)} layers" for k, stage in enumerate(plan.stages)]
    first = plan.estimate.stages[0]
    assert f"{first.compute_seconds * 1e3:.0f} ms" in text and "conv5" in text
    printed = re.split("  +", str(plan).splitlines()[1])
    assert re.findall(r"<th[^>]*>([^<]*)</th>", text) == printed, "one plan, one table"
    assert "by hand" in html(Plan((Stage(("a",), (0,)),))), "without an estimate"


def test_a_profile_shows_its_layers():
    text = html(PROFILE)
    assert mentions(titles(text)[5], "conv5", "80.0 ms") and len(titles(text)) == 6
    assert "●</span> gpu</td><td>210 ms</td><td>120 ms</td><td>conv5</td>" in cells(text)


def test_a_cluster_shows_nodes_and_links():
    kinds = (DeviceType("fast", 8e9),) * 2, (DeviceType("slow"),)
    cluster = Cluster((Node("a", kinds[0], Link(1e10)), Node("b", kinds[1], Link())), Link(1e9, 5e-5))
    text = html(cluster)
    assert titles(text) == ["a", "fast on a", "fast on a", "b", "slow on b"]
    assert "2 × fast" in text and "1 GB/s, 50 µs" in text and "8 GB" in text and "no limit" in text and "free" in text


def test_a_trace_shows_its_ranks():
    trace = simulate(partition(PROFILE, CLUSTER), PROFILE, CLUSTER, [100] * 6)
    text = html(trace)
    assert len(titles(text)) >= 12 and "simulated trace" in text
    work = trace.busy(0) / trace.makespan
    assert f"<td>0</td><td>{work:.0%}</td><td>{1 - work:.0%}</td>" in cells(text) and "idle" in text
    assert "without spans" in html(Trace((), "measured"))
    many = html(Trace(tuple(Span(0, "0F0", k, k + 1) for k in range(5000)), "measured"))
    assert len(many) < 200_000 and "drawn" in many


@pytest.mark.parametrize("broken", [False, True])
def test_a_record_shows_how_it_stands_also_half_written(tmp_path, broken):
    record = RunRecord.create(tmp_path / "run", partition(PROFILE, CLUSTER), {"model": "net"}, Origin())
    rows = [json.dumps({"event": "step", "seconds": 1, "minibatch": k, "loss": 9 - k}) for k in range(9)]
    (record.folder / "metrics.jsonl").write_text("\n".join([*rows, ""]))
    if broken:
        (record.folder / "plan.json").write_text("{")
        assert "cannot be read" in html(RunRecord(record.folder))
        return
    text = html(record)
    assert (
        "run run, started" in text
        and "<td>minibatches</td><td>9</td>" in cells(text)
        and titles(text) == ["loss by minibatch"]
    )


def test_names_are_text_and_not_markup():
    plan = Plan((Stage(("<b>a</b>",), (0,), device_types=("<i>gpu</i>",)),), warnings=("<script>",))
    text = html(plan)
    assert not any(markup in text for markup in ("<i>", "<script>", "<b>a"))


def test_nothing_is_imported_to_show_a_value():
    code = (
        "import sys, sparsepipe as sp; sp.views.html(sp.Cluster.uniform(2)); "
        "print(sorted({'plotly', 'pandas', 'torch', 'IPython'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
