"""Notebooks are thin and clean; each runs alone, and on real data."""

import ast
import functools
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import nbformat
import pytest
from coded import mentions

import sparsepipe
from sparsepipe import data
from sparsepipe.planning import PLANNERS
from sparsepipe.study import NOTEBOOKS, reproduce
from sparsepipe.study.catalogue import parameter_names
from sparsepipe.study.executed import Executed
from sparsepipe.study.learning import nearest_neighbour_accuracy
from sparsepipe.study.unlike_devices import MIXED, default_cluster, one_more, unlike_devices

FOLDER = Path(__file__).parent.parent / "notebooks"
PATHS = sorted(FOLDER.rglob("[0-9]*.ipynb"))
SMALL = {
    "shapes_per_class": 2,
    "voxel_size": 0.1,
    "voxel_sizes": [0.1, 0.05],
    "num_samples": 8,
    "batch_size": 4,
    "repeats": 1,
    "epochs": 1,
    "part_epochs": 1,
    "scan_epochs": 1,
    "image_epochs": 1,
    "cloud_epochs": 1,
    "num_devices": 2,
    "cluster": "cores",  # of this machine; on the mixed one 04 runs in JupyterLab
    "num_seeds": 1,
    "minibatches": 4,
    "engine": "native",
    "cells": [32],
    "num_pipelines": 2,
    "num_stages": 1,
    "each": 4,
    "compared": ["all-reduce"],
    "trained_epochs": 1,
    "dense_models": ["vgg11bn-3d-narrow"],  # a step on a grid of 64 cells along each axis takes seconds
    "num_points": 512,
    "moving_minibatches": 24,
    "stays": [10],
    "ordered_minibatches": 6,
    "stage_counts": [2],
    "num_replicas": 2,
    "scan_names": ["room"],
    "hall_points": 3000,
    "hall_epochs": 1,
}
FIGURES = SMALL | {  # on the same shapes: by themselves they read 1,437 handwritten digits
    "also": ["2bw"],
    "updates": {"images": 8},
    "straggler_seeds": 1,
    "emulated_devices": 2,
    "emulated_schemes": ["quorum"],
    "emulated_stragglers": 1,
    "emulated_minibatches": 2,
    "waiting_voxel_size": 0.1,  # of which the others have left a profile
    "waiting_batch_size": 4,
    "published_devices": 2,
    "device_counts": [4],
    "network_names": ["minkvgg11bn-narrow"],
    "variants": ["live"],
    "runs_each": 1,
    "light_variants": ["live"],
    "device_numbers": [1, 2],
    "lossy": ["bfloat16", "int8"],
    "lossless": ["zeros"],
}


def name_of(path):
    """As reproduce names a notebook: "02_data", "figures/1_devices"."""
    return path.relative_to(FOLDER).with_suffix("").as_posix()


def small(path):
    """Parameters with which a notebook has little to do."""
    reads_digits = path.parent != FOLDER and path.stem != "3_sparse_dense"
    return FIGURES if reads_digits else SMALL


def asked_of(*names):
    """Of the parameters above those that one of these notebooks has: `reproduce` refuses others."""
    paths = [FOLDER / f"{name}.ipynb" for name in names]
    known = {parameter for path in paths for parameter in parameter_names(path)}
    return {parameter: value for parameter, value in small(paths[0]).items() if parameter in known}


@functools.cache
def read(path):
    """A notebook as it stands in the checkout: read once, as many tests look at it."""
    return nbformat.read(path, as_version=4)


WRITES = "%%writefile "  # a cell that is a file of the reader's own


def cells(path, kind="code"):
    """The cells of a kind; those that write a file are none of the notebook's code, see `files_of`."""
    return [cell for cell in read(path).cells if cell.cell_type == kind and not cell.source.startswith(WRITES)]


def files_of(path):
    """The files that a notebook writes: their names and texts."""
    sources = [cell.source for cell in read(path).cells if cell.source.startswith(WRITES)]
    return {first.removeprefix(WRITES): text for first, _, text in (source.partition("\n") for source in sources)}


def test_the_notebooks_are_those_that_reproduce_runs():
    assert {name_of(path) for path in PATHS} == set(NOTEBOOKS)


