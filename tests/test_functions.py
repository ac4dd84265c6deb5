"""Functions of the user's own: imported as their file is now, MinkowskiEngine's among them."""

import inspect
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from coded import raises

from sparsepipe.data.examples import open_examples
from sparsepipe.errors import InputError
from sparsepipe.networks.losses import open_loss
from sparsepipe.networks.traced.building import build_module
from sparsepipe.records.sinks import open_sink
from sparsepipe.util.io.files import sha256
from sparsepipe.util.io.functions import UserFunction


def written(path: Path, text: str) -> UserFunction:
    path.write_text(text)
    return UserFunction.parse(f"{path}:build")


def test_a_file_that_is_written_anew_is_imported_anew(tmp_path):
    """A cell of a notebook writes it and is run again: the old network was profiled, and the new one trained."""
    path = tmp_path / "net.py"
    first = written(path, "def build(): return 1\n").load()
    second = written(path, "def build(): return 2\n").load()  # as long, within the second
    assert (first(), second()) == (1, 2)
    assert written(path, "def build(): return 1\n").load() is first
    assert not list(tmp_path.glob("__pycache__/*"))


def test_its_source_can_be_looked_at(tmp_path):
    function = written(tmp_path / "net.py", "def build():\n    return 'here'\n").load()
    assert "'here'" in inspect.getsource(function) and function.__module__.startswith("sparsepipe_user_net_")


@pytest.mark.skipif(find_spec("MinkowskiEngine") is None, reason="MinkowskiEngine is not installed")
def test_a_file_may_import_minkowski_engine_first(tmp_path):
    """It imports names that Python has removed: alone it fails."""
    path = tmp_path / "net.py"
    path.write_text("import MinkowskiEngine as ME\ndef build(): return ME.MinkowskiReLU()\n")
    code = f"from sparsepipe.util.io.functions import UserFunction as F; print(F.parse('{path}:build').load()())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("MinkowskiReLU()\n", "")


EXITS = "import sys\nif {0}: sys.exit('the end')\nclass Items:\n    def __len__(self): sys.exit('the end')\n"
EXITS += "    def __getitem__(self, index): return 0, 0\n"
EXITS += "def build(*given, **options): sys.exit('the end') if {1} else 0\ndef items(split): return Items()\n"


@pytest.mark.parametrize("when", ["during import", "as it is called"])
def test_code_that_exits_is_told_of_as_code_that_raises(tmp_path, when):
    """`sys.exit`, as of a script that reads its command line, ended the process that asked, without a word."""
    path = tmp_path / "net.py"
    path.write_text(EXITS.format(when == "during import", when == "as it is called"))
    calls = [
        lambda: build_module(f"{path}:build", {}, facts={}, seed=0),
        lambda: open_sink(f"{path}:build", tmp_path),
        lambda: open_loss(f"{path}:build", facts={})(torch.zeros(2, 3), torch.zeros(2), samples=2),
        lambda: len(open_examples(f"{path}:items", split="train")),
    ]
    for call in calls:
        with pytest.raises(InputError, match="SystemExit .*the end"):
            call()


def neighbours(folder):
    (folder / "parts_of_mine").mkdir(parents=True)
    (folder / "parts_of_mine" / "deep.py").write_text("f = 1\n")
    (folder / "blocks_of_mine.py").write_text("f = 1\n")
    return folder


@pytest.mark.parametrize(
    ("line", "late"),
    [
        ("from blocks_of_mine import f", False),
        ("from parts_of_mine.deep import f", False),
        ("from .blocks_of_mine import f", False),
        ("from .blocks_of_mine import f", True),
        ("from ..net_folder.parts_of_mine.deep import f", False),
    ],
)
def test_a_file_imports_its_neighbours_and_its_package(line, late, tmp_path):
    folder, before = neighbours(tmp_path / "net_folder"), list(sys.path)
    text = f"def build():\n    {line}\n    return f\n" if late else f"{line}\ndef build(): return f\n"
    assert written(folder / "net.py", text).load()() == 1
    assert sys.path == before and not list(folder.rglob("__pycache__"))


def test_a_neighbour_is_that_of_its_folder_as_it_is_now(tmp_path):
    """Two projects with a file of the same name each, and one that is written anew within the second."""
    text = "from blocks_of_mine import f\ndef build(): return f\n"
    first, second = (written(neighbours(tmp_path / name) / "net.py", text) for name in ("a", "b"))
    (tmp_path / "b" / "blocks_of_mine.py").write_text("f = 2\n")
    built = first.load()
    assert (built(), second.load()(), first.load()()) == (1, 2, 1)
    assert second.load() is second.load()
    (tmp_path / "b" / "blocks_of_mine.py").write_text("f = 3\n")
    assert (second.load()(), built()) == (3, 1)


