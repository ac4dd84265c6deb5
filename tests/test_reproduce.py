"""The driver: order, names, failures told with their cell, nothing left by a kill, nothing done twice when asked."""

import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest
from coded import mentions, raises
from processes import ENOUGH, until

from sparsepipe import plots
from sparsepipe.errors import InputError, RunFailed
from sparsepipe.launching.probes.measure import loopback_link
from sparsepipe.planning import partition
from sparsepipe.profiling import profile_model
from sparsepipe.records import Origin, RunRecord
from sparsepipe.records.campaigns import new_campaign
from sparsepipe.runtime.config import RunConfig
from sparsepipe.study import NOTEBOOKS, catalogue, driver, reproduce, workplace
from sparsepipe.study.cached_runs import campaign_of, kept_campaign, print_epoch
from sparsepipe.study.contention import averaging_link
from sparsepipe.study.notebook_job import NotebookJob, NotebookKernels, Outcome
from sparsepipe.study.workplace import Workplace
from sparsepipe.util.derived import digest
from sparsepipe.util.io.files import read_json
from sparsepipe.values.cluster import Cluster, Link
from sparsepipe.values.graph import Layer, LayerGraph
from sparsepipe.values.plan import Plan, Stage
from sparsepipe.values.profile import CostSample, LayerCost, Profile

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture
def few(tmp_path, monkeypatch):
    """Three small notebooks instead of ours: the third starts from the first."""
    monkeypatch.setattr(catalogue, "NOTEBOOKS", {"a": (), "b": (), "c": ("a",)})
    monkeypatch.setattr(catalogue, "ALONE", frozenset({"a"}))
    folder = tmp_path / "notebooks"
    folder.mkdir()

    def write(name, *sources):
        new = {True: nbformat.v4.new_markdown_cell, False: nbformat.v4.new_code_cell}
        found = nbformat.v4.new_notebook(cells=[new[text.startswith("## ")](text) for text in sources])
        found.cells[0].metadata["tags"] = ["parameters"]
        found.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
        nbformat.write(found, folder / f"{name}.ipynb")

    for name in "abc":
        write(name, "figures = ''\nnumber = 1")
    write.folder = folder
    return write


def run(few, tmp_path, *names, **options):
    return reproduce(list(names) or None, out=tmp_path / "figures", notebooks=few.folder, **options)


WRITE = """class place:
    @staticmethod
    def export(name):
        for suffix in ("csv", "json", "pdf", "svg", "png"):
            (Path(figures) / f"{name}.{suffix}").write_text(str(number))
"""


@pytest.mark.slow
def test_runs_all_in_order_and_again_only_what_changed(few, tmp_path, capsys):
    few(
        "a",
        "figures = ''\nnumber = 1",
        "from pathlib import Path\nPath(figures).mkdir()",
        WRITE + 'place.export("first")',
        "## Result",
        "from IPython.display import Markdown, display\ndisplay(Markdown(f'It is **{number}**. Or more.'))",
    )
    written = run(few, tmp_path, parameters={"number": 7}, jobs=2)
    assert {path.name for path in written} == {f"first.{suffix}" for suffix in ("csv", "json", "pdf", "svg", "png")}
    assert written[0].read_text() == "7"
    told = capsys.readouterr().err.splitlines()
    assert re.match(r"\[1/3\] a: begins, about 60 s; \d+:\d\d so far", told[0])
    ended = [line for line in told if re.search(r": [\d.]+ s$", line)]
    assert ended[0].startswith("[1/3] a") and {line[:7] for line in ended[1:]} == {"[2/3] b", "[3/3] c"}
    assert "3 of 3 notebooks" in told[-2] and "figures in" in told[-2] and told[-1] == "a: It is 7."
    page = (tmp_path / "figures" / "index.html").read_text()
    assert page.count("<section") == 3 and 'href="first.csv"' in page and "<strong>7</strong>" in page
    assert "It is" in (tmp_path / "figures" / "notebooks" / "a.html").read_text()
    few("b", "figures = ''\nnumber = 2", "1 + 1")
    run(few, tmp_path, only_changed=True, parameters={"number": 7})
    told = capsys.readouterr().err
    assert "a: unchanged" in told and "c: unchanged" in told and "b: unchanged" not in told
    assert not re.search("begins, about 60 s", told)  # as long as last time
    written[0].unlink()
    assert not NotebookJob.prepare(
        out=tmp_path / "figures", notebooks=few.folder, data=None, parameters={"number": 7}
    ).is_done("a")