@pytest.mark.parametrize("path", PATHS, ids=name_of)
class TestEveryNotebook:
    def test_carries_no_output(self, path):
        notebook = read(path)
        nbformat.validate(notebook)
        for cell in cells(path):
            assert not cell.outputs and cell.execution_count is None
        assert set(notebook.metadata) == {"kernelspec"}

    def test_opens_with_question_idea_needs_and_a_picture(self, path):
        head = cells(path, "markdown")[0].source
        title, number = head.splitlines()[0], path.stem.split("_")[0]
        form = rf"# Figure {number} · .+: .+" if path.parent != FOLDER else rf"# {number} · .+"  # of which paper
        assert re.fullmatch(form, title) and read(path).cells[0].cell_type == "markdown"
        assert "**Idea.**" in head and "**Needs**" in head and "**Takes**" in head
        (picture,) = re.findall(r"!\[[^\]]+\]\(([\w./]+)\)", head)
        assert (path.parent / picture).resolve().parent == FOLDER.parent / "figures" / "gallery"
        assert (path.parent / picture).exists()

    def test_ends_with_a_result_and_what_to_try_and_read_next(self, path):
        text = [cell.source for cell in cells(path, "markdown")]
        assert text[-2].endswith("## Result") or text[-3].endswith("## Result")
        tried, _, following = text[-1].partition("## Next")
        assert tried.startswith("## Try") and len(re.findall(r"^- .+[:;,.] ", tried, re.MULTILINE)) == 3
        assert ".ipynb)" in following

    def test_shows_a_picture_within_three_cells(self, path):
        first = cells(path)[3:6]  # after imports and parameters
        assert any(shows_a_figure(cell.source) for cell in first)

    def test_says_what_to_see_in_each_figure(self, path):
        every = [cell for cell in read(path).cells if not cell.source.startswith(WRITES)]
        for cell, following in zip(every, every[1:], strict=False):
            if cell.cell_type == "code" and shows_a_figure(cell.source) and "headless:" not in cell.source:
                assert following.cell_type == "markdown" and not following.source.startswith("#"), cell.source

    def test_has_its_imports_first_and_parameters_in_an_open_and_a_collapsed_cell(self, path):
        tags = {k: cell.metadata["tags"] for k, cell in enumerate(cells(path)) if cell.metadata.get("tags")}
        assert tags == {1: ["settings"], 2: ["parameters"]}
        assert cells(path)[2].metadata["jupyter"] == {"source_hidden": True}
        assert "jupyter" not in cells(path)[1].metadata
        open_names, batch_names = (_assigned(cells(path)[k]) for k in (1, 2))
        assert 1 <= len(open_names) <= 6 and not open_names.keys() & batch_names.keys()
        assert {"data", "root", "figures", "seed", "headless"} <= batch_names.keys()
        assert parameter_names(path) == (*open_names, *batch_names)
        for k, cell in enumerate(cells(path)):
            for node in ast.parse(cell.source).body:
                if isinstance(node, ast.Import | ast.ImportFrom):
                    assert k == 0

    def test_uses_public_names_alone(self, path):
        """A reader copies cells: what they import or name is listed in `__all__`, or in a package's `dir`."""
        for cell in cells(path):
            tree, modules = ast.parse(cell.source), {"sp": sparsepipe}
            for node in ast.walk(ast.parse(cells(path)[0].source)):
                if isinstance(node, ast.ImportFrom) and node.module.startswith("sparsepipe"):
                    home = public_module(node.module)
                    for alias in node.names:
                        assert alias.name in public_names(home), ast.unparse(node)
                        modules[alias.asname or alias.name] = getattr(home, alias.name)
            for node in ast.walk(tree):
                assert not isinstance(node, ast.ImportFrom) or node in tree.body
                if isinstance(node, ast.Attribute) and isinstance(module := value_of(node.value, modules), ModuleType):
                    assert node.attr in public_names(module), ast.unparse(node)

    def test_is_thin(self, path):
        for cell in cells(path):
            assert "sys.path" not in cell.source
            statements = len(cell.source.splitlines())
            assert statements <= 20, f"{statements} lines: {cell.source[:60]}"

    def test_writes_files_that_are_short(self, path):
        """A reader's own: 20 lines are a network, 10 a data set."""
        for name, text in files_of(path).items():
            lines = [line for line in text.splitlines() if line.strip()]
            compile(text, name, "exec")
            assert len(lines) <= (20 if "net" in name else 10), name

    def test_explains_its_parameters_alike(self, path):
        """Parameters that notebooks share have one default, or they would not find what others left."""
        others = (other for other in PATHS if other != path and other.parent == path.parent)
        shared = {name: value for other in others for name, value in _parameters(other).items()}
        for name, value in _parameters(path).items():
            if name not in ("num_devices",) and path.stem != "3_sparse_dense":  # which trains nothing
                assert shared.get(name, value) == value, name


def _assigned(cell):
    return {node.targets[0].id: ast.literal_eval(node.value) for node in ast.parse(cell.source).body}


def _parameters(path):
    return _assigned(cells(path)[1]) | _assigned(cells(path)[2])


