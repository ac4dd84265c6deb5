"""The package says one thing everywhere: pyproject.toml, environment.yml, licence, scripts, notebooks, files."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import textwrap
import tomllib
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
import yaml
from coded import raises
from runtime_jobs import shapes

from sparsepipe.data.formats import read

REPOSITORY = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
ENVIRONMENT_TEXT = (REPOSITORY / "environment.yml").read_text()
ENVIRONMENT = yaml.safe_load(ENVIRONMENT_TEXT)
SCRIPTS = sorted([*(REPOSITORY / "scripts").glob("*.sh"), REPOSITORY / ".ci" / "run"])
ENGINE_COMMAND = re.compile(
    r"pip install\s.*?--use-pep517 --no-build-isolation --no-deps"
    r' --config-settings="--global-option=--blas=openblas" (\S+)',
    re.DOTALL,
)


def extras() -> dict[str, list[str]]:
    return PROJECT["project"]["optional-dependencies"]


def split(requirement: str) -> tuple[str, frozenset[str]]:
    """Return a requirement's name, normalised, with its extras, and its version bounds in any order."""
    name, bounds = re.fullmatch(r"([\w.-]+(?:\[[\w,]+\])?)\s*(.*)", requirement).groups()
    return re.sub(r"[-_.]+", "-", name).lower(), frozenset(part.strip() for part in bounds.split(",") if part.strip())


def tracked() -> list[Path]:
    """Return the files that git tracks, or would with the next `git add`; skip where this is no git checkout."""
    if not (REPOSITORY / ".git").exists() or shutil.which("git") is None:
        pytest.skip("not a git checkout")
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY,
        capture_output=True,
        check=True,
    )
    paths = (REPOSITORY / os.fsdecode(name) for name in listing.stdout.split(b"\0") if name)
    return [path for path in paths if path.is_file()]


def notebooks() -> list[Path]:
    return sorted((REPOSITORY / "notebooks").glob("*.ipynb"))


def requirements() -> list[str]:
    """All that pyproject.toml states, its own extras left out."""
    stated = PROJECT["project"]["dependencies"] + PROJECT["build-system"]["requires"] + sum(extras().values(), [])
    return [line for line in stated if not line.startswith("sparsepipe[")]


def locked() -> dict[str, str]:
    """The versions of the lock file."""
    lines = (REPOSITORY / "scripts" / "lock.txt").read_text().splitlines()
    return dict(canonical(line).split("==") for line in lines if not line.startswith("#"))


def canonical(name: str) -> str:
    return re.sub(r"[-_]+", "-", name).lower()


def test_the_lock_file_has_a_version_of_all_that_is_stated_within_its_range():
    from packaging.requirements import Requirement

    versions = locked()
    for stated in map(Requirement, requirements()):
        if stated.name != "MinkowskiEngine":  # its own version is all there is
            assert stated.specifier.contains(versions[canonical(stated.name)]), stated


def test_there_are_few_dependencies_and_none_is_pinned():
    stated = PROJECT["project"]["dependencies"]
    assert len(stated) <= 12
    assert not [line for line in requirements() if re.search(r"\w==", line) and not line.startswith("MinkowskiEngine")]


def test_environment_installs_the_locked_versions_with_the_package_itself():
    conda = dict(split(entry) for entry in ENVIRONMENT["dependencies"] if isinstance(entry, str))
    (pip_section,) = [entry["pip"] for entry in ENVIRONMENT["dependencies"] if isinstance(entry, dict)]
    assert pip_section == ["-c scripts/lock.txt", "-e .[all,dev]"]
    assert conda["python"] == split("python" + PROJECT["project"]["requires-python"])[1]
    assert ("setuptools", conda["setuptools"]) in map(split, PROJECT["build-system"]["requires"])
    assert ENVIRONMENT["name"] == PROJECT["project"]["name"]


def test_the_engine_is_built_from_the_same_version_by_the_same_command_everywhere():
    conda = {split(entry)[0] for entry in ENVIRONMENT["dependencies"] if isinstance(entry, str)}
    assert {"openblas", "cxx-compiler", "ninja", "wheel", "setuptools", "pip"} <= conda
    assert ENGINE_COMMAND.search(ENVIRONMENT_TEXT).group(1) == extras()["minkowski"][0]
    setup = (REPOSITORY / "scripts" / "setup.sh").read_text()
    assert ENGINE_COMMAND.search(setup).group(1) == '"$engine"'
    assert f"engine={extras()['minkowski'][0]}\n" in setup