@pytest.mark.parametrize(
    ("text", "inner", "expected"),
    [
        ("import torch, os", "net.py", []),
        ("from blocks_of_mine import f", "net.py", ["blocks_of_mine.py", "deeper_of_mine.py"]),
        ("def build():\n    import blocks_of_mine", "net.py", ["blocks_of_mine.py", "deeper_of_mine.py"]),
        ("import parts_of_mine.deep as deep", "net.py", ["parts_of_mine/deep.py"]),
        ("from parts_of_mine import deep", "net.py", ["parts_of_mine/deep.py"]),
        (
            "from . import blocks_of_mine",
            "net_folder/net.py",
            ["net_folder/__init__.py", "net_folder/blocks_of_mine.py"],
        ),
        ("import net, nothing_of_the_kind", "net.py", []),
        ("def build(:", "net.py", []),
    ],
)
def test_files_of_a_function_are_those_that_it_imports(text, inner, expected, tmp_path):
    folder = neighbours(tmp_path / "net_folder")
    (folder / "unused.py").write_text("f = 1\n")
    (folder / "deeper_of_mine.py").write_text("import net\n")
    if "/" in inner:
        (folder / "__init__.py").write_text("")
    else:
        (folder / "blocks_of_mine.py").write_text("import deeper_of_mine\n")
    function = written(folder / "net.py", text)
    files = function.files()
    assert list(files)[0] == inner and sorted(files) == sorted([inner, *expected])
    assert all(path == tmp_path / ("" if "/" in inner else "net_folder") / name for name, path in files.items())
    before = function.sha256()
    assert len(before) == 64 and (before == sha256(folder / "net.py")) == (not expected)
    for name in expected:
        files[name].write_text(f"{files[name].read_text()}\n# {name}\n")
        assert function.sha256() != before
        before = function.sha256()
    (folder / "unused.py").write_text("f = 2\n")
    assert function.sha256() == before


def test_the_hash_of_files_is_that_of_the_same_layout_elsewhere(tmp_path):
    """A host's copy has the same: in each folder, of a package or not, only what is imported."""
    for kind, text in (("plain", "from parts_of_mine import deep\n"), ("pack", "from .parts_of_mine import deep\n")):
        function = written(neighbours(tmp_path / kind) / "net.py", f"{text}def build(): return deep.f\n")
        files = function.files_for_hosts()
        for name, path in files.items():
            (tmp_path / "host" / kind / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, tmp_path / "host" / kind / name)
        there = UserFunction.parse(f"{tmp_path / 'host' / kind / next(iter(files))}:build")
        assert there.sha256() == function.sha256() and there.load()() == 1


def test_what_hosts_cannot_be_sent_is_refused(tmp_path, monkeypatch):
    folder = neighbours(tmp_path / "net_folder")
    function = written(folder / "net.py", "import blocks_of_mine\ndef build(): return 1\n")
    monkeypatch.setattr("sparsepipe.util.io.functions._MOST_BYTES", 10)
    with raises("function.too_large", size=sum(path.stat().st_size for path in function.files().values())):
        function.files_for_hosts()
    monkeypatch.undo()
    (folder / "blocks_of_mine.py").rename(tmp_path / "elsewhere.py")
    (folder / "blocks_of_mine.py").symlink_to(tmp_path / "elsewhere.py")
    with raises("function.outside", path=folder / "blocks_of_mine.py"):
        function.files_for_hosts()
    monkeypatch.setattr("sparsepipe.util.io.functions._MOST_FILES", 1)
    with raises("function.too_many_files", root=folder):
        function.files()


def test_installed_packages_are_no_neighbours():
    for reference in ("torch.nn:Linear", "collections:OrderedDict", "sparsepipe.study.digit_images:digits"):
        function = UserFunction.parse(reference)
        assert list(function.files().values()) == [function.file()] and function.sha256() == sha256(function.file())


@pytest.mark.parametrize(
    ("line", "remedy", "late"),
    [
        ("import blocks_of_mine", "; blocks_of_mine lies next to it: put {folder} on PYTHONPATH", True),
        ("from parts_of_mine.deep import f", "; parts_of_mine lies next to it: put {folder} on PYTHONPATH", True),
        ("import nothing_of_the_kind", "(No module named 'nothing_of_the_kind')", False),
        ("import nothing_of_the_kind", "(No module named 'nothing_of_the_kind')", True),
    ],
)
def test_a_neighbour_that_is_imported_late_is_told_how(line, remedy, late, tmp_path):
    folder = neighbours(tmp_path / "net_folder")
    text = f"def build():\n    {line}\n" if late else f"{line}\ndef build(): ...\n"
    function = written(folder / "net.py", text)
    with pytest.raises(InputError) as caught:
        build_module(str(function), {}, {}, seed=0)
    assert str(caught.value).endswith(remedy.format(folder=folder, parent=tmp_path))
    assert "\n" not in str(caught.value)


def test_the_remedy_for_a_neighbour_helps(tmp_path, monkeypatch):
    (tmp_path / "neighbour_of_net.py").write_text("answer = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    function = written(tmp_path / "net.py", "from neighbour_of_net import answer\ndef build(): return answer\n").load()
    assert function() == 3


def test_a_module_is_found_by_its_old_name():
    function = UserFunction.parse("sparsepipe.reproduce.digit_images:digits")
    assert str(function) == "sparsepipe.study.digit_images:digits" and function.file().is_file()
    lines = """
import sparsepipe as sp
from sparsepipe.formats.sdpipe import load_layouts
from sparsepipe.records.formats import sdpipe
from sparsepipe.display.markup import Html
import sparsepipe.dynamics.interference
assert load_layouts is sdpipe.load_layouts and Html is sp.views.markup.Html
assert sp.dynamics is sp.monitoring and sp.models is sp.networks
assert sdpipe.__spec__.name == sdpipe.__name__ == "sparsepipe.records.formats.sdpipe"
assert all(getattr(sp, name) is not None for name in dir(sp))
"""
    subprocess.run([sys.executable, "-c", lines], check=True)
    with pytest.raises(InputError, match="no module"):
        UserFunction.parse("sparsepipe.reproduced:digits").load()
