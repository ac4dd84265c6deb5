"""The page of figures and the lines that a batch says: what is read from executed notebooks, and how it is shown."""

import re
from html.parser import HTMLParser

import nbformat
import pytest
from coded import mentions

from sparsepipe.records.run_progress import RunProgress
from sparsepipe.study import NOTEBOOKS, catalogue
from sparsepipe.study.driver import Progress
from sparsepipe.study.executed import REPORT, Executed, first_sentence, report, run_rows
from sparsepipe.study.notebook_job import NotebookJob, show_exported
from sparsepipe.study.page import notebook_page, of_markdown, write_page
from sparsepipe.util.io.files import write_json

NAME = "<img src=x onerror=alert(1)>"
ANSWERS = [
    (
        "It trained at **414 samples/s**, 83% of it,\nand 1.67 × one. Time spent: 95%.",
        "It trained at 414 samples/s, 83% of it, and 1.67 × one.",
    ),
    ("Of all:\n\n- **one process**: 248\n- **two**: 381", "Of all: one process: 248; two: 381"),
    ("**Yes.** `net.py:build`, after 3 epochs:\n\n| a |\n|---|", "Yes. net.py:build, after 3 epochs."),
    ("The median of *shapes &#40;seed 0&#41;* has **188**. More.", "The median of shapes (seed 0) has 188."),
    ("- parts: 89.0% right\n- rooms: left out", "parts: 89.0% right; rooms: left out"),
    (
        "Losses differ by 8.6e-08 at most, and 2 * 3 * 4 of them.",
        "Losses differ by 8.6e-08 at most, and 2 * 3 * 4 of them.",
    ),
    ("| strategy |\n|---|\n| one process |\n\nIt trained at **67**. More.", "It trained at 67."),
    ("Factors are **1.12 &#40;RTX&#41;**. (Of one device.) More.", "Factors are 1.12 (RTX)."),
    ("**3 runs** are here: [05](05.ipynb) trains.", "3 runs are here: 05 trains."),
    ("", ""),
]


@pytest.mark.parametrize(("markdown", "sentence"), ANSWERS)
def test_an_answer_is_its_first_sentence(markdown, sentence):
    assert first_sentence(markdown) == sentence


class Tags(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))

    def all(self, tag):
        return [attributes for found, attributes in self.found if found == tag]


def executed(folder, name, *outputs, markdown="# 01 · Is it?"):
    cells = [nbformat.v4.new_markdown_cell(markdown), nbformat.v4.new_markdown_cell("## Result")]
    cells.append(nbformat.v4.new_code_cell("display(x)", outputs=list(outputs)))
    path = folder / f"{name}.ipynb"
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    return path


def test_a_result_ends_where_the_next_heading_begins(tmp_path):
    path = executed(tmp_path, "a", displayed(markdown="It is 414."))
    notebook = nbformat.read(path, as_version=4)
    notebook.cells[1].source = "What to see.\n\n## Result"
    notebook.cells.append(nbformat.v4.new_markdown_cell("## Try"))
    notebook.cells.append(nbformat.v4.new_code_cell("x", outputs=[displayed(markdown="No result.")]))
    nbformat.write(notebook, path)
    assert Executed.read("a", path).answer == "It is 414."


def test_the_head_of_an_executed_copy_shows_the_exported_figure(tmp_path):
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "stages.png").touch()
    head = "# 05 · Which?\n\n![stages](../figures/gallery/stages.webp) ![plans](../figures/gallery/plans.webp)"
    path = executed(tmp_path / "runs" / "notebooks", "05_partition", markdown=head)
    show_exported(path, tmp_path / "figures")
    shown = nbformat.read(path, as_version=4).cells[0].source
    assert shown == "# 05 · Which?\n\n![stages](../../figures/stages.png) ", "of plans there is no picture"


def displayed(**data):
    return nbformat.v4.new_output("display_data", {f"text/{kind}": text for kind, text in data.items()})


@pytest.fixture
def job(tmp_path):
    (tmp_path / "figures").mkdir()
    return NotebookJob.prepare(out=tmp_path / "figures", notebooks=None, data=None, parameters={})