def test_the_module_of_an_extra_is_named_with_it():
    """errors.py has the modules of each extra as they are imported."""
    from sparsepipe.errors import _EXTRAS, missing_extra

    named = {"lzf": "python-neo-lzf", "PIL": "pillow", "mlflow": "mlflow-skinny", "opentelemetry": "opentelemetry-sdk"}
    for extra, modules in _EXTRAS.items():
        stated = {canonical(split(line)[0].split("[")[0]) for line in extras()[extra]}
        assert {canonical(named.get(module, module)) for module in modules} <= stated, extra
    error = missing_extra(ModuleNotFoundError("", name="plotly.graph_objects"))
    assert "sparsepipe[figures]" in str(error)
    assert missing_extra(ModuleNotFoundError("", name="torch")) is None


@pytest.mark.parametrize("suffix", [".las", ".laz"])
def test_a_file_is_not_called_damaged_where_its_extra_is_missing(tmp_path, monkeypatch, suffix):
    laspy = pytest.importorskip("laspy")
    cloud = laspy.LasData(laspy.LasHeader(point_format=3, version="1.2"))
    cloud.x = cloud.y = cloud.z = np.arange(20.0)
    cloud.write(str(tmp_path / f"cloud{suffix}"))
    monkeypatch.setitem(sys.modules, "laspy", None)
    with raises("extra.not_installed", extra="clouds"):
        read(tmp_path / f"cloud{suffix}")


@pytest.mark.slow
def test_plans_and_runs_need_no_extra(tmp_path):
    """With the modules of all extras out of reach: plan, simulate and train; what needs one names it."""
    from sparsepipe.errors import _EXTRAS

    modules = [module for own in _EXTRAS.values() for module in own]
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({modules}))\n")

    def verb(*words):
        command = [sys.executable, "-m", "sparsepipe", *map(str, words)]
        environment = os.environ | {"PYTHONPATH": str(tmp_path)}  # of workers, too
        options = {"cwd": tmp_path, "env": environment, "timeout": 200}
        return subprocess.run(command, capture_output=True, text=True, check=False, **options)

    (tmp_path / "cluster.toml").write_text('[[node]]\nname = "a"\ndevices = [{ type = "native-1t", count = 2 }]\n')
    profile = ("--profile", "minkvgg11bn-narrow", "--cluster", "cluster.toml")
    data = ("--data", shapes(tmp_path), "--model", "minkvgg11bn-narrow", "--num-points", "256")
    for words in (
        ("plan", *profile, "--out", "plan.json"),
        ("simulate", "plan.json", *profile),
        ("run", "plan.json", *data, "--run-dir", "run", "--epochs", "1"),
    ):
        done = verb(*words)
        assert done.returncode == 0, done.stderr
    figures = verb("reproduce", "02_data")
    assert figures.returncode == 2 and "sparsepipe[" in figures.stderr


def test_the_installed_versions_are_within_the_stated_bounds():
    from packaging.requirements import Requirement  # pytest needs it, so it is there

    wrong = []
    for line in requirements():
        requirement = Requirement(line)
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            continue  # an environment made by hand may lack a checker; what the tests import fails by itself
        if not requirement.specifier.contains(version, prereleases=True):
            wrong.append(f"{line}: {version} is installed")
    assert not wrong


def test_every_import_is_declared():
    modules = {"pyyaml": "yaml", "scikit-learn": "sklearn", "mapbox-earcut": "mapbox_earcut", "python-neo-lzf": "lzf"}
    modules |= {"pillow": "pil", "jupyter-client": "jupyter_client", "jupyter-core": "jupyter_core"}
    modules |= {"mlflow-skinny": "mlflow", "opentelemetry-sdk": "opentelemetry"}
    stated = PROJECT["project"]["dependencies"] + [
        line for name in extras() if name != "dev" for line in extras()[name]
    ]
    named = {canonical(split(line)[0].split("[")[0]) for line in stated}
    declared = {modules.get(name, name) for name in named} | {
        "triton"
    }  # comes with torch for CUDA, which alone uses it
    imported = set()
    for path in (REPOSITORY / "sparsepipe").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                imported.add(node.module.split(".")[0])
    foreign = {name.lower() for name in imported} - set(sys.stdlib_module_names) - {"__future__", "sparsepipe"}
    assert not foreign - declared, "imported but not declared in pyproject.toml"


def test_the_command_is_installed_as_declared():
    assert PROJECT["project"]["scripts"] == {"sparsepipe": "sparsepipe.cli:main"}


