"""The architecture: imports point down, files know no circles, and `import sparsepipe` stays light."""

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from scripts.house import House, imported_names, is_code

PACKAGE = Path(__file__).parent.parent / "sparsepipe"
LEVELS = [  # lowest first; a module may import its own folder's files, and anything lower
    {"errors"},
    {"util"},
    {"values", "data", "lab_server"},
    {"networks"},
    {"engines", "records"},
    {"runtime", "planning"},
    {"profiling", "launching"},
    {"monitoring"},
    {"views"},
    {"study"},
    {"cli"},
    {"__main__"},
]
LEVEL = {name: level for level, names in enumerate(LEVELS) for name in names}
VALUES = {"errors", "util", "values", "records"}
DECISIONS = {"planning", "networks"}  # made of values alone
SHOWN = VALUES | {"planning"}  # what tables and figures know; widgets launch and watch, too
ORDER = "sparsepipe.data.order"  # functions of numbers alone: which samples make a minibatch, and in what order
HEAVY = {"torch", "MinkowskiEngine", "spconv", "plotly", "ray", "pandas", "ipywidgets", "papermill"}
TORCH_FREE = {*VALUES, *DECISIONS, "monitoring", "views"}
RAY = ("controller", "placed_ranks")  # in launching/ray/
OF_TORCH = {("networks", name) for name in ("traced", "images", "texts", "batch_norm", "losses")}
OF_TORCH |= {("records", "sinks")}


def sources():
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if parts != ("__init__",):
            yield path, parts


@cache
def import_statements(path):
    """Those of a file, wherever they stand: it is parsed once, and no expression is looked into."""
    found, todo = [], [ast.parse(path.read_text())]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.append(node)
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            todo.extend(getattr(node, field, []))
    return found


@cache
def imports(path, parts):
    """Absolute dotted names that the file imports, wherever in it: four tests ask for those of every file."""
    return tuple(_imports(path, parts))


def _imports(path, parts):
    for node in import_statements(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                folder = ("sparsepipe", *parts)[: len(parts) + 1 - node.level + (parts[-1] == "__init__") * 0]
                base = ".".join(folder)
                if node.module:
                    yield f"{base}.{node.module}"
                else:
                    yield from (f"{base}.{alias.name}" for alias in node.names)
            else:
                yield node.module


def names_of(path, parts):
    """As `imports`, with each name that is taken from a module: it may be a module itself."""
    return imported_names(import_statements(path), ("sparsepipe", *parts))


def test_imports_point_down():
    upward = [
        f"{'.'.join(parts)} imports {name}"
        for path, parts in sources()
        for name in imports(path, parts)
        if (other := room(name)) and other != parts[0] and not LEVEL[other] < LEVEL[parts[0]]
    ]
    assert not upward


def test_values_and_decisions_stand_on_each_other_alone():
    """Nor do they reach tensors and processes through somebody else."""
    found = [
        f"{'.'.join(parts)} imports {name}"
        for path, parts in sources()
        if parts[0] in VALUES | DECISIONS and parts[:2] != ("networks", "losses")
        for name in imports(path, parts)
        if (other := room(name)) and other not in VALUES | DECISIONS and name != ORDER
    ]
    assert not found


def test_views_stand_on_top():
    """Values and runtime know no view: `print` and notebooks find theirs when they show something."""
    above = [
        f"{'.'.join(parts)} imports {name}"
        for path, parts in sources()
        for name in names_of(path, parts)
        if (room(name) == "views" and parts[0] not in {"views", "study", "cli"})
        or (parts[0] == "views" and parts[1] != "widgets" and room(name) not in {"", "views", *SHOWN})
    ]
    assert not above
    assert not [name for name in imports(PACKAGE / "errors.py", ("errors",)) if name.startswith("sparsepipe")]


def test_values_are_shown_without_plain_python_importing_views():
    code = "import sys, sparsepipe as sp; print('sparsepipe.views' in sys.modules); print(sp.Cluster.uniform(2))"
    shell = f"import IPython; IPython.InteractiveShell.instance(); {code}; p = sp.Cluster.uniform(2)"
    shell += "; print('<table>' in IPython.get_ipython().display_formatter.format(p)[0]['text/html'])"
    plain, shown = (
        subprocess.run([sys.executable, "-c", each], capture_output=True, text=True, check=True).stdout.splitlines()
        for each in (code, shell)
    )
    assert plain[0] == "False" and len(plain) > 1 and shown[0] == shown[-1] == "True"
    assert shown[1:-1] == plain[1:]


def test_averages_between_pipelines_need_no_process_group():
    """Nor does the coordinator: one that dies or joins makes nobody wait for a group of torch's."""
    apart = {("runtime", "pipelines"), ("runtime", "replication", "between_pipelines")}
    found = [path for path, parts in sources() if {parts[:2], parts[:3]} & apart]
    assert len(found) > 20 and not [path.name for path in found if "distributed" in path.read_text()]


def test_the_root_has_nouns_alone():
    """What serves all of them has folders: a reader meets at the root what a user names."""
    assert len([path for path in PACKAGE.glob("*.py") if not path.stem.startswith("__")]) <= 4


def test_nothing_imports_in_circles():
    """Neither files, nor what a folder holds, wherever the import stands: one for type checkers counts too."""
    files = file_graph()
    assert not circles(files)
    folders = {name.rsplit(".", 1)[0] for name in files if "." in name}
    for folder in sorted(folders):
        assert not circles(inside(folder, files)), f"in {folder}/"


def test_circles_are_found():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]
    assert circles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []
    crossing = {"x.a.one": {"x.b.one"}, "x.b.one": set(), "x.b.two": {"x.a.two"}, "x.a.two": set()}
    assert not circles(crossing) and circles(inside("x", crossing)) == [["a", "b"]]