ASKED = """import atexit, json, os, warnings
from pathlib import Path
import sparsepipe.values.stragglers as sizes
told = [os.getppid(), os.environ["TOLD"], hasattr(sizes, "mark")]
sizes.mark = True
warnings.warn("told to the reader")
atexit.register(lambda: Path("ended-" + os.environ["TOLD"]).touch())
os.write(2, b"of the kernel")
Path("told-" + os.environ["TOLD"]).write_text(json.dumps(told))"""


@pytest.mark.slow
def test_notebooks_begin_with_their_environment_and_with_nothing_that_others_did(few, tmp_path):
    few("a", "figures = ''", ASKED)
    few("b", "figures = ''", "import os; os._exit(3)")
    kernels = NotebookKernels()

    def ended(name, told):
        return kernels.execute(
            few.folder / f"{name}.ipynb",
            tmp_path / f"{told}.ipynb",
            parameters={},
            folder=tmp_path,
            environment={"TOLD": told},
            log=tmp_path / f"{told}.log",
        )

    try:
        for told in ("1", "2"):
            assert ended("a", told) == {}
            assert read_json(tmp_path / f"told-{told}") == [os.getpid(), told, False]
            assert (tmp_path / f"ended-{told}").exists(), "it ended as processes do"
            assert "of the kernel" in (tmp_path / f"{told}.log").read_text()
        assert mentions((tmp_path / "2.ipynb").read_text(), "UserWarning")
        assert "last cell" in ended("b", "3")["error"]
        assert ended("a", "4") == {}, "a kernel that died takes nobody with it"
    finally:
        kernels.end()
    assert "error" in ended("a", "5"), "no cell begins in a batch that was ended"
    assert not (tmp_path / "told-5").exists()


@pytest.mark.slow
def test_a_batch_tells_every_notebook_what_a_paper_asks_of_figures(few, tmp_path, capsys):
    """A paper's width, font and missing titles could be had for one figure at a time, in a cell of one's own."""
    few(
        "a",
        "figures = ''\nroot = ''\ndata = ''",
        "from sparsepipe.study.workplace import Workplace",
        "print(Workplace.open(root, figures=figures, data='digits').paper)",
    )
    paper = plots.Paper(3.5, title=False)
    run(few, tmp_path, "a", paper=paper)
    executed = nbformat.read(tmp_path / "runs" / "notebooks" / "a.ipynb", as_version=4)
    assert executed.cells[-1].outputs[0].text.strip() == str(paper)
    capsys.readouterr()
    run(few, tmp_path, "a", resume=True, paper=paper)
    assert "begins" not in capsys.readouterr().err
    run(few, tmp_path, "a", resume=True)  # another size: nothing of it is done
    assert "begins" in capsys.readouterr().err