def test_an_editable_install_is_imported_in_every_folder(tmp_path):
    """In the folder above a clone called sparsepipe the clone was an empty namespace package, before the install."""
    clone, installed = tmp_path / "sparsepipe", tmp_path / "installed"
    shutil.copytree(REPOSITORY / "sparsepipe", clone / "sparsepipe")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(REPOSITORY / name, clone)
    build = "from setuptools import build_meta; build_meta.build_editable('..')"  # as `pip install -e .` calls it
    subprocess.run([sys.executable, "-c", build], cwd=clone, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    shutil.unpack_archive(wheel, installed, "zip")
    # Without this environment's own sparsepipe, with its other packages, whose .pth files are not read.
    packages = sysconfig.get_path("purelib"), *(str(Path(np.__file__).parents[1]),)
    program = """
        import site, subprocess, sys
        site.addsitedir(sys.argv[1])
        sys.path += sys.argv[2:]
        import sparsepipe
        from sparsepipe.util.host.imports import python_environment
        print(sparsepipe.Profile.__module__, sparsepipe.__file__, flush=True)
        child = [sys.executable, "-P", "-c", "import sparsepipe; print(sparsepipe.__file__)"]
        subprocess.run(child, env=python_environment(), check=True)
    """
    own = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    command = [sys.executable, "-S", "-c", textwrap.dedent(program), str(installed), *packages]
    for folder in (tmp_path, clone / "sparsepipe"):
        done = subprocess.run(command, cwd=folder, env=own, capture_output=True, text=True, check=False)
        here = str(clone / "sparsepipe" / "__init__.py")
        assert done.stdout.split() == ["sparsepipe.values.profile.profile", here, here], (folder, done.stderr)


def test_the_licence_is_mit():
    text = (REPOSITORY / "LICENSE").read_text()
    assert PROJECT["project"]["license"] == "MIT"
    assert text.startswith("MIT License\n")
    assert "Permission is hereby granted, free of charge" in text
    assert 'THE SOFTWARE IS PROVIDED "AS IS"' in text


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_executable_strict_and_well_formed(script):
    assert os.access(script, os.X_OK)
    assert script.read_text().startswith("#!/usr/bin/env bash\n")
    assert "\nset -euo pipefail\n" in script.read_text()
    subprocess.run(["bash", "-n", str(script)], check=True)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_pass_shellcheck(script):
    shellcheck = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if shellcheck is None:
        pytest.skip("no shellcheck")
    result = subprocess.run([shellcheck, str(script)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout


def test_nothing_tracked_names_a_registry_or_a_folder_of_one_machine():
    # In two halves, so that this file does not find itself.
    halves = [("pypi", ".org"), ("python", "hosted.org"), ("download.py", "torch.org"), ("conda.", "anaconda.org")]
    halves += [("deb.", "debian.org"), ("index-", "url"), ("--find-", "links"), ("trusted-", "host")]
    registries = ["".join(pair) for pair in halves]
    folders = ["/" + folder + "/" for folder in ("root", "work", "tmp/boot", "Users", "opt/wheels")]
    machine = re.compile(r"(?<![\w.$}\"'*-])(?:" + "|".join(folders) + r"|/home/[a-z])")
    found = []
    for path in tracked():
        if path.name == ".gitignore":  # its patterns begin with a slash
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), start=1):
            if any(name in line for name in registries) or machine.search(line):
                found.append(f"{path.relative_to(REPOSITORY)}:{number}: {line.strip()[:100]}")
    assert not found, "\n".join(found)


def test_nothing_large_or_private_is_tracked():
    files = tracked()
    assert not [path for path in files if path.stat().st_size > 1_000_000]
    assert not [path for path in files if path.suffix in {".pem", ".key", ".pkl", ".pt", ".pth"} or path.name == ".env"]


def test_notebooks_carry_no_outputs():
    if not notebooks():
        pytest.skip("no notebooks yet")
    dirty = []
    for path in notebooks():
        notebook = json.loads(path.read_text(encoding="utf-8"))
        cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        if any(cell["outputs"] or cell["execution_count"] is not None for cell in cells):
            dirty.append(f"{path.name}: outputs")
        if {"widgets", "papermill"} & set(notebook["metadata"]) or any(
            "papermill" in cell["metadata"] for cell in cells
        ):
            dirty.append(f"{path.name}: traces of a run in its metadata")
        if notebook["metadata"]["kernelspec"]["name"] != "python3":
            dirty.append(f"{path.name}: kernel {notebook['metadata']['kernelspec']['name']}, expected python3")
    assert not dirty
