"""The pages that a batch writes are for everybody: axe-core finds no violation of WCAG 2.1 AA, in light or in dark."""

from pathlib import Path

import nbformat
import pandas as pd
import pytest
from PIL import Image
from processes import ENOUGH

from sparsepipe import Cluster, CostSample, DeviceType, Layer, LayerCost, LayerGraph, Link, Node, Profile, partition
from sparsepipe.study.notebook_job import NotebookJob
from sparsepipe.study.overview import Overview
from sparsepipe.study.page import write_page
from sparsepipe.util.io.files import write_json
from sparsepipe.views.values import SHOWN, html

axe_core = pytest.importorskip("axe_playwright_python.sync_playwright", reason="pip install axe-playwright-python")

pytestmark = [pytest.mark.browser, pytest.mark.timeout(400)]

RULES = {
    "runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]},
    "resultTypes": ["violations"],
}


def displayed(value):
    shown = html(value) if isinstance(value, SHOWN) else value._repr_html_()
    return nbformat.v4.new_output("display_data", {"text/html": shown, "text/plain": repr(value)})


def values(root):
    """One of each kind that shows itself in a cell."""
    layers = tuple(Layer(f"conv{k}", "Conv2d()", 4e6) for k in range(6))
    costs = tuple(LayerCost((CostSample(1000, 0.01, 0.02, 1e6),)) for _ in layers)
    profile = Profile(LayerGraph.chain(layers), {"fast": costs, "slow": costs}, (1000.0,))
    cluster = Cluster((Node("a", (DeviceType("fast", 24e9), DeviceType("slow", 12e9)), Link(1e10)),))
    here = Overview.open(root)
    table = pd.DataFrame({"layer": ["conv0"], "milliseconds": [1.5]})
    return [table, profile, cluster, partition(profile, cluster), here.loop, here.notebooks, here.runs, here.thumbnails]


def cells(root):
    """A notebook with all that comes out of cells."""
    new_output = nbformat.v4.new_output
    outputs = [new_output("stream", name="stdout", text="profile of a network: kept\n"), *map(displayed, values(root))]
    outputs.append(new_output("display_data", {"application/vnd.plotly.v1+json": {}, "image/png": PNG}))
    outputs.append(new_output("display_data", {"application/vnd.plotly.v1+json": {}}))
    outputs.append(new_output("error", ename="E", evalue="e", traceback=["\x1b[31mE: e\x1b[0m"]))
    text = "It is **414** `samples/s`. And [more](03_profile.ipynb).\n\n" + TABLE
    answer = new_output("display_data", {"text/markdown": text})
    markdown = nbformat.v4.new_markdown_cell
    yield markdown("# 05 · Does it?\n\n[next](06_launch.ipynb)\n\n| a | b |\n|---|---|\n| 1 | 2 |")
    yield nbformat.v4.new_code_cell("value  # and a line that is longer than any page is wide " * 4, outputs=outputs)
    yield markdown("## Result")
    yield nbformat.v4.new_code_cell("display(answer)", outputs=[answer])


TABLE = f"| planner | {'time per minibatch, predicted | ' * 7}\n{'|---' * 8}|\n| model-parallel {'| 20.2 ms ' * 7}|"
TABLE += f"\n| `local-sgd:every=4` {'| 20.2 ms ' * 7}|"
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The page of figures and a notebook's, with everything that can be on them."""
    root = tmp_path_factory.mktemp("pages")
    job = NotebookJob.prepare(out=root / "figures", notebooks=None, data=None, parameters={})
    job.out.mkdir()
    job.copies.mkdir(parents=True)
    nbformat.write(nbformat.v4.new_notebook(cells=list(cells(root))), job.copy("06_launch"))
    job.report("06_launch").write_text('{"warning": "a busy machine"}\n')
    (job.out / "timeline.csv").write_text("run,seconds\n" + "pipeline,1\n" * 60)
    Image.new("RGB", (760, 400), "white").save(job.out / "timeline.png")
    provenance = {"digest": "abc", "doubts": ["a noisy profile"], "runs": [{"run": "r"}], "settings": {"seed": 7}}
    write_json(job.out / "timeline.json", {"title": "Timeline", "commit": "123+", "provenance": provenance})
    return [write_page(job), job.out / "notebooks" / "06_launch.html"]


@pytest.mark.parametrize(("scheme", "width"), [("light", 480), ("dark", 1280)])
def test_no_page_of_a_batch_violates_wcag_2_1_aa(chromium, pages, scheme, width):
    context = chromium.new_context(color_scheme=scheme, viewport={"width": width, "height": 900}, bypass_csp=True)
    context.set_default_timeout(1000 * ENOUGH)
    try:
        page = context.new_page()
        told, seen = [], set()
        for path in pages:
            page.goto(Path(path).as_uri())
            page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
            found = axe_core.Axe().run(page, options=RULES).response
            seen |= {rule["id"] for rule in found["passes"]}
            told += [
                f"{path.name}: {violation['id']}: {violation['help']}: {node['html'][:200]} {node['failureSummary']}"
                for violation in found["violations"]
                for node in violation["nodes"]
            ]
        assert {"color-contrast", "image-alt", "link-name", "document-title", "html-has-lang"} <= seen, "it saw them"
        assert not told, "\n".join(told)
    finally:
        context.close()