@pytest.mark.slow
def test_a_failure_names_notebook_cell_and_error_and_the_others_go_on(few, tmp_path, capsys):
    few("a", "figures = ''\nnumber = 1", "1 + 1", "raise ValueError('no such\\nthing')")
    with pytest.raises(RunFailed) as caught:
        run(few, tmp_path)
    text = str(caught.value)
    assert mentions(text, "a.ipynb", "cell 3", "ValueError")
    assert mentions(text, "c.ipynb")
    assert "\n" not in text
    assert (tmp_path / "runs" / "notebooks" / "b.done.json").exists()
    assert not (tmp_path / "runs" / "notebooks" / "a.done.json").exists()
    few("a", "figures = ''\nnumber = 1", "1 + 1")
    run(few, tmp_path, resume=True)
    told = capsys.readouterr().err
    assert mentions(told, "2/3") and "] a: begins" in told and "] c: begins" in told
    run(few, tmp_path, resume=True)
    assert "begins" not in capsys.readouterr().err
    with raises("notebooks.parameter_unknown", "figures, number", parameter="numbr"):
        run(few, tmp_path, parameters={"numbr": 2})
    few("b", "figures = ''\nown = 2")
    others = {"number": 2, "own": 3}  # other parameters: nothing of it is done
    asked = {"out": tmp_path / "figures", "notebooks": few.folder, "data": None}
    assert all(NotebookJob.prepare(**asked, parameters={}).has_ended_well(name) for name in "abc")
    assert not any(NotebookJob.prepare(**asked, parameters=others).has_ended_well(name) for name in "abc")
    with raises("notebooks.parameter_unused", "a has no", "own", "b"):
        run(few, tmp_path, "a", parameters={"own": 3})
    with raises("notebooks.parameter_unused", "none of these notebooks has a", parameter="own"):
        run(few, tmp_path, "a", "c", parameters={"number": 2, "own": 3})
    asked["parameters"] = {"own": 3}  # which a and c have not: they are done as they are
    assert [name for name in "abc" if NotebookJob.prepare(**asked).has_ended_well(name)] == ["a", "c"]


@pytest.mark.slow
def test_a_batch_sets_parameters_of_the_open_cell_and_of_the_collapsed_one(few, tmp_path):
    few("a", "figures = ''", "width = 1", "print(f'{width} {depth}')")
    notebook = nbformat.read(few.folder / "a.ipynb", as_version=4)
    notebook.cells.insert(0, nbformat.v4.new_code_cell("depth = 1", metadata={"tags": ["settings"]}))
    notebook.cells[2].source, notebook.cells[1].source = "", "figures = ''\nwidth = 1"
    nbformat.write(notebook, few.folder / "a.ipynb")
    assert catalogue.parameter_names(few.folder / "a.ipynb") == ("depth", "figures", "width")
    run(few, tmp_path, "a", parameters={"width": 5, "depth": 7})
    executed = nbformat.read(tmp_path / "runs" / "notebooks" / "a.ipynb", as_version=4)
    assert executed.cells[-1].outputs[0].text == "5 7\n"


@pytest.mark.parametrize("jobs", [1, 2])
def test_what_shows_the_others_is_made_again_after_any_of_them(few, tmp_path, monkeypatch, jobs):
    """00_start was "unchanged" after a batch that had made other runs and figures."""
    monkeypatch.setattr(catalogue, "NOTEBOOKS", {"a": (), "b": (), "c": ()})
    monkeypatch.setattr(catalogue, "LAST", "c")
    monkeypatch.setattr(catalogue, "USUAL_SECONDS", {"c": 1.0})
    ran: list[str] = []
    monkeypatch.setattr(NotebookJob, "run", lambda self, name, **_: ran.append(name) or Outcome(0.0))
    for changed, expected in (("b", ["b", "c"]), ("", [])):
        ran.clear()
        monkeypatch.setattr(NotebookJob, "is_done", lambda self, name, changed=changed: name != changed)
        run(few, tmp_path, only_changed=True, jobs=jobs)
        assert ran == expected


