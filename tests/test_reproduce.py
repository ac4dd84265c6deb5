"""The driver: order, names, failures told with their cell, nothing left by a kill, nothing done twice when asked."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest

from sparsepipe.cluster import Link
from sparsepipe.errors import InputError, RunFailed
from sparsepipe.reproduce import NOTEBOOKS, driver, reproduce
from sparsepipe.reproduce.loopback import loopback_link


@pytest.fixture
def few(tmp_path, monkeypatch):
    """Three small notebooks instead of ours: the third starts from the first."""
    monkeypatch.setattr(driver, "NOTEBOOKS", {"a": (), "b": (), "c": ("a",)})
    monkeypatch.setattr(driver, "ALONE", frozenset({"a"}))
    folder = tmp_path / "notebooks"
    folder.mkdir()

    def write(name, *sources):
        found = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in sources])
        found.cells[0].metadata["tags"] = ["parameters"]
        found.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
        nbformat.write(found, folder / f"{name}.ipynb")

    for name in "abc":
        write(name, "figures = ''\nnumber = 1")
    write.folder = folder
    return write


def run(few, tmp_path, *names, **options):
    return reproduce(list(names) or None, out=tmp_path / "figures", notebooks=few.folder, **options)


WRITE = (
    "class place:\n    export = staticmethod(lambda name: (Path(figures) / f'{name}.csv').write_text(str(number)))\n"
)


@pytest.mark.slow
def test_runs_all_in_order_and_again_only_what_changed(few, tmp_path, capsys):
    few(
        "a",
        "figures = ''\nnumber = 1",
        "from pathlib import Path\nPath(figures).mkdir()",
        WRITE + 'place.export("first")',
    )
    written = run(few, tmp_path, parameters={"number": 7}, jobs=2)
    assert [path.name for path in written] == ["first.csv"]
    assert written[0].read_text() == "7"
    told = capsys.readouterr().err.splitlines()
    assert told[0].startswith("a: ") and {line[0] for line in told[1:3]} == {"b", "c"}
    assert "3 of 3 notebooks" in told[-1] and "figures in" in told[-1]
    few("b", "figures = ''\nnumber = 2", "1 + 1")
    run(few, tmp_path, only_changed=True, parameters={"number": 7})
    told = capsys.readouterr().err
    assert "a: unchanged" in told and "c: unchanged" in told and "b: unchanged" not in told
    written[0].unlink()
    assert not driver._Job.prepare(
        out=tmp_path / "figures", notebooks=few.folder, data=None, parameters={"number": 7}
    ).is_done("a")


@pytest.mark.slow
def test_a_failure_names_notebook_cell_and_error_and_the_others_go_on(few, tmp_path):
    few("a", "figures = ''\nnumber = 1", "1 + 1", "raise ValueError('no such\\nthing')")
    with pytest.raises(RunFailed) as caught:
        run(few, tmp_path)
    text = str(caught.value)
    assert "a.ipynb: cell 3: ValueError: no such thing" in text
    assert "c.ipynb: not run, as a failed" in text
    assert "\n" not in text
    assert (tmp_path / "runs" / "notebooks" / "b.done.json").exists()
    assert not (tmp_path / "runs" / "notebooks" / "a.done.json").exists()


def test_what_measures_runs_alone():
    waves = driver._waves(list(NOTEBOOKS))
    first = [["01_data"], ["02_profile"], ["03_layer_graph", "04_partition"], ["05_launch"], ["06_figures"]]
    alone = [["07_learning"], ["08_segmentation"]]
    alone += [[f"figures/{name}"] for name in ("4_accuracy", "3_sparse_dense", "1_devices")]
    last = [f"figures/{name}" for name in ("5_prediction", "2_mixed_devices", "6_bytes_memory")]
    assert waves == [*first, *alone, last, ["figures/7_compression"]]


@pytest.mark.parametrize(
    ("names", "out", "expected"),
    [
        (["09_nothing"], "figures", "no notebook or figure '09_nothing', expected one of 01_data"),
        ([], "file", "is a file"),
    ],
)
def test_bad_input_is_named(tmp_path, names, out, expected):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=expected):
        reproduce(names, out=tmp_path / out)


def test_a_folder_without_notebooks_is_named(tmp_path):
    with pytest.raises(InputError, match=r"no 01_data.ipynb"):
        reproduce(out=tmp_path / "figures", notebooks=tmp_path)


def test_figures_are_found_by_name():
    job = driver._Job.prepare(out="figures", notebooks=None, data=None, parameters={})
    assert job.chosen(["throughput", "01_data", "accuracy"]) == ["01_data", "06_figures"]
    assert job.exports["06_figures"] == ("throughput", "accuracy")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "background"),
    [(signal.SIGINT, False), (signal.SIGTERM, False), (signal.SIGKILL, False), (signal.SIGKILL, True)],
)
def test_nothing_is_left_behind_by_a_kill(few, tmp_path, how, background):
    """Nor where a shell script put it in the background, which makes it ignore SIGINT."""
    few(
        "a",
        "figures = ''\nnumber = 1",
        f"open({str(tmp_path / 'started')!r}, 'w').close()",
        "import time; time.sleep(600)",
    )
    code = (
        "import pathlib; from sparsepipe.reproduce import driver; driver.NOTEBOOKS = {'a': ()}; "
        f"driver.reproduce(out={str(tmp_path / 'figures')!r}, notebooks=pathlib.Path({str(few.folder)!r}))"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent)}
    command = ["sh", "-c", "trap '' INT; exec \"$@\"" if background else 'exec "$@"', "sh", sys.executable, "-c", code]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    for _ in range(600):
        if (tmp_path / "started").exists():
            break
        assert process.poll() is None
        time.sleep(0.1)
    own = descendants(process.pid)
    assert len(own) >= 2  # papermill's process and the kernel
    process.send_signal(how)
    process.wait(30)
    for _ in range(300):
        if not any(Path(f"/proc/{pid}").exists() for pid in own):
            return
        time.sleep(0.1)
    raise AssertionError([Path(f"/proc/{pid}/cmdline").read_bytes() for pid in own if Path(f"/proc/{pid}").exists()])


def descendants(pid: int) -> list[int]:
    """Processes below `pid`, as Linux tells them."""
    below = [int(child) for path in Path(f"/proc/{pid}/task").glob("*/children") for child in path.read_text().split()]
    return below + [deeper for child in below for deeper in descendants(child)]


def test_loopback_is_measured():
    link = loopback_link()
    assert isinstance(link, Link)
    assert 1e6 < link.bandwidth < 1e13 and 0 < link.latency < 0.1
