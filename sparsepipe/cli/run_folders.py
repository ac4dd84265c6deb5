"""Where a run lies that the command line names: at its folder, or by its name in runs/."""

from pathlib import Path

RUNS = Path("runs")  # where runs are looked for by name


def run_folder(given: Path) -> Path:
    """Return the folder of a run that is named by it, or by its name in runs/; as it was given where there is none."""
    named = RUNS / given  # of an absolute path that itself
    return given if _is_run(given) or not _is_run(named) else named


def _is_run(folder: Path) -> bool:
    return (folder / "plan.json").exists()