class TestMinkowskiEngine:
    """Notebooks that use it come last while it is being built, and run without it if it cannot be."""

    @pytest.fixture
    def ran(self, few, tmp_path, monkeypatch):
        few("a", "figures = ''\nnumber = 1", "engine('minkowski')")
        few("b", "figures = ''\nengine = 'native'")
        monkeypatch.setattr(driver, "_BUILD_LOCK", tmp_path / "build.lock")
        ran: list[str] = []
        monkeypatch.setattr(NotebookJob, "run", lambda self, name, **_: ran.append(name) or Outcome(0.0))
        return ran

    @pytest.mark.parametrize("installed", [True, False])
    def test_it_is_waited_for_and_what_starts_from_its_notebooks_too(
        self, few, tmp_path, monkeypatch, capsys, ran, installed
    ):
        holder = (tmp_path / "build.lock").open("w")
        fcntl.flock(holder, fcntl.LOCK_EX)
        monkeypatch.setattr(driver, "has_minkowski", lambda: installed)
        batch = threading.Thread(target=run, args=(few, tmp_path))
        batch.start()
        until(lambda: "waiting for" in capsys.readouterr().err, "the line that says so")
        assert ran == ["b"], "c starts from a"
        holder.close()
        batch.join()
        assert ran == ["b", "a", "c"]
        assert ("MinkowskiEngine is built" in capsys.readouterr().err) == installed

    @pytest.mark.parametrize("lock", [True, False])
    def test_nothing_waits_once_it_is_built_or_if_it_never_was(self, few, tmp_path, monkeypatch, capsys, ran, lock):
        if lock:
            (tmp_path / "build.lock").touch()
        monkeypatch.setattr(driver, "has_minkowski", lambda: lock)
        run(few, tmp_path)
        assert ran == ["a", "b", "c"]
        assert ("not installed" in capsys.readouterr().err) != lock

    def test_a_notebook_uses_it_by_its_code_or_by_its_parameter(self, few, tmp_path, ran):
        def users(**parameters):
            job = NotebookJob.prepare(out=tmp_path, notebooks=few.folder, data=None, parameters=parameters)
            return [name for name in catalogue.NOTEBOOKS if job.uses_minkowski(name)]

        assert users() == ["a"] and users(engine="minkowski") == ["a", "b"]
        ours = [path for path in (REPOSITORY / "notebooks").rglob("*.ipynb") if catalogue.uses_minkowski(path)]
        assert {"07_learning", "13_own_sparse_modules"} <= {path.stem for path in ours}


def test_what_measures_runs_alone():
    waves = catalogue.waves(list(NOTEBOOKS))
    first = [["01_pipelines", "02_data"], ["03_profile"], ["04_layer_graph", "05_partition"], ["06_launch"]]
    alone = [["07_learning"], ["08_segmentation"], ["09_your_own_network"], ["10_waiting"], ["11_moving"], ["12_sizes"]]
    alone += [["13_own_sparse_modules"], ["14_one_scene_over_devices"]]
    alone += [[f"figures/{name}"] for name in ("4_accuracy", "3_sparse_dense", "1_devices")]
    last = [f"figures/{name}" for name in ("5_prediction", "2_mixed_devices", "6_bytes_memory")]
    assert waves == [
        *first,
        *alone,
        last,
        ["figures/7_compression"],
        ["figures/8_waiting"],
        ["figures/9_interference"],
        ["figures/10_dense"],
        ["figures/11_held_against_others", "figures/12_gaps"],
        ["figures/13_interference_runs"],
        ["00_start"],
    ]


@pytest.mark.parametrize(
    ("names", "out", "error"),
    [
        (["09_nothing"], "figures", ("notebooks.unknown", "09_nothing", "02_data")),
        ([], "file", ("out.is_file",)),
    ],
)
def test_bad_input_is_named(tmp_path, names, out, error):
    (tmp_path / "file").write_text("")
    with raises(*error):
        reproduce(names, out=tmp_path / out)


def test_a_folder_without_notebooks_is_named(tmp_path):
    with raises("notebooks.missing", "01_pipelines"):
        reproduce(out=tmp_path / "figures", notebooks=tmp_path)


@pytest.mark.parametrize(
    ("data", "error"),
    [("modelnet11", ("dataset.unknown", "modelnet11")), ("no/such", ("dataset.not_found", "no/such"))],
)
def test_data_that_are_not_there_are_told_before_a_notebook_begins(data, error):
    """They were told of in a cell, with exit code 1, after a kernel had started."""
    with raises(*error):
        NotebookJob.prepare(out="figures", notebooks=None, data=data, parameters={})


