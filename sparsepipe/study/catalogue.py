"""The notebooks: in which order, what each starts from, which measure, how long each usually takes, what it exports."""

import re
from collections.abc import Collection, Sequence
from pathlib import Path

from ..errors import InputError
from ..util.io.files import read_json

# Notebook -> those whose results it starts from. It runs without them too, and then makes what it needs itself.
NOTEBOOKS: dict[str, tuple[str, ...]] = {
    "01_pipelines": (),
    "02_data": (),
    "03_profile": (),
    "04_layer_graph": ("03_profile",),
    "05_partition": ("03_profile",),
    "06_launch": ("03_profile",),
    "07_learning": (),
    "08_segmentation": (),
    "09_your_own_network": (),
    "10_waiting": (),
    "11_moving": (),
    "12_sizes": (),
    "13_own_sparse_modules": (),
    "14_one_scene_over_devices": (),
    "figures/4_accuracy": (),  # trains what figures 1 and 5 read
    "figures/3_sparse_dense": (),
    "figures/1_devices": ("figures/4_accuracy",),
    "figures/5_prediction": ("figures/4_accuracy",),
    "figures/2_mixed_devices": (),
    "figures/6_bytes_memory": (),
    "figures/7_compression": (),
    "figures/8_waiting": (),
    "figures/9_interference": (),
    "figures/10_dense": (),
    "figures/11_held_against_others": (),
    "figures/12_gaps": (),
    "figures/13_interference_runs": (),
    "00_start": (),
}
LAST = "00_start"  # it shows what the others made: it comes after them, and again after any of them
# They measure: nothing else runs meanwhile.
ALONE = frozenset(
    {
        "03_profile",
        "06_launch",
        "07_learning",
        "08_segmentation",
        "09_your_own_network",
        "10_waiting",
        "11_moving",
        "12_sizes",
        "13_own_sparse_modules",
        "14_one_scene_over_devices",
        "figures/4_accuracy",
        "figures/3_sparse_dense",
        "figures/1_devices",
        "figures/7_compression",
        "figures/8_waiting",
        "figures/10_dense",
        "figures/13_interference_runs",
    }
)
# Seconds on two cores of a server: what is expected of a notebook that has not yet run here.
USUAL_SECONDS = {
    "01_pipelines": 7,
    "02_data": 20,
    "03_profile": 50,
    "04_layer_graph": 15,
    "05_partition": 12,
    "06_launch": 105,
    "07_learning": 58,
    "08_segmentation": 60,
    "09_your_own_network": 35,
    "10_waiting": 53,
    "11_moving": 150,
    "12_sizes": 70,
    "13_own_sparse_modules": 25,
    "14_one_scene_over_devices": 90,
    "figures/4_accuracy": 60,
    "figures/3_sparse_dense": 37,
    "figures/1_devices": 13,
    "figures/5_prediction": 17,
    "figures/2_mixed_devices": 9,
    "figures/6_bytes_memory": 10,
    "figures/7_compression": 75,
    "figures/8_waiting": 72,
    "figures/9_interference": 15,
    "figures/10_dense": 118,
    "figures/11_held_against_others": 45,
    "figures/12_gaps": 30,
    "figures/13_interference_runs": 240,
    "00_start": 6,
}


def by_number() -> list[str]:
    """The notebooks as they are read: 00 to the last of the walk, then the figures' 1, 2, … 10."""
    return sorted(NOTEBOOKS, key=lambda name: ("/" in name, int(re.sub(r"\D.*", "", name.rpartition("/")[2]) or 0)))


def notebooks_folder() -> Path:
    """Return the folder of the notebooks: alongside the package in a checkout, inside it once installed.

    Raises InputError if neither exists.
    """
    package = Path(__file__).resolve().parents[1]
    folders = [root / "notebooks" for root in (package.parent, package)]
    for folder in folders:
        if all((folder / f"{name}.ipynb").exists() for name in NOTEBOOKS):
            return folder
    raise InputError(
        "notebooks.missing",
        f"{folders[0]}: some notebooks are missing; install sparsepipe again, or use a checkout of it",
    )


def waves(names: Sequence[str]) -> list[list[str]]:
    """Notebooks that may run side by side. One that measures, or starts from one of a wave, or shows what the others
    made, begins a new wave.
    """
    wave_names: list[list[str]] = []
    for name in names:
        last = wave_names[-1] if wave_names else []
        alone = name in ALONE or name == LAST
        apart = not last or alone or last[0] in ALONE or any(needed in last for needed in NOTEBOOKS[name])
        if apart:
            wave_names.append([name])
        else:
            last.append(name)
    return wave_names


def put_off(names: Sequence[str], late: Collection[str]) -> list[str]:
    """Return notebooks in their order, but those of `late`, and those that start from one of them, last."""
    behind = set(late)
    for name in NOTEBOOKS:
        if behind.intersection(NOTEBOOKS[name]):
            behind.add(name)
    return sorted(names, key=lambda name: (name == LAST, name in behind))


def uses_minkowski(path: Path) -> bool:
    """Return whether a notebook uses MinkowskiEngine if it is installed."""
    return names_minkowski(_code(path))


def names_minkowski(code: str) -> bool:
    """Return whether Python code names MinkowskiEngine, as a module or as the value of an option."""
    return bool(re.search(r"\bMinkowskiEngine\b|[\"']minkowski[\"']", code))


def exported(path: Path) -> tuple[str, ...]:
    """The figures that a notebook exports, in the order of its cells."""
    return exported_by(_code(path))


def exported_by(code: str) -> tuple[str, ...]:
    """The figures that a cell's code exports, as it names them: place.export("name", …)."""
    return tuple(dict.fromkeys(re.findall(r"\.export\(\s*\"(\w+)\"", code)))


def parameter_names(path: Path) -> tuple[str, ...]:
    """The parameters of a notebook: what its open cell (`settings`) and its collapsed one (`parameters`) assign.

    Papermill adds a batch's values below the latter, so that they replace values of both.
    """
    cells = read_json(path, what="notebook").get("cells", [])
    both = {"settings", "parameters"}
    tagged = ["".join(cell["source"]) for cell in cells if both & {*cell.get("metadata", {}).get("tags", [])}]
    return tuple(re.findall(r"^(\w+) = ", "\n".join(tagged), flags=re.MULTILINE))


def title(path: Path) -> str:
    """A notebook's first line, which asks its question: "04 · Which plan trains fastest, …?"."""
    cells = read_json(path, what="notebook").get("cells", [])
    text = "".join(cells[0]["source"]) if cells else ""
    return text.partition("\n")[0].lstrip("# ").strip() or path.stem


def _code(path: Path) -> str:
    cells = read_json(path, what="notebook").get("cells", [])
    return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
