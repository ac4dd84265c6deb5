"""Where notebooks meet: the data they all look at, the profiles they leave for each other, the figures they export."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from .. import data
from ..cluster import Cluster
from ..errors import InputError
from ..fields import MOST_DEVICES, integer, number
from ..files import write_atomic
from ..plan import Plan
from ..plots import NoPicture, export, live
from ..plots.export import described
from ..plots.theme import doubted
from ..profile import Profile
from ..profiler.measure import profile_model
from ..provenance import Provenance, in_few_words
from ..record import RunRecord
from .averaging import local_link
from .report import report


@dataclass(frozen=True)
class Workplace:
    """A folder with `work/` (data, profiles, plans), `runs/` (records) and the figures beside them.

    What is there is used, and said aloud, where it was made under the same settings; what is not is made.
    """

    root: Path
    figures: Path
    source: str  # the data set: a folder in ModelNet's layout, or a manifest's name
    voxel_size: float
    batch_size: int
    num_points: int = 1024
    engine: str = "auto"
    threads: int = 1  # of each process: a core is a device here
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("batch_size", "num_points", "threads"):
            integer(getattr(self, name), name, least=1)
        integer(self.seed, "seed")
        if not number(self.voxel_size, "voxel_size"):
            raise InputError("voxel_size = 0: expected a share of the longest side, or metres, above 0")

    @classmethod
    def open(
        cls,
        root: str | Path = "",
        *,
        data: str = "",
        figures: str | Path = "",
        shapes_per_class: int = 30,
        seed: int = 0,
        **settings: Any,
    ) -> "Workplace":
        """Find the folder (the checkout's, or the current one, when not given) and the data.

        Without `data`, seeded shapes are written as OFF meshes: `shapes_per_class` to train on, a third of it to test.
        Raises InputError for a folder that is none.
        """
        place = Path(root) if root else _checkout() or Path.cwd()
        place = place.resolve()
        source = data
        if not source:
            from ..data.shapes import make_shapes  # here: it brings trimesh, which other data need not wait for

            integer(shapes_per_class, "shapes_per_class", least=1)
            num_test = max(1, shapes_per_class // 3)
            folder = place / "work" / "data" / f"shapes-{shapes_per_class}-{num_test}-seed{seed}"
            source = str(make_shapes(folder, num_train=shapes_per_class, num_test=num_test, seed=seed))
            _say(f"no data given: synthetic shapes in {folder}")
        elif Path(data).exists():
            source = str(Path(data).resolve())
        return cls(place, Path(figures).resolve() if figures else place / "figures", source, seed=seed, **settings)

    def dataset(self, split: str, *, voxel_size: float | None = None) -> data.VoxelDataset:
        """One split of the data, at this workplace's voxel size unless told another."""
        size = self.voxel_size if voxel_size is None else voxel_size
        return data.load(self.source, split=split, voxel_size=size, num_points=self.num_points, seed=self.seed)

    def voxels_of_a_sample(self, voxel_size: float, *, samples: int = 16) -> float:
        """Mean active voxels of one sample at a voxel size, counted on a few spread over the training split."""
        dataset = self.dataset("train", voxel_size=voxel_size)
        step = max(1, len(dataset) // samples)
        some = tuple(range(0, len(dataset), step))[:samples]
        return len(dataset.batch(some).coordinates) / len(some)

    def noted(self, text: str = "") -> str:
        """A figure's note: which data it is about ("synthetic shapes" where they were generated), and `text`."""
        dataset = self.dataset("train")
        name = "synthetic shapes" if dataset.synthetic else dataset.folder.name
        return f"{name} · {text}" if text else name

    def measure(self, model: str, *, repeats: int | None = None, beside: int = 0) -> Profile:
        """Profile `model` on this machine now, and keep it for the notebooks that follow.

        `beside`: with so many further processes at the same work.
        """
        found = profile_model(
            model,
            self.source,
            voxel_size=self.voxel_size,
            batch_size=self.batch_size,
            num_points=self.num_points,
            engine=self.engine,
            repeats=repeats,
            threads=self.threads,
            seed=self.seed,
            beside=beside,
            progress=_say,
        )
        path = found.save(self._profile_path(model, beside))
        _say(f"profile of {model} measured now, kept as {self._shown(path)}")
        self.cluster(found, anew=True)
        return _warned_of(found)

    def profile(self, model: str, *, beside: int = 0) -> Profile:
        """The profile of `model` that an earlier notebook kept, else one measured now."""
        path = self._profile_path(model, beside)
        if not path.exists():
            return self.measure(model, beside=beside)
        _say(f"profile of {model} from {self._shown(path)}")
        return _warned_of(Profile.load(path))

    def cluster(self, profile: Profile, *, num_devices: int = 2, anew: bool = False) -> Cluster:
        """This machine as planners see it: each core a device, loopback between them (`averaging.local_link`).

        The link was measured with the profile, and is kept beside it, in work/clusters/. It is measured where no such
        file is there, or `anew`: all who plan with this profile plan with this link. Which of the two it was is said.
        Raises InputError for a file that is no cluster of one link, and for a count that is none.
        """
        integer(num_devices, "num_devices", least=1, most=MOST_DEVICES)
        path, kind = self.root / "work" / "clusters" / f"loopback-{profile.digest}.toml", profile.device_types[0]
        if anew or not path.exists():
            write_atomic(path, Cluster.uniform(2, device_type=kind, link=local_link()).to_toml())
            told = f"measured now, kept as {self._shown(path)}"
        else:
            told = f"from {self._shown(path)}"
        link = Cluster.load(path).network
        _say(f"link between processes: {link.bandwidth / 1e9:.3g} GB/s, {link.latency * 1e6:.3g} µs, {told}")
        return Cluster.uniform(num_devices, device_type=kind, link=link)

    def origin(
        self,
        profile: Profile | Sequence[Profile] | None = None,
        cluster: Cluster | Sequence[Cluster] | None = None,
        plans: Iterable[Plan] = (),
        runs: Iterable[RunRecord] = (),
        *,
        warnings: Iterable[str] = (),
        **settings: Any,
    ) -> Provenance:
        """What a figure of this workplace rests on; `settings` are more than those of the workplace itself."""
        own = ("voxel_size", "batch_size", "num_points", "engine", "threads", "seed")
        told = {name: getattr(self, name) for name in own} | settings
        data = self.dataset("train").origin
        return Provenance.of(profile, cluster, plans, told, runs, warnings=warnings, data=data)

    def export(self, name: str, figure: go.Figure, table: pd.DataFrame, origin: Any) -> go.Figure:
        """Write a figure and all that belongs to it below `figures`; returns it as a cell shows it.

        Where no picture can be drawn, one line says so, and the notebook goes on with the figure it shows. Raises
        InputError where the folder cannot be written to.
        """
        rests_on = described(figure, origin)
        for text in rests_on.doubts:
            report(warning=text)
        try:
            paths = export(figure, self.figures / name, table=table, origin=origin)
            _say(f"{name}: {', '.join(path.suffix[1:] for path in paths)} in {self._shown(self.figures)}")
        except NoPicture as error:
            _say(f"not drawn: {error}")
            report(not_drawn=name, why=str(error))
        return live(doubted(figure, rests_on.doubts))

    def _profile_path(self, model: str, beside: int) -> Path:
        settings = [
            self.source,
            self.voxel_size,
            self.batch_size,
            self.num_points,
            self.engine,
            self.threads,
            self.seed,
            beside,
        ]
        return self.root / "work" / "profiles" / f"{model}-{digest(settings)}.json"

    def _shown(self, path: Path) -> str:
        return str(path.relative_to(self.root)) if path.is_relative_to(self.root) else str(path)


def digest(settings: Sequence[Any]) -> str:
    """A short name for settings: the same ones give the same name."""
    return hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:10]


def _checkout() -> Path | None:
    """The folder of the project's checkout, where this code runs from one."""
    folder = Path(__file__).resolve().parents[2]
    return folder if (folder / "pyproject.toml").exists() and (folder / "notebooks").is_dir() else None


def _warned_of(found: Profile) -> Profile:
    for text in found.warnings:
        _say(f"warning: {text}")
        report(warning=in_few_words(text))
    return found


def _say(line: str) -> None:
    print(line, flush=True)