def shows_a_figure(source):
    """Whether a cell's value is a figure, or it shows a widget or a picture."""
    last = ast.parse(source).body[-1]
    shown = ast.unparse(last) if isinstance(last, ast.Expr) else ""
    return shown.startswith(("place.export(", "plots.", "figure.", "here.loop", "here.thumbnails")) or bool(
        re.search(r"\bdisplay\((?:sp\.widgets|plots)\.", source)
    )


def public_module(name):
    """The module of that name, each part of which its package lists."""
    module = sparsepipe
    for part in name.split(".")[1:]:
        assert part in public_names(module), name
        module = getattr(module, part)
    return module


def public_names(module):
    """What a module lists: its `__all__`, and the folders of a package that imports them when they are asked for."""
    listed = {name for name in dir(module) if not name.startswith("_")} if hasattr(module, "__dir__") else set()
    lazy = "__dir__" in vars(module)
    return {*getattr(module, "__all__", ())} | (listed if lazy or not hasattr(module, "__all__") else set())


def value_of(node, modules):
    """The module that an expression such as `sp.planners` names; None for anything else."""
    if isinstance(node, ast.Name):
        return modules.get(node.id)
    if isinstance(node, ast.Attribute) and isinstance(home := value_of(node.value, modules), ModuleType):
        return getattr(home, node.attr, None)
    return None


VERBS = {"profile_model", "partition", "simulate", "launch"}  # what the product does
VERBS |= {"partition_pipelines", "simulate_pipelines"}  # and with several pipelines
PLANS = {"profile_model", "partition"}
OPEN = {  # notebook: the verbs that its cells call by their public names
    "03_profile": {"profile_model"},
    "04_layer_graph": PLANS,
    "05_partition": PLANS | {"simulate"},
    "01_pipelines": {"partition", "simulate"},
    "06_launch": PLANS | {"simulate", "launch"},
    "09_your_own_network": PLANS | {"simulate", "launch"},
    "13_own_sparse_modules": PLANS | {"launch"},
    "14_one_scene_over_devices": PLANS | {"launch"},
    "10_waiting": PLANS | {"simulate_pipelines", "launch"},
    "11_moving": PLANS | {"launch"},
    "12_sizes": PLANS | {"launch"},
    "figures/1_devices": PLANS | {"launch"},
    "figures/12_gaps": {"partition"},
    "figures/10_dense": PLANS | {"launch"},
    "figures/2_mixed_devices": PLANS,
    "figures/3_sparse_dense": {"profile_model"},
    "figures/4_accuracy": PLANS | {"launch"},
    "figures/5_prediction": PLANS | {"simulate", "launch"},
    "figures/6_bytes_memory": PLANS,
    "figures/8_waiting": PLANS | {"simulate_pipelines"},
    "figures/13_interference_runs": PLANS | {"launch"},
}


