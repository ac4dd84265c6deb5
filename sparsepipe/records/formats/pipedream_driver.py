"""The driver yml of PipeDream and SparsePipe: what to train, how, by which conf json, and on which GPUs of which hosts.

    'module': 'models.vgg16.gpus=4'                               the network's name is its second part
    'config_file': 'models/vgg16/gpus=4/hybrid_conf.json'         alongside the file, or alongside the folder that it is
    in 'data_dir': 'data'
    'model_type': 'image_classification'                          Minkowski, point_cloud, translation
    'machines': ['server0:0', 'server0:1', 'server1:0']           a rank each
    'batch_size': 64                                              learning_rate, weight_decay, epochs, voxel_size, …

Learning-rate policies are PipeDream's: a tenth every 30 epochs; a polynomial of power 2; 0.97 over all epochs. Ours
continues within an epoch where theirs changes between epochs.
Source: the drivers and training scripts of PipeDream's and SparsePipe's runtimes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...util.io.fields import read_yaml, shown
from ...util.io.files import expanded
from ...util.io.functions import is_function
from ...util.text.numbers import number_of
from ...values.cluster import Cluster
from ...values.plan import Plan
from .clusters.detection import hosts_of_machines
from .clusters.slurm import Host, Unsaid, cluster_of_hosts
from .pipedream_conf import MEANT, MODEL_TYPES, POINTS, POLICIES, WITHOUT_MEANING, checked_values


@dataclass(frozen=True)
class DriverFile:
    """A driver file: its values by key, and the hosts of `machines`."""

    path: Path
    values: Mapping[str, Any]
    hosts: tuple[Host, ...]

    @classmethod
    def load(cls, path: Path | str) -> "DriverFile":
        """Read a driver file. Raises InputError in one line for keys and values that are none."""
        path = expanded(path)
        document = read_yaml(path, what="driver file")
        if not isinstance(document, Mapping) or "machines" not in document:
            raise InputError("driver.no_machines", f"{path}: expected a driver file with machines: ['host:gpu', …]")
        hosts = hosts_of_machines(path, document)  # which looks at all keys
        return cls(path, checked_values(document), hosts)

    @property
    def model(self) -> str:
        """The network that `module` and `model_type` mean. Raises InputError if there is none of that name."""
        module, kind = self._value("module"), self._value("model_type")
        parts = module.split(".")
        name = parts[1] if len(parts) > 1 and parts[0] == "models" else parts[0]
        of_kind = MODEL_TYPES[kind]
        for pattern in of_kind.names:
            if (model_name := pattern.format(name)) in of_kind.networks:
                return model_name
        raise InputError(
            "driver.model_unknown",
            f"{self.path}: module {shown(module)} of model_type {kind} is not a known network; add --model M "
            "(`sparsepipe models` lists the networks)",
        )

    @property
    def config_file(self) -> Path:
        """The conf json. Raises InputError if it is not near."""
        if path := self._near("config_file"):
            return path
        raise InputError(
            "driver.conf_missing",
            f"{self.path}: config_file {shown(self._value('config_file'))} was not found beside this file, in the "
            "folder above or in the current folder; add it, or give the conf json itself",
        )

    @property
    def data(self) -> str:
        """The data's folder if it is near, else what `data_dir` says, which may be a manifest's name.

        Raises InputError for a function: a file that somebody sent must not name code that is run.
        """
        data_name = str(self._near("data_dir") or self._value("data_dir"))
        if is_function(data_name):
            raise InputError(
                "driver.data_is_function",
                f"{self.path}: data_dir {shown(data_name)} names a function, expected a folder or a data set; to run "
                "this function, review its code and pass it as --data",
            )
        return data_name

    @property
    def folder(self) -> Path | None:
        """The folder of its runs, each in a folder of its own."""
        return expanded(self.values["log_directory"]) if "log_directory" in self.values else None

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the run by the names that RunConfig has for them."""
        same = ("batch_size", "learning_rate", "weight_decay", "epochs", "voxel_size")
        settings_found = {key: self.values[key] for key in same if key in self.values}
        if kind := self.values.get("model_type"):
            settings_found |= MODEL_TYPES[kind].settings
        if policy := self.values.get("learning_rate_policy"):
            settings_found |= {"decay_epochs": float(settings_found.get("epochs", 1)), **POLICIES[policy]}
        if "sample_ratio" in self.values:
            settings_found["num_points"] = max(1, round(POINTS * self.values["sample_ratio"]))
        return settings_found

    @property
    def without_meaning(self) -> tuple[str, ...]:
        """A line for each key that is there and means nothing here: why."""
        return tuple(f"{key} is ignored: {WITHOUT_MEANING[key]}" for key in self.values if key not in MEANT)

    def cluster(self) -> Cluster:
        return cluster_of_hosts(self.hosts, Unsaid())

    def planned(self, plan: Plan) -> Plan:
        """The plan of its conf json as the file asks for it. Raises InputError if that is for more ranks."""
        count = sum(host.num_devices for host in self.hosts)
        if len(plan.ranks) > count:
            raise InputError(
                "driver.rank_count",
                f"{self.path}: machines lists {number_of(count, 'GPU')}, but {self.values.get('config_file')} is for "
                f"{number_of(len(plan.ranks), 'rank')}; list the same number of GPUs",
            )
        if self.values.get("no_input_pipelining"):
            plan = plan.with_schedule("sequential")
        if self.values.get("recompute"):
            plan = replace(plan, stages=tuple(replace(stage, recompute=True) for stage in plan.stages))
        return plan

    def _near(self, key: str) -> Path | None:
        """Resolve a path in the file: next to the file, next to its folder (driver_configs lies in that), or from
        here.
        """
        for folder in (self.path.parent, self.path.parent / "..", Path()):
            try:
                if (path := Path(folder, self._value(key))).exists():
                    return path
            except (OSError, ValueError):  # a name that no file can have
                continue
        return None

    def _value(self, key: str) -> Any:
        if key not in self.values:
            raise InputError("driver.key_missing", f"{self.path}: is not a driver file: {key} is missing")
        return self.values[key]


def is_driver_file(path: Path) -> bool:
    """Return whether a path given for a plan is of a driver file by its name."""
    return path.suffix in (".yml", ".yaml")
