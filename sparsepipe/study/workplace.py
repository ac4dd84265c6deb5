"""Where notebooks meet on disk: data, the profiles and links that they leave for each other, runs, figures."""

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from .. import data
from ..data.folder import find, open_folder
from ..launching.run_folders import new_folder
from ..records import RunRecord
from ..records.provenance import Provenance, in_few_words
from ..util.io.fields import MOST_DEVICES, integer
from ..util.io.files import expanded, write_atomic
from ..values.cluster import Cluster, Link
from ..values.plan import Plan
from ..values.profile import Profile
from ..views.plots import NoPicture, Paper, export
from ..views.plots.export import as_exported, described
from ..views.plots.theme import resting_on
from ..views.values import link_text
from .cached_runs import digest
from .contention import local_link
from .executed import report


@dataclass(frozen=True)
class Workplace:
    """Manage a folder with `work/` (data, profiles, links), `runs/` (records) and the figures next to them.

    It provides paths, reads existing files, and prints which ones it uses. It neither measures, plans nor trains: the
    cells of a notebook call `profile_model`, `partition`, `simulate` and `launch` themselves.
    """

    root: Path
    figures: Path
    source: str  # the data set: a folder in any layout that `data.load` reads, or a manifest's name
    paper: Paper = field(default_factory=Paper)  # the width, font, … that all figures are exported with

    @classmethod
    def open(
        cls,
        root: str | Path = "",
        *,
        figures: str | Path = "",
        data: str = "",
        shapes_per_class: int = 30,
        seed: int = 0,
        paper: Paper | None = None,
    ) -> "Workplace":
        """Open the folder and the data. Default: the folder of the checkout, or the current one.

        Without `data`, seeded shapes are written as OFF meshes: `shapes_per_class` for training, a third of it for
        testing. `paper` is the paper of exported figures. Default: that of the batch that runs the notebook
        (`Paper.asked`). Raises InputError for a path that is no folder.
        """
        root_path = expanded(root) if root else checkout() or Path.cwd()
        root_path = root_path.resolve()
        source = data
        if not source:
            from ..data.shapes import make_shapes  # here: it brings trimesh, which other data need not wait for

            integer(seed, "seed")
            integer(shapes_per_class, "shapes_per_class", least=1)
            num_test = max(1, shapes_per_class // 3)
            folder = root_path / "work" / "data" / f"shapes-{shapes_per_class}-{num_test}-seed{seed}"
            source = str(make_shapes(folder, num_train=shapes_per_class, num_test=num_test, seed=seed))
            _say(f"no data given; using synthetic shapes in {folder}")
        elif expanded(data).exists():
            source = str(expanded(data).resolve())
        place_of_figures = expanded(figures).resolve() if figures else root_path / "figures"
        return cls(root_path, place_of_figures, source, paper or Paper.asked())

    @property
    def runs(self) -> Path:
        """Folder of run directories."""
        return self.root / "runs"

    def new_run(self, name: str) -> Path:
        """Return a new folder in `runs` for a run: NAME-004 after NAME-003."""
        return new_folder(self.runs, name)

    def profile_path(
        self,
        model: str,
        *,
        voxel_size: float,
        batch_size: int,
        num_points: int | str | None,
        engine: str,
        threads: int,
        seed: int,
        beside: int = 0,
    ) -> Path:
        """Path of the profile of `model` on this data under these settings."""
        settings = [self.source, voxel_size, batch_size, num_points, engine, threads, seed, beside]
        return self.root / "work" / "profiles" / f"{model}-{digest(settings)}.json"

    def plans(self, model: str) -> Path:
        """Folder of saved plans for `model`."""
        return self.root / "work" / "plans" / re.sub(r"[^A-Za-z0-9._-]+", "-", model)

    def saved_plans(self, model: str) -> dict[str, Plan]:
        """Return the saved plans for `model` by name. Raises InputError for a malformed file."""
        return {path.stem: Plan.load(path) for path in sorted(self.plans(model).glob("*.json"))}

    def profile(self, path: Path) -> Profile:
        """Read a saved profile, and print its name and warnings. Raises InputError if there is none."""
        found = Profile.load(path)
        _say(f"profile of {found.origin.get('model', path.stem)}: {self._shown(path)}")
        for text in found.warnings:
            _say(f"warning: {text}")
            report(warning=in_few_words(text))
        return found

    def beside(self, num_devices: int, *, threads: int = 1) -> int:
        """Return the number of other processes that run at the same time on this machine, limited by its cores.

        Raises InputError for a number below 1.
        """
        integer(num_devices, "num_devices", least=1, most=MOST_DEVICES)
        return max(1, min(num_devices, len(os.sched_getaffinity(0)) // threads)) - 1

    def link(self, profile: Profile, *, force: bool = False) -> Link:
        """Return the link between two processes of this machine, as measured with a profile.

        The link is kept in work/clusters/ under the profile's digest, so that all plans from this profile use the same
        one. It is measured if no such file exists, or with `force`. A line reports which. Raises InputError for a file
        that is not a cluster with one link.
        """
        path = self.root / "work" / "clusters" / f"loopback-{profile.digest}.toml"
        if force or not path.exists():
            measured = Cluster.uniform(2, device_type=profile.device_types[0], link=local_link())
            write_atomic(path, measured.to_toml())
            text = f"measured now, saved as {self._shown(path)}"
        else:
            text = f"from {self._shown(path)}"
        link = Cluster.load(path).network
        _say(f"link between processes: {link_text(link)}, {text}")
        return link

    def noted(self, text: str = "") -> str:
        """Return the note of a figure: the name of the data ("synthetic shapes" if generated), and `text`."""
        folder = open_folder(find(self.source))
        name = "synthetic shapes" if folder.synthetic else folder.name
        return f"{name} · {text}" if text else name

    def origin(
        self,
        profile: Profile | Sequence[Profile] | None = None,
        cluster: Cluster | Sequence[Cluster] | None = None,
        plans: Iterable[Plan] = (),
        runs: Iterable[RunRecord] = (),
        *,
        voxel_size: float,
        num_points: int | str | None = 1024,
        seed: int = 0,
        timed: bool = True,
        **settings: Any,
    ) -> Provenance:
        """Return the provenance of a figure: values, data under these settings, and further `settings`.

        `timed=False` is for figures without times, which load of the machine does not make unreliable.
        """
        made = {"voxel_size": voxel_size, "num_points": num_points, "seed": seed}
        shapes = data.load(self.source, split="train", voxel_size=voxel_size, num_points=num_points, seed=seed)
        return Provenance.of(profile, cluster, plans, made | settings, runs, data=shapes.origin, timed=timed)

    def export(self, name: str, figure: go.Figure, table: pd.DataFrame, origin: object) -> go.Figure:
        """Write a figure with its table and provenance to `figures`, and return it for display.

        If no picture can be drawn, one line reports it, and the notebook continues. Raises InputError if the folder is
        not writable.
        """
        rests_on = described(figure, origin)
        for text in rests_on.doubts:
            report(warning=text)
        try:
            paths = export(figure, self.figures / name, table=table, origin=origin, paper=self.paper)
            _say(f"{name}: {', '.join(path.suffix[1:] for path in paths)} in {self._shown(self.figures)}")
        except NoPicture as error:
            _say(f"not drawn: {error}")
            report(not_drawn=name, why=str(error))
        return as_exported(resting_on(figure, rests_on))

    def _shown(self, path: Path) -> str:
        return str(path.relative_to(self.root)) if path.is_relative_to(self.root) else str(path)


def checkout() -> Path | None:
    """The folder of the project's checkout, if this code runs from one."""
    folder = Path(__file__).resolve().parents[2]
    return folder if (folder / "pyproject.toml").exists() and (folder / "notebooks").is_dir() else None


def _say(line: str) -> None:
    print(line, flush=True)