def verbs(source):
    """The verbs that a cell calls: `sp.launch(…)`, as a reader would."""
    calls = (node.func for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    named = (call for call in calls if isinstance(call, ast.Attribute) and isinstance(call.value, ast.Name))
    return {call.attr for call in named if call.value.id == "sp"} & VERBS


@pytest.mark.parametrize("path", PATHS, ids=name_of)
def test_the_product_is_called_in_the_open(path):
    """`launch` and `profile_model` were called in no notebook, `partition` in one: a reader had nothing to copy."""
    called = set().union(*(verbs(cell.source) for cell in cells(path)))
    assert called == OPEN.get(name_of(path), set())


def test_a_reader_finds_all_of_it_at_the_top():
    """What is heavy is brought when it is asked for: tests/test_architecture.py holds the import light."""
    assert {*VERBS, "RunConfig", "attach"} <= set(sparsepipe.__all__) <= set(dir(sparsepipe))
    assert all(getattr(sparsepipe, name) is not None for name in (*sparsepipe.__all__, "data", "plots", "widgets"))
    with pytest.raises(AttributeError, match="'sparsepipe'.*'lunch'"):
        sparsepipe.lunch  # noqa: B018 - asking is what raises


def test_no_internal_name_of_the_package_is_listed():
    assert not {"lazy_names", "TYPE_CHECKING", "plan_parts", "sizes", "errors"} & set(dir(sparsepipe))


def test_what_notebooks_share_calls_none_of_it():
    """A workplace says where things are kept: paths, caching, the export of figures."""
    for name in ("workplace", "cached_runs"):
        tree = ast.parse((FOLDER.parent / "sparsepipe" / "study" / f"{name}.py").read_text())
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        assert not names & (VERBS if name == "workplace" else VERBS - {"launch"}), name


def test_one_network_goes_through_the_walk():
    """One notebook planned a network that another had measured for it alone, and a third trained another one."""
    walk = [path for path in PATHS if path.parent == FOLDER and path.stem[:2] in ("03", "04", "05", "06")]
    named = {path.stem: _parameters(path).get("train_model") for path in walk}
    assert (
        len(named) == 4 and len(set(named.values())) == 1 and "model" not in _parameters(FOLDER / "05_partition.ipynb")
    )


def test_05_opens_on_the_mixed_cluster_that_profiles_are_kept_for():
    given = _parameters(FOLDER / "05_partition.ipynb")
    assert not (given["cluster"] or given["profiles"] or given["server_file"])
    named = {name: given[name] for name in ("data", "voxel_size", "batch_size")}
    assert default_cluster(given["train_model"], **named) == MIXED
    assert unlike_devices(given["train_model"])[0].origin["model"] == given["train_model"]


def test_a_planner_that_cannot_plan_for_a_cluster_is_left_out_with_its_reason(capsys):
    """A cluster of one's own ended 05 at PipeDream's planner, which wants the same number of devices on every node."""
    profile, cluster = unlike_devices("minkvgg16bn")
    given = {"sp": sparsepipe, "profile": profile, "schedule": "1f1b", "replace": replace}
    given |= {"devices": one_more(cluster, "native-1t")}
    (source,) = (
        cell.source for cell in cells(FOLDER / "05_partition.ipynb") if "in sp.planning.PLANNERS" in cell.source
    )
    exec(source, given)
    assert {plan.planner for plan in given["plans"]} == set(PLANNERS) - {"pipedream"}
    told = capsys.readouterr().out
    assert mentions(told, "pipedream")
    assert all(told.count(warning) == 1 for warning in profile.warnings), "not once for each plan that rests on it"


@pytest.mark.parametrize(
    ("first", "others"),
    [("figures/4_accuracy", ["figures/1_devices", "figures/5_prediction"])],
)
def test_notebooks_that_share_runs_plan_and_train_by_the_same_cells(first, others):
    """Else one would not find the other's campaign, and train all of it again."""
    sources = [cell.source for cell in cells(FOLDER / f"{first}.ipynb")]
    making = [source for source in sources if "sp." in source and "display(" not in source]
    assert len(making) >= 4  # profiles, plans, settings, runs
    for other in others:
        assert set(making) <= {cell.source for cell in cells(FOLDER / f"{other}.ipynb")}, other


def test_notebooks_are_as_nbstripout_leaves_them():
    pytest.importorskip("nbstripout")
    command = [sys.executable, "-m", "nbstripout", "--verify", *map(str, PATHS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_notebooks_pass_ruff(tmp_path):
    pytest.importorskip("ruff")
    for path in PATHS:
        for name, text in files_of(path).items():  # of which ruff knows nothing, as they are cells of a magic
            (tmp_path / name).write_text(text + "\n")
    config = ["--config", str(FOLDER.parent / "pyproject.toml")]
    for action in (["check"], ["format", "--check"]):
        command = [sys.executable, "-m", "ruff", *action, *config, str(FOLDER), str(tmp_path)]
        root = FOLDER.parent  # ruff takes its imports for those of the package
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_both_engines_learn_real_shapes_at_least_as_well_as_a_nearest_neighbour(tmp_path, monkeypatch, shared_data):
    """Notebook 07 as it stands: the same seed, 400 real clouds, 12 epochs."""
    monkeypatch.setenv("SPARSEPIPE_DATA", str(shared_data))
    reproduce(["07_learning"], out=tmp_path / "figures", pictures=False)
    answer = Executed.read("07_learning", tmp_path / "runs" / "notebooks" / "07_learning.ipynb").answer
    reached = [float(text) / 100 for text in re.findall(r"(?:native|minkowski) ([\d.]+)%", answer)]
    folder = shared_data / "modelnet10-sample" / "ModelNet10"
    train, test = (data.load(folder, split=split, voxel_size=0.03) for split in ("train", "test"))
    baseline = max(nearest_neighbour_accuracy(train, test, cells) for cells in (4, 6, 8, 12))
    assert baseline > 0.75 and mentions(answer, "400 shapes", "10 classes") and "on 200\nother shapes" in answer
    assert reached and min(reached) >= baseline
    told = "more than" if min(reached) > baseline else "no less than"
    assert f"**{told}** the nearest neighbour's {baseline:.1%}" in answer
    if len(reached) == 2:
        assert "within noise" in answer
        (apart,) = re.findall(r"differ by at most\s+([\d.e+-]+) of", answer)
        assert float(apart) < 1e-4