def test_the_page_has_every_figure_with_all_that_belongs_to_it(job):
    executed(job.copies, "06_launch", displayed(markdown=f"It is {NAME}, **414**. And more."))
    job.report("06_launch").write_text('{"warning": "a busy machine"}\n{"warning": "of the figure"}\n')
    (job.out / "timeline.csv").write_text("run,seconds\n" + f"{NAME},1\n" * 60)
    for suffix in ("pdf", "svg", "png"):
        (job.out / f"timeline.{suffix}").write_bytes(b"")
    provenance = {"digest": "abc", "doubts": ["of the figure"], "runs": [{"run": NAME}], "settings": {"seed": 7}}
    facts = {"title": f"Timeline of {NAME} · doubtful: of the figure", "commit": "123+", "provenance": provenance}
    write_json(job.out / "timeline.json", facts)
    path = write_page(job)
    text = path.read_text()
    tags = Tags(text)
    assert path == job.out / "index.html" and len(tags.all("section")) == len(tags.all("li")) - 2 == 1
    assert [picture["src"] for picture in tags.all("img")] == ["timeline.png"] * 3  # it opens, is small, and is shown
    assert [source["srcset"] for source in tags.all("source")] == ["timeline.svg"] * 3  # on a dark page
    opening = text[text.index("opening") : text.index('thumbnails"')]
    assert "414." in opening and "And more" not in opening and tags.all("figure")[1]["id"] == "figure-timeline"
    links = {link["href"] for link in tags.all("a")}
    assert links >= {f"timeline.{suffix}" for suffix in ("pdf", "svg", "png", "csv", "json")}
    assert links >= {"notebooks/06_launch.html", "../runs/notebooks/06_launch.ipynb"}
    assert all((job.out / link).exists() for link in links if not link.startswith("#"))
    assert text.count("of the figure") == 1 and "a busy machine" in text and "not run to" in text
    assert len(tags.all("tr")) == 1 + 40 and "123+" in text and "seed = 7" in text
    # It runs nothing, and asks nobody.
    assert not tags.all("script") and not tags.all("link") and "default-src &#39;none&#39;" not in text
    (policy,) = (tag["content"] for tag in tags.all("meta") if tag.get("http-equiv"))
    assert policy.startswith("default-src 'none';")
    assert not [tag for _, tag in tags.found if any(name.startswith("on") for name in tag)]
    assert "http" not in "".join(str(tag) for name, tag in tags.found if name != "meta")


def test_a_warning_is_said_once_a_notebook_and_its_figures_refer_to_it(job):
    """Thirteen warnings of one notebook stood under each of its ten pictures."""
    executed(job.copies, "10_waiting")
    job.report("10_waiting").write_text('{"warning": "of the notebook"}\n')
    figures, runs = job.exports["10_waiting"], [f"run-{k}: it waited" for k in range(1, 6)]
    rest_on = [runs[:4], [runs[0], runs[2], runs[3], runs[4]], runs[4:], []]
    assert len(figures) >= len(rest_on)
    for figure, doubts in zip(figures, rest_on, strict=False):
        (job.out / f"{figure}.png").write_bytes(b"")
        warnings = [f"{text}; its throughput is unreliable" for text in doubts] + ["more of a run"]
        write_json(job.out / f"{figure}.json", {"provenance": {"doubts": doubts, "warnings": warnings}})
    text = re.sub("</?span[^>]*>", "", write_page(job).read_text())  # of names that stay in one line
    assert [text.count(run) for run in [*runs, "of the notebook"]] == [1] * 6
    assert re.findall(r'href="#10_waiting-warnings">(.*?) of this', text) == [
        "warnings 2 to 5",
        "warnings 2, 4 to 6",
        "warning 6",
    ]
    assert re.search('<details class="warnings"><summary>6 warnings</summary><ol id="10_waiting-warnings"><li>', text)
    assert text.count('id="10_waiting-warnings"') == 1 and text.count("more of a run</dd>") == len(rest_on)


def test_a_page_is_there_before_anything_ran_and_where_files_are_damaged(job):
    assert f"0 of {len(NOTEBOOKS)} notebooks" in write_page(job).read_text()
    (job.copies / "02_data.ipynb").parent.mkdir(parents=True)
    (job.copies / "02_data.ipynb").write_text("{")
    executed(job.copies, "04_layer_graph")
    (job.out / "cut_bytes.json").write_text("[]")
    (job.out / "cut_bytes.csv").write_text("")
    assert f"1 of {len(NOTEBOOKS)} notebooks" in write_page(job).read_text()


def test_the_page_goes_by_the_numbers(job):
    """It began with figure 4, as notebooks run in another order: those that train what others read come first."""
    walk = [name for name in NOTEBOOKS if "/" not in name and name != "00_start"]
    for name in NOTEBOOKS:
        executed(job.copies, name)
    sections = [section["id"] for section in Tags(write_page(job).read_text()).all("section")]
    assert sections[: len(walk) + 1] == ["00_start", *walk]
    numbers = [int(name.removeprefix("figures-").partition("_")[0]) for name in sections[len(walk) + 1 :]]
    assert numbers == sorted(numbers) and len(sections) == len(NOTEBOOKS)