def test_figures_are_found_by_name():
    job = NotebookJob.prepare(out="figures", notebooks=None, data=None, parameters={})
    assert job.chosen(["throughput", "02_data", "accuracy"]) == ["02_data", "06_launch"]
    assert job.chosen(["12_gaps", "figures/4_accuracy"]) == ["figures/4_accuracy", "figures/12_gaps"]
    assert len({Path(name).name for name in NOTEBOOKS} - {name for own in job.exports.values() for name in own}) == len(
        NOTEBOOKS
    )
    assert job.exports["06_launch"] == ("throughput", "accuracy", "timeline")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "background", "jobs"),
    [(signal.SIGINT, False, 1), (signal.SIGINT, False, 2), (signal.SIGKILL, True, 1)],
)
def test_nothing_is_left_behind_by_a_kill(few, tmp_path, how, background, jobs):
    """Nor where a shell script put it in the background, which makes it ignore SIGINT, by which notebooks end.

    So one that is killed there stands for one that is killed in the foreground.
    """
    few(
        "a",
        "figures = ''\nnumber = 1",
        f"open({str(tmp_path / 'started')!r}, 'w').close()",
        "import time; time.sleep(600)",
    )
    code = (
        "import pathlib; from sparsepipe.study import catalogue, reproduce; "
        "catalogue.NOTEBOOKS = {'a': (), 'b': ()}; "
        f"reproduce(out={str(tmp_path / 'figures')!r}, notebooks=pathlib.Path({str(few.folder)!r}), jobs={jobs})"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent)}
    command = ["sh", "-c", "trap '' INT; exec \"$@\"" if background else 'exec "$@"', "sh", sys.executable, "-c", code]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    until(lambda: (tmp_path / "started").exists() or process.poll() is not None, "the kernel is at work")
    assert process.poll() is None
    own = descendants(process.pid)
    assert own  # the kernel
    process.send_signal(how)
    process.wait(ENOUGH)
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in own), f"the end of {own}")


def descendants(pid: int) -> list[int]:
    """Processes below `pid`, as Linux tells them."""
    below = [int(child) for path in Path(f"/proc/{pid}/task").glob("*/children") for child in path.read_text().split()]
    return below + [deeper for child in below for deeper in descendants(child)]


REAL = """from pathlib import Path
import pandas as pd
import plotly.graph_objects as go
from sparsepipe.records.provenance import Provenance
from sparsepipe.study.workplace import Workplace
place = Workplace(Path(root), Path(figures), "digits")"""
EXPORT = """known = Provenance().with_warnings("the layers' sum is 0.506 x a whole step, expected 0.90; again")
place.export("first", go.Figure(layout={"width": 300, "height": 200}), pd.DataFrame({"x": [1]}), known);"""


@pytest.mark.slow
def test_a_batch_that_draws_no_pictures_says_so_at_its_end_and_draws_them_next_time(few, tmp_path, monkeypatch, capsys):
    """It ended with "1 of 1 notebooks" and code 0; `--only-changed` then said "unchanged"."""
    few("a", "figures = ''\nroot = ''", REAL, EXPORT)
    browser = tmp_path / "browser"
    browser.write_text("#!/bin/sh\nexit 1\n")
    browser.chmod(0o755)
    real = plots.browser()
    monkeypatch.setenv("BROWSER_PATH", str(browser))
    with raises("notebooks.failed", "1 of 1 figures have no pictures", "the Chromium", "browser cannot be used"):
        run(few, tmp_path, "a")
    told = capsys.readouterr().err
    assert mentions(told, "0.506 ×") and mentions(told, 1, "1 notebooks")
    asked = {"out": tmp_path / "figures", "notebooks": few.folder, "data": None, "parameters": {}}
    assert not NotebookJob.prepare(**asked).is_done("a")
    assert NotebookJob.prepare(**asked, pictures=False).is_done("a")
    if real is None:
        return
    monkeypatch.setenv("BROWSER_PATH", real)
    written = run(few, tmp_path, "a", only_changed=True)
    assert {path.suffix for path in written} == {".csv", ".json", ".pdf", ".svg", ".png"}
    assert NotebookJob.prepare(**asked).is_done("a")


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_to_fails_the_batch(few, tmp_path):
    """The notebook said "not exported", and went on to a good end."""
    few(
        "a",
        "figures = ''\nroot = ''",
        REAL,
        "place = Workplace(place.root, Path('/proc/none'), 'digits')",
        EXPORT,
    )
    with raises("notebooks.failed", "a.ipynb: cell 4: InputError: /proc/none: cannot be written to"):
        run(few, tmp_path, "a", pictures=False)


