"""Write the page of all settings, from the tables that hold them: `python scripts/settings.py`."""

from collections.abc import Iterator
from dataclasses import MISSING
from pathlib import Path

from sparsepipe.planning import PLANNERS, PlanSettings
from sparsepipe.planning.cost_draws import DrawSettings
from sparsepipe.planning.simulator import SimulationSettings
from sparsepipe.runtime.config import PARTS, ProfileConfig
from sparsepipe.util.io.settings import rows

PAGE = Path(__file__).resolve().parent.parent / "notebooks" / "background" / "settings.md"
_HEAD = """# Settings

Settings of profiling, planning and training, with their names in Python and their command-line options. This page is
written by `python scripts/settings.py`, from the tables that check the values.
"""


def page() -> str:
    """Return the page as Markdown."""
    groups = {f"Training: {name} (`sparsepipe train`)": part for name, part in PARTS.items()}
    groups |= {"Profiling (`sparsepipe profile`)": ProfileConfig, "Planning (`sparsepipe plan`)": PlanSettings}
    groups |= {"Uncertain costs (`sparsepipe plan --regret`, `--robust`)": DrawSettings}
    groups |= {"Simulation (`sparsepipe simulate`)": SimulationSettings}
    groups |= {f"Planner `{name}`": planner for name, planner in PLANNERS.items() if rows(planner)}
    return "\n".join([_HEAD, *(line for title, group in groups.items() for line in _section(title, group))])


def _section(title: str, group: type) -> Iterator[str]:
    yield from (f"## {title}", "", (group.__doc__ or "").partition("\n")[0], "")
    yield from ("| setting | option | meaning | values | default |", "|---|---|---|---|---|")
    for row in rows(group).values():
        default = "must be given" if row.default is MISSING else row.default_text or str(row.default)
        option = f"`{row.option}`" if row.option else ""
        cells = (f"`{row.name}`", option, row.help, str(row.kind), default)
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
    yield ""


if __name__ == "__main__":
    PAGE.write_text(page())
    print(PAGE)
