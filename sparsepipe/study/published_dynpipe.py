"""What DynPipe published, as values that figures draw: its logs where they are, and the numbers in its scripts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from ..data.folder import place_of
from ..data.manifests import get_manifest, manifests_folder
from ..errors import InputError
from ..records.formats.dynpipe import DynPipeLog, LoggedIteration, read_curve, read_log
from ..util.io.fields import number, read_yaml, shown
from ..views.plots.system_bars import SystemBar

MANIFEST = "dynpipe-logs"
_PICTURES = "runtime_bert/pic"
_RUNS = {  # of figure 12: 13 to 15 epochs of VGG16 on two GPUs, an intruder on one of them now and then
    "PipeDream": "dyn/data/static_pipedream_1500.txt",
    "DynPipe-Re": "dyn/data/dynamic_restart_1500.txt",
    "DynPipe": "dyn/data/dynamic_dynpipe_1500.txt",
}
_LEARNING = {  # of figure 13b: an intruder all along
    "PipeDream": "dyn_acc/data/2_use_pipedream_43.txt",
    "DynPipe": "dyn_acc/data/1_use_dynamic_43.txt",
}
_TASKS = {  # of figure 9, without intruders
    "VGG16, CIFAR-10": "vgg16_cifar10",
    "ResNet50, CIFAR-10": "resnet50_cifar10",
    "VGG16, ImageNet-64": "vgg16_image64",
    "ResNet50, ImageNet-64": "resnet50_image64",
    "BERT, BookCorpus (loss)": "bert_bookcorpus",
}
_SYSTEMS = ("PipeDream", "GPipe", "DynPipe")  # as in the other figures, so that colours agree
_VARIANTS = {"never", "epoch", "live"}  # of runs of ours that are like PipeDream, DynPipe-Re and DynPipe
_SLOWER, _HEAVY = 1.15, 2.0  # times an undisturbed iteration: an epoch is disturbed from there on, and heavily so


@dataclass(frozen=True)
class PublishedDynPipe:
    """The folder of their logs; None if it is missing, and then what is of logs is empty."""

    folder: Path | None

    @classmethod
    def find(cls) -> "PublishedDynPipe":
        """Look where data are looked for. That nothing is there is said in one line, with what to do."""
        folder = place_of(get_manifest(MANIFEST))
        if folder is None:
            hint = f"sparsepipe data fetch {MANIFEST}, or name their folder in SPARSEPIPE_DATA"
            print(f"DynPipe's logs are not here: {hint}")
        return cls(folder)

    def runs(self) -> Mapping[str, DynPipeLog]:
        """The logs of figure 12, by system."""
        return self._logs(_RUNS)

    def learning(self) -> Mapping[str, Sequence[tuple[float, float]]]:
        """Top-1 accuracy (%) by hours under an intruder, of figure 13b, by system."""
        return {name: log.validation for name, log in self._logs(_LEARNING).items()}

    def tasks(self) -> Mapping[str, Mapping[str, Sequence[tuple[float, float]]]]:
        """Accuracy (%) or loss by hours, of figure 9: task → system → curve."""
        if self.folder is None:
            return {}
        base = self.folder / _PICTURES / "acc_loss_pic" / "data"
        return {
            task: {system: read_curve(_of_system(base / folder, system)) for system in _SYSTEMS}
            for task, folder in _TASKS.items()
        }

    def _logs(self, files: Mapping[str, str]) -> Mapping[str, DynPipeLog]:
        if self.folder is None:
            return {}
        return {name: read_log(self.folder / _PICTURES / path) for name, path in files.items()}


def _of_system(folder: Path, system: str) -> Path:
    """A curve's file is called such as 1_DynPipe_vgg16_cifar10. Raises InputError if there is none."""
    logs = sorted(folder.glob(f"?_{system}_*"))
    if not logs:
        raise InputError(
            "dynpipe_log.curve_missing",
            f"{folder}: has no curve of {system}; fetch the logs again: sparsepipe data fetch {MANIFEST}",
        )
    return logs[0]


def disturbed_epochs(still: DynPipeLog) -> Mapping[str, tuple[int, ...]]:
    """Return the epochs that were disturbed as a whole, lightly and heavily, by the log of a run that never moved.

    Whole: but for one in twenty of its iterations all take longer than undisturbed ones. Heavily: twice as long.
    """
    by_epoch: dict[int, list[float]] = {}
    for iteration in still.iterations:
        by_epoch.setdefault(iteration.epoch, []).append(iteration.seconds)
    usual = min(fmean(seconds) for seconds in by_epoch.values())
    found: dict[str, list[int]] = {"light": [], "heavy": []}
    for epoch, seconds in by_epoch.items():
        if sorted(seconds)[len(seconds) // 20] > _SLOWER * usual:
            found["heavy" if fmean(seconds) > _HEAVY * usual else "light"].append(epoch)
    return {name: tuple(epochs) for name, epochs in found.items()}


def disturbed_bars(runs: Mapping[str, DynPipeLog]) -> list[SystemBar]:
    """Return mean seconds of an iteration in epochs disturbed lightly and heavily, with the least and most epoch."""
    if not runs:
        return []
    return [
        _bar(f"{load} workload", system, [iteration for iteration in log.iterations if iteration.epoch in epochs])
        for load, epochs in disturbed_epochs(next(iter(runs.values()))).items()
        if epochs
        for system, log in runs.items()
    ]


def _bar(case: str, system: str, iterations: Sequence[LoggedIteration]) -> SystemBar:
    epochs = [
        [iteration.seconds for iteration in iterations if iteration.epoch == epoch]
        for epoch in {iteration.epoch for iteration in iterations}
    ]
    means = [fmean(seconds) for seconds in epochs]
    return SystemBar(case, system, fmean(iteration.seconds for iteration in iterations), "log", min(means), max(means))


def typed_numbers(which: str) -> list[SystemBar]:
    """Return the numbers that a plotting script of theirs holds: throughput, utilization or iteration_seconds.

    Raises InputError if the file of them holds something else.
    """
    path = manifests_folder().parent / "published" / "dynpipe.yaml"
    document = read_yaml(path, what="file of published numbers")
    cases = document.get(which) if isinstance(document, dict) else None
    if not isinstance(cases, dict) or not all(isinstance(systems, dict) for systems in cases.values()):
        raise InputError(
            "dynpipe_log.cases_malformed", f"{path}: {which} is {shown(cases)}, expected a number per case and system"
        )
    words = {"light": "light workload", "heavy": "heavy workload"}
    return [
        SystemBar(words.get(case) or case, system, number(value, f"{path}: {which}: {case}"))
        for case, systems in cases.items()
        for system, value in systems.items()
    ]


def light_text(light: Sequence[str], heavy: Sequence[str]) -> str:
    """Say which variants ran alongside the light intruder, and why those alone if more ran alongside the heavy one."""
    lightly = " and ".join(filter(None, [", ".join(light[:-1]), *light[-1:]]))
    names_text = f"with the light one, {lightly} ran, once each"
    if {*light} < {*heavy}:
        why = ", which stand for the three systems in DynPipe's figure 13a" if {*light} == _VARIANTS else ""
        return f"{names_text}{why}; the others with the heavy one alone"
    return names_text