def profile(ratio=1.0):
    graph = LayerGraph.from_ids([Layer("a", "a", 4), Layer("b", "b", 4)], [("a", "b")])
    costs = (LayerCost((CostSample(10, 0.1, 0.2, 3),)),) * 2
    return Profile(graph, {"cpu": costs}, (10.0,), {"source": "measured", "layers_over_whole": ratio}, {"cpu": 1e-9})


def test_the_link_is_measured_once_for_a_profile_and_kept(tmp_path, monkeypatch, capsys):
    """Two executions of 05_partition on one profile gave 2 stages and 224 ms, then 3 stages and 240 ms."""
    place = Workplace(tmp_path, tmp_path / "figures", "digits")
    links = iter([Link(1e9, 1e-5), Link(2.5e8, 1e-4), Link(5e8, 1e-4)])
    monkeypatch.setattr(workplace, "local_link", lambda: next(links))
    first, second = (Cluster.uniform(3, device_type="cpu", link=place.link(profile())) for _ in range(2))
    told = capsys.readouterr().out.splitlines()
    assert first == second
    assert mentions(told[0], "1 GB/s", "10 µs", "work/clusters/loopback-")
    assert ", from work/clusters/loopback-" in told[1]
    plans = [partition(profile(), cluster, planner="optimal") for cluster in (first, second)]
    assert plans[0].to_json() | {"plan_seconds": 0} == plans[1].to_json() | {"plan_seconds": 0}
    assert plans[0].provenance["clusters"][0]["digest"] == first.digest
    assert place.link(profile(), force=True) == Link(2.5e8, 1e-4)
    assert place.link(profile(0.5)) == Link(5e8, 1e-4)  # another profile, another hour


BAD = [("voxel_size", "0.05"), ("batch_size", 2.5), ("seed", "a"), ("voxel_size", 0)]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_a_parameter_of_a_wrong_type_is_named(tmp_path, name, value):
    """`papermill -r voxel_size 0.05` ended in "TypeError: must be real number, not str"."""
    place = Workplace.open(tmp_path, data="digits")
    settings = {"voxel_size": 0.1, "batch_size": 4, "num_points": 64, "engine": "native", "threads": 1, "seed": 0}
    settings |= {name: value}
    assert not place.profile_path("minkvgg11bn-narrow", **settings).exists()
    with pytest.raises(InputError, match=f"{name.replace('_', '.')} (is )?{value!r}"):
        profile_model("minkvgg11bn-narrow", place.source, **settings)
    with pytest.raises(InputError, match=name):
        RunConfig("minkvgg11bn-narrow", place.source, **settings)


def test_a_count_of_devices_of_a_wrong_type_is_named(tmp_path):
    place = Workplace.open(tmp_path, data="digits")
    with raises("number.not_whole", "num_devices", "2"):
        place.beside("2")
    with raises("number.not_whole", "a", "device count of '2'"):
        Cluster.uniform("2")
    assert place.beside(1) == 0 and 0 <= place.beside(10_000) < 10_000


def test_synthetic_shapes_are_made_by_whole_numbers(tmp_path):
    for wrong in ({"seed": "a"}, {"shapes_per_class": 2.5}, {"shapes_per_class": 0}):
        with raises("number.not_whole", next(iter(wrong))):
            Workplace.open(tmp_path, **wrong)


def test_a_kept_profile_is_read_by_the_settings_it_was_measured_under(tmp_path, capsys):
    place = Workplace(tmp_path, tmp_path / "figures", "digits")
    settings = {"voxel_size": 0.1, "batch_size": 4, "num_points": 64, "engine": "native", "threads": 1, "seed": 0}
    path = place.profile_path("m", **settings)
    assert path == place.profile_path("m", **settings, beside=0)
    others = [{"voxel_size": 0.2}, {"seed": 1}, {"threads": 2}, {"beside": 1}]
    assert len({path, *(place.profile_path("m", **settings | other) for other in others)}) == 5
    profile(0.5).save(path)
    assert place.profile(path).digest == profile(0.5).digest
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith(f"profile of {path.stem}: work/profiles/m-")
    assert told[1].startswith("warning: ") and mentions(told[1], "0.500 x")
    with pytest.raises(InputError):
        place.profile(place.profile_path("other", **settings))