def test_an_executed_notebook_shows_what_came_out_of_it(tmp_path):
    said = [nbformat.v4.new_output("stream", name="stdout", text=text) for text in ("one\n", f"{NAME}\n")]
    figure = nbformat.v4.new_output("display_data", {"application/vnd.plotly.v1+json": {}, "image/png": "aGk=\n"})
    error = nbformat.v4.new_output("error", ename="E", evalue="e", traceback=["\x1b[31mE: e\x1b[0m"])
    table = displayed(html="<table><tr><td><a href='figures/1_devices.ipynb'>7</a></td></tr></table>", plain="7")
    painted = displayed(html="<b style='color:#0072B2'>1</b>", plain="1")  # for a white page
    path = executed(
        tmp_path, "a", *said, figure, error, table, painted, markdown=f"# 01 · {NAME}?\n\n[next](03_profile.ipynb)"
    )
    text = notebook_page(Executed.read("figures/a", path), index="../../index.html")
    tags = Tags(text)
    assert "one\n&lt;img" in text and "E: e" in text and "\x1b" not in text
    assert [picture["src"] for picture in tags.all("img")] == ["data:image/png;base64,aGk="]
    assert {link["href"] for link in tags.all("a")} == {"../../index.html", "03_profile.html", "figures/1_devices.html"}
    assert len(tags.all("table")) == 1
    kinds = {each["class"] for each in tags.all("div") if "class" in each}
    assert kinds == {"shown", "plain", "painted"} and text.count('class="painted"') == 1


def test_a_cell_that_shows_a_panel_says_so_where_it_was_left_out(tmp_path):
    """ "Look closer" and "Try it" stood above code alone."""
    panel = nbformat.v4.new_code_cell("if not headless:\n    display(explorer.widget)")
    path = tmp_path / "a.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[panel, nbformat.v4.new_code_cell("x = 1")]), path)
    assert notebook_page(Executed.read("a", path), index="index.html").count("which JupyterLab shows") == 1


def test_markdown_of_a_notebook_runs_nothing():
    text = str(of_markdown(f"{NAME} [go](javascript:alert(1)) a &#40;b&#41; &#60;b&#62;\n\n| a |\n|---|\n| {NAME} |"))
    assert not Tags(text).all("img") and "(b)" in text and "&lt;b&gt;" in text
    assert "javascript:" not in text and len(Tags(text).all("table")) == 1


def test_a_run_says_how_far_it_is():
    progress = RunProgress()
    assert progress.take({"event": "epoch", "epoch": 0}) and progress.text == progress.epoch == "epoch 1"
    progress = RunProgress()
    assert progress.take({"event": "start", "epoch_minibatches": 32, "minibatches": 100})
    assert mentions(progress.text, "epoch 1", 4, "minibatch 0", 32)
    assert progress.take({"event": "step", "epoch": 1, "minibatch": 40})
    assert mentions(progress.text, "epoch 2", 4, "minibatch 9", 32)
    assert progress.take({"event": "epoch", "epoch": 1}) and mentions(progress.text, "epoch 2", 4, "minibatch 32", 32)
    assert not progress.take({"event": "summary"}) and not progress.take({"event": "step", "minibatch": None})


def test_a_batch_says_what_runs_n_of_n_its_step_and_the_time(tmp_path, monkeypatch, capsys):
    rows = tmp_path / "a.report.jsonl"
    monkeypatch.setenv(REPORT, str(rows))
    progress = Progress(["a", "b"], {"a": 100.0, "b": 20.0}, terminal=False)
    progress.begin("a", rows)
    progress.cell("a", "cell 7 of 16, The runs")
    report(run={"event": "start", "epoch_minibatches": 8, "minibatches": 32})
    report(run={"event": "epoch", "epoch": 2})
    assert len(run_rows(rows)) == 2
    told = progress.state()
    assert told.startswith("[1/2] a  0:0") and mentions(told, "2 min", "cell 7", 16, "epoch 3", 4)
    assert mentions(told, "2 min")
    progress.end("a", "12.3 s")
    assert progress.state() == ""
    progress.begin("b", tmp_path / "none")
    progress.close()
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("[1/2] a: begins, about 2 min; 0:0") and said[1] == "[1/2] a: 12.3 s"
    assert said[2].startswith("[2/2] b: begins, about 20 s; ") and mentions(said[2], "20 s")


def test_a_notebook_that_takes_longer_than_usual_is_not_about_to_end(tmp_path):
    """ "about 0 s to go" stood for five minutes."""
    progress = Progress(["a", "b"], {"a": 0.0, "b": 20.0}, terminal=True)
    progress.begin("a", tmp_path / "none")
    assert mentions(progress.state(), "over 20 s")
    progress.end("b", "left out")
    assert progress.state().endswith("longer than usual")
    progress.close()


def test_what_a_user_came_for_is_made_first():
    assert catalogue.USUAL_SECONDS.keys() == NOTEBOOKS.keys()
    main = ["01_pipelines", "02_data", "03_profile", "04_layer_graph", "05_partition", "06_launch"]
    assert list(NOTEBOOKS)[:6] == main
    assert sum(catalogue.USUAL_SECONDS[name] for name in main) < 300