def file_graph():
    """Module -> the modules of the package that it imports; a folder's own is its `__init__`."""
    names = {".".join(("sparsepipe", *parts)).removesuffix(".__init__"): (path, parts) for path, parts in sources()}
    graph = {}
    for name, (path, parts) in names.items():
        targets = {next((t for t in stems(target) if t in names), name) for target in names_of(path, parts)}
        graph[name] = targets - {name}
    return graph


def stems(name):
    """The dotted name, and those of the folders that it lies in, the innermost first."""
    words = name.split(".")
    return (".".join(words[:count]) for count in range(len(words), 0, -1))


def inside(folder, graph):
    """What imports what among a folder's own files and sub-folders."""
    depth = folder.count(".") + 1
    within = {name: name.split(".")[depth] for name in graph if name.startswith(f"{folder}.")}
    found = {child: set() for child in within.values()}
    for name, child in within.items():
        found[child] |= {within[target] for target in graph[name] if target in within} - {child}
    return found


def circles(graph):
    """Groups of nodes of which each leads to each other, sorted."""
    ahead = {node: reachable(node, graph) for node in graph}
    groups = {tuple(sorted(n for n in ahead[node] if node in ahead[n])) for node in graph if node in ahead[node]}
    return [list(group) for group in sorted(groups)]


def reachable(node, graph):
    found, todo = set(), [node]
    while todo:
        for target in graph[todo.pop()] - found:
            found.add(target)
            todo.append(target)
    return found


def test_every_module_has_its_level():
    assert {parts[0] for _, parts in sources()} <= LEVEL.keys()


@pytest.fixture(scope="module")
def house():
    return House()


def test_private_members_are_used_by_their_class_alone(house):
    assert house.privates() == []


def test_a_file_gives_each_name_once():
    """Of two constants of one name, as of two files that became one, the first would be the second's."""
    for path, _ in sources():
        assigned = [node.targets for node in ast.parse(path.read_text()).body if isinstance(node, ast.Assign)]
        names = [target.id for targets in assigned for target in targets if isinstance(target, ast.Name)]
        assert len(names) == len(set(names)), path


def test_files_that_the_package_speaks_of_are_there():
    """A docstring or comment that sends its reader to another file goes along when that file is renamed."""
    # By the export of stages; examples of a user's own.
    written = {"path/metrics.py", "stage0.py", "stage1.py", "queue.py", "path/net.py", "path/file.py"}
    written |= {"net.py", "path/data.py", "path/loss.py", "path/opt.py", "path/schedule.py", "device_list.py"}
    written |= {"train_pipeline.py", "deepspeed_module.py"}  # by the export for other runtimes
    files = [path for folder in ("sparsepipe", "scripts", "tests") for path in (PACKAGE.parent / folder).rglob("*.py")]
    known = {"/".join(path.parts[-count:]) for path in files for count in range(1, 5)}
    lost = [
        f"{path.relative_to(PACKAGE)}:{number}: {name}"
        for path, _ in sources()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for name in re.findall(r"\b[\w/]+\.py\b", line)
        if name not in known | written
    ]
    assert not lost


def test_every_error_has_a_code(house):
    """A written one, or that of an error that it passes on; all sentences are in one file, to be read in one go."""
    without = [place for place, code, _ in house.coded_errors if not is_code([code]) and not passed_on(code)]
    assert not without
    golden = (PACKAGE.parent / "tests" / "golden" / "errors.txt").read_text()
    assert house.golden_errors() == golden, "python scripts/house.py --errors > tests/golden/errors.txt"


def passed_on(code):
    return not isinstance(code, ast.Constant | ast.JoinedStr) and "code" in ast.unparse(code)


def room(name):
    """The module or folder at the root that a name of the package is in; "" of other packages, and of the root."""
    first, _, rest = name.partition(".")
    return rest.split(".")[0] if first == "sparsepipe" and not rest.startswith("__") else ""


def test_types_are_strict_for_whoever_installs_the_package(house):
    assert (PACKAGE / "py.typed").exists() and house.settings["tool"]["mypy"]["strict"] is True


def test_changes_are_one_line_each():
    lines = (PACKAGE.parent / "CHANGELOG.md").read_text().splitlines()
    assert max(map(len, lines)) <= 160


def test_values_planners_and_views_never_import_torch():
    found = [
        f"{'.'.join(parts)} imports {name}"
        for path, parts in sources()
        if parts[0] in TORCH_FREE and parts[:2] not in OF_TORCH
        for name in imports(path, parts)
        if name.split(".")[0] in {"torch", "MinkowskiEngine", "spconv", "ray"}
    ]
    assert not found


def test_heavy_libraries_stay_in_their_files():
    homes = {
        "MinkowskiEngine": {("engines", "minkowski")},
        "spconv": {("engines", "spconv")},
        "ray": {("launching", "ray", name) for name in RAY},
    }
    for path, parts in sources():
        for name in imports(path, parts):
            library = name.split(".")[0]
            assert parts in homes.get(library, {parts}), f"{'.'.join(parts)} imports {name}"


def test_importing_the_package_is_light():
    code = f"import sys, sparsepipe; print(sorted({HEAVY!r} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