def kept(runs, name, *, campaign, config, beside=()):
    made = RunRecord.create(runs / f"{name}-001", PLAN, config.to_json(), Origin.here(campaign=campaign))
    made.write_status("finished")
    if beside:
        made.note_beside(*beside)
    return made


PLAN = Plan((Stage(("a",), (0,)),))


def test_a_campaign_is_taken_whole_or_not_at_all(tmp_path):
    """A pipeline trained now was held against one process of another day: "0.52 × one process"."""
    config, settings = RunConfig("m", "d"), ["these"]
    asked = dict.fromkeys(("x", "y"), (PLAN, config))
    old = f"m-20250101T000000-{digest(settings)}"
    assert kept_campaign(tmp_path, asked, settings) == (None, {})
    kept(tmp_path, "x", campaign=old, config=config)
    assert kept_campaign(tmp_path, asked, settings) == (None, {})  # y would be of another hour
    kept(tmp_path, "y", campaign=old, config=config)
    assert kept_campaign(tmp_path, asked, settings)[0] == old
    assert kept_campaign(tmp_path, asked, ["others"]) == (None, {})
    assert kept_campaign(tmp_path, {name: (PLAN, replace(config, seed=1)) for name in asked}, settings) == (None, {})
    RunRecord.load(tmp_path / "y-001").note_beside("board-003")
    assert kept_campaign(tmp_path, asked, settings) == (None, {})
    now = new_campaign("m", settings)
    shutil.rmtree(tmp_path / "x-001")
    kept(tmp_path, "x", campaign=now, config=config)
    campaign, found = kept_campaign(tmp_path, asked, settings)
    assert campaign == now and list(found) == ["x"]  # it began this hour: the others can join


def test_a_campaign_says_which_of_its_runs_are_still_to_be_trained(tmp_path, capsys):
    config, plans = RunConfig("m", "d"), {"x": PLAN, "y": PLAN}
    campaign, records = campaign_of(tmp_path, plans, config, [profile()])
    assert records == {"x": None, "y": None} and campaign.startswith("m-2")
    assert f"campaign {campaign}: begins now" in capsys.readouterr().out
    kept(tmp_path, "m-y", campaign=campaign, config=config)
    again, records = campaign_of(tmp_path, plans, config, [profile()])
    assert again == campaign and list(records) == ["x", "y"]
    assert records["x"] is None and records["y"].name == "m-y-001"
    assert "from runs/m-y-001" in capsys.readouterr().out
    assert campaign_of(tmp_path, plans, config, [profile()], force=True)[1] == {"x": None, "y": None}
    assert campaign_of(tmp_path, plans, config, [profile(0.5)])[1] == {"x": None, "y": None}  # another profile


def test_an_epoch_is_told_in_a_line_and_a_step_is_not(capsys):
    print_epoch({"event": "step", "minibatch": 3})
    print_epoch({"event": "epoch", "epoch": 0, "samples_per_second": 12.3, "validation": {"accuracy": 0.456}})
    print_epoch({"event": "epoch", "epoch": 1, "samples_per_second": 12.3, "validation": None})
    told = capsys.readouterr().out.splitlines()
    assert told == ["  epoch 1: 12.3 samples/s, validation accuracy 45.6%", "  epoch 2: 12.3 samples/s"]


@pytest.mark.slow
def test_averaging_between_two_processes_is_measured():
    """Loopback promised data parallel twice what came: averaging takes processors' time on both sides, and adds."""
    link = averaging_link()
    assert 0 < link.bandwidth < 1e12 and 0 < link.latency < 1


def test_loopback_is_measured():
    link = loopback_link()
    assert isinstance(link, Link)
    assert 1e6 < link.bandwidth < 1e13 and 0 < link.latency < 0.1
