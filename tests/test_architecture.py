"""The house is walked by its imports: they point down, and `import sparsepipe` stays light."""

import ast
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "sparsepipe"
LEVELS = [  # lowest first; a module may import its own level's files only inside its own folder, and anything lower
    {"display", "schedule_rules", "digests", "sizes"},
    {"errors"},
    {"host"},
    {"files", "fields"},
    {"graph", "cluster", "trace", "quantities"},
    {"graph_text"},
    {"profile", "plan"},
    {"schedule", "record"},
    {"costs"},
    {"provenance"},
    {"data", "models"},
    {"simulator", "formats"},
    {"forecast"},
    {"planners"},
    {"engines"},
    {"runtime"},
    {"profiler"},
    {"launchers"},
    {"dynamics"},
    {"widgets"},
    {"reproduce"},
    {"cli"},
    {"__main__"},
]
LEVEL = {name: level for level, names in enumerate(LEVELS) for name in names}
VIEWS = {"plots"}  # draws values: sees levels 0-1 and their costs alone, is seen by widgets and the entry points
VALUES = set().union(*LEVELS[:10])
HEAVY = {"torch", "MinkowskiEngine", "plotly", "ray", "pandas", "ipywidgets", "papermill"}
TORCH_FREE = {*VALUES, "planners", "simulator", "forecast", "plots", "widgets"}


def sources():
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if parts != ("__init__",):
            yield path, parts


def imports(path, parts):
    """Absolute dotted names that the file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
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


def test_imports_point_down():
    upward = []
    for path, parts in sources():
        own = parts[0]
        for name in imports(path, parts):
            words = name.split(".")
            if words[0] != "sparsepipe" or len(words) < 2 or words[1] == own:
                continue
            other = words[1]
            if other.startswith("__"):
                continue
            if own in VIEWS:
                allowed = other in VALUES | {"costs"}
            elif other in VIEWS:
                allowed = LEVEL[own] >= LEVEL["widgets"]
            else:
                allowed = LEVEL[other] < LEVEL[own]
            if not allowed:
                upward.append(f"{'.'.join(parts)} imports {name}")
    assert not upward


def test_every_module_has_its_level():
    assert {parts[0] for _, parts in sources()} <= LEVEL.keys() | VIEWS


def test_values_planners_and_views_never_import_torch():
    found = [
        f"{'.'.join(parts)} imports {name}"
        for path, parts in sources()
        if parts[0] in TORCH_FREE
        for name in imports(path, parts)
        if name.split(".")[0] in {"torch", "MinkowskiEngine", "ray"}
    ]
    assert not found


def test_heavy_libraries_stay_in_their_files():
    homes = {"MinkowskiEngine": {("engines", "minkowski")}, "ray": {("launchers", "ray")}}
    for path, parts in sources():
        for name in imports(path, parts):
            library = name.split(".")[0]
            assert parts in homes.get(library, {parts}), f"{'.'.join(parts)} imports {name}"


def test_importing_the_package_is_light():
    code = f"import sys, sparsepipe; print(sorted({HEAVY!r} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
