"""The verbs of the command line that read plans and profiles from their files: show, diff and export."""

import argparse
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import InputError, one_line
from ..networks import is_table, network
from ..records.formats.pipedream_conf import export_plan
from ..records.formats.plan_files import check_plan
from ..records.formats.runtime_settings import SETTINGS, runtime_settings
from ..records.formats.torch_pipelining import ScriptTraining, training_script, write_stage_modules
from ..runtime.config import BUDGETS, RunConfig
from ..runtime.workloads.resolved import resolve
from ..util.io.fields import json_object
from ..util.io.files import expanded
from ..util.io.functions import UserFunction, is_function
from ..util.text.numbers import duration, scaled_bytes
from ..values.cluster import Cluster
from ..values.plan import Plan
from ..values.profile import Profile
from ..views import text
from .options import Parser, count, flags, given, of_run, plan_argument, setting_options
from .output import Answer, table
from .profile_and_cluster import load_profile, profile_and_cluster

_TORCH = "torch"
_OF_TORCH = ("model_args", "data", "data_args", "loss", "loss_args", "batch_size")  # settings of a script for torch
_CLASSES = 10  # of a network whose stages are written, unless --classes says
_ALL_IN = "--json has all"


def _plan_file(verb: Parser) -> None:
    verb.add_argument("plan", type=expanded, metavar="PLAN", help="plan's file")


def _diff_options(verb: Parser) -> None:
    verb.add_argument("plan", type=expanded, metavar="PLAN", help="plan to compare from")
    verb.add_argument("other", type=expanded, metavar="OTHER", help="plan to compare to")


def _export_options(verb: Parser) -> None:
    plan_argument(verb)
    verb.add_argument(
        "-p", "--profile", metavar="FILE", help="profile of the model, for gpus=N.txt and --to (default: none)"
    )
    verb.add_argument(
        *flags("--model"), metavar="M", help="network of the plan, for stages as Python modules (default: not written)"
    )
    verb.add_argument("--classes", type=count, metavar="N", help=f"classes of that network (default: {_CLASSES})")
    verb.add_argument(
        "--to",
        choices=(_TORCH, *SETTINGS),
        metavar="RUNTIME",
        help=f"runtime: {', '.join((_TORCH, *SETTINGS))} (default: PipeDream's files)",
    )
    of_script = verb.add_argument_group("options of --to torch")
    setting_options(of_script, of_run(*_OF_TORCH), defaults=dict.fromkeys(_OF_TORCH, "the profile's"))
    verb.add_argument(*flags("--out"), type=expanded, required=True, metavar="DIR", help="folder of the written files")


def _profile_file(verb: Parser) -> None:
    verb.add_argument("file", metavar="FILE", help="profile: JSON, graph.txt, or a name in data_manifests/profiles")
    verb.add_argument(
        "--device-type", metavar="NAME", help="device type whose layers are listed (default: the profile's first)"
    )


def plan_show(options: argparse.Namespace) -> Answer:
    plan = Plan.load(options.plan)
    return Answer(plan.to_json(), text(plan, all_in=_ALL_IN))


def plan_diff(options: argparse.Namespace) -> Answer:
    """Layers and ranks that change their stage, and each stage's numbers in both plans."""
    difference = Plan.load(options.plan).diff(Plan.load(options.other))
    return Answer(difference.to_json(), text(difference, all_in=_ALL_IN))


def profile_show(options: argparse.Namespace) -> Answer:
    """A profile's device types, and each layer's costs on one of them at the size of a minibatch."""
    profile = load_profile(options.file)
    name = options.device_type or profile.device_types[0]
    if name not in profile.device_types:
        raise InputError(
            "profile.no_device_type",
            f"--device-type {name}: {options.file} has {', '.join(profile.device_types)}; give one of them",
        )
    costs = [profile.cost(k, name) for k in range(len(profile.graph.layers))]
    layers = [
        {
            "layer": layer.id,
            "forward_seconds": cost.forward,
            "backward_seconds": cost.backward,
            "output_bytes": cost.output_bytes,
            "parameter_bytes": layer.parameter_bytes,
        }
        for layer, cost in zip(profile.graph.layers, costs, strict=True)
    ]
    rows = [("layer", "forward", "backward", "output", "parameters")]
    rows += [
        (
            one_line(layer.id),
            duration(cost.forward),
            duration(cost.backward),
            scaled_bytes(cost.output_bytes),
            scaled_bytes(layer.parameter_bytes),
        )
        for layer, cost in zip(profile.graph.layers, costs, strict=True)
    ]
    document = {"device_types": list(profile.device_types), profile.size_unit: profile.size(), "device_type": name}
    document |= {"layers": layers, "origin": dict(profile.origin), "warnings": list(profile.warnings)}
    head = f"layers on {one_line(name)} at {profile.size():,.0f} {profile.size_unit}:"
    return Answer(document, "\n".join([text(profile, all_in=_ALL_IN), "", head, table(rows)]))


def export(options: argparse.Namespace) -> Answer:
    """Write a plan as the files of another system. What that cannot express is printed, a line each."""
    of_script = given(options, _OF_TORCH)
    if of_script and options.to in (None, *SETTINGS):
        raise InputError(
            "option.of_target",
            f"--{next(iter(of_script)).replace('_', '-')} requires --to torch: omit it, or give both",
        )
    if options.to:
        return _export_to(options)
    if options.classes is not None and not options.model:
        raise InputError("option.of_model", "--classes requires --model; add that, or omit --classes")
    if options.model and not is_table(options.model):
        raise InputError(
            "export.traced_model",
            f"--model {options.model}: the network is traced from a torch module; export supports only declarative "
            "layer lists",
        )
    chosen = Plan.load(options.plan).one("PipeDream has no files for several")
    written = export_plan(chosen, options.out, profile=Profile.load(options.profile) if options.profile else None)
    if options.model:
        written += write_stage_modules(
            chosen, network(options.model, num_classes=options.classes or _CLASSES), options.out
        )
    return Answer({"files": [str(path) for path in written]}, "\n".join(map(str, written)))


def _export_to(options: argparse.Namespace) -> Answer:
    """Write a plan for another runtime."""
    if options.classes is not None:
        raise InputError("option.of_model", "--classes is for stage modules: omit it, or --to")
    chosen, facts = Plan.load(options.plan), PlanFacts.load(options.plan)
    settings = facts.settings | given(options, ("model", *_OF_TORCH))
    profile = load_profile(options.profile) if options.profile else None
    if profile is None:
        with suppress(InputError):  # a line says that it is unknown
            known = facts.expected(chosen, str(settings.get("model")), cluster=None)
            profile = known[0] if known else None
    graph = profile.graph if profile else None
    batch_size = settings.get("batch_size") or (profile.batch_size if profile else None)
    size = batch_size if isinstance(batch_size, int) else None
    if options.to not in SETTINGS:
        written = training_script(chosen, _training(settings, size), options.out, graph=graph)
    else:
        written = runtime_settings(chosen, options.to, graph=graph, batch_size=size)
    paths = written.save(options.out)
    document = {"files": [str(path) for path in paths], "not_expressed": list(written.lost)}
    return Answer(document, "\n".join([*map(str, paths), *(f"not expressed: {line}" for line in written.lost)]))


def _training(settings: Mapping[str, Any], batch_size: int | None) -> ScriptTraining:
    """Return what a script trains with. Raises InputError for unknown settings, and for data of no function."""
    for name in ("model", "data"):
        if not settings.get(name):
            raise InputError("option.missing", f"the plan names no {name}: give --{name}")
    if batch_size is None:
        raise InputError("option.missing", "the plan names no batch size: give --batch-size")
    if not is_function(data := str(settings["data"])):
        raise InputError(
            "export.data",
            f"--data {data}: a script for torch reads a data set of torch; give --data path/data.py:function",
        )
    if is_table(str(settings["model"])):
        raise InputError(
            "export.table_model",
            f"--model {settings['model']}: torch cuts only torch modules; export without --to",
        )
    from torch.utils.data import DataLoader  # here: it takes seconds

    from ..networks.traced.building import build_module, builder, called_once

    names = ("model", "model_args", "data", "data_args", "loss", "loss_args")
    run = resolve(RunConfig(**{name: settings[name] for name in names if settings.get(name) is not None}))
    facts = run.data.training.facts
    args = json_object(run.config.model_args, "model_args")
    function, arguments = builder(run.config.model, args, facts)
    module = build_module(run.config.model, args, facts, seed=0)
    data_args = json_object(run.config.data_args, "data_args")
    inputs, _ = next(iter(DataLoader(UserFunction.parse(data).load()("train", **data_args), batch_size)))
    loss = run.config.loss or run.data.training.loss
    return ScriptTraining(
        function,
        arguments,
        called_once(module, inputs),
        UserFunction.parse(data),
        data_args,
        UserFunction.parse(loss) if is_function(loss) else loss,
        json_object(run.config.loss_args, "loss_args"),
        batch_size,
    )


_MACHINES = ("profile", "cluster", "server_file", "devices", "bandwidth", "memory")  # options of `plan`
_MINIBATCHES = ("order", "batch_size", *BUDGETS)  # options of `plan`, which `train` takes from it
_FACTS = ("voxel_size", "num_points")  # of the data, which profiles of before have alone


def written_options(options: argparse.Namespace) -> dict[str, dict[str, object]]:
    """Return the options by which `plan` names profile, devices and minibatches, as the plan's file keeps them."""
    named = {name: value for name, value in given(options, _MACHINES).items() if value}
    machines = {name: str(value) if isinstance(value, Path) else value for name, value in named.items()}
    minibatches = given(options, _MINIBATCHES)
    return {"machines": machines, **({"minibatches": minibatches} if minibatches else {})}


@dataclass(frozen=True)
class PlanFacts:
    """The provenance of a plan's file; empty for a file of another system, and for a plan that names none."""

    path: Path
    provenance: Mapping[str, object]

    @classmethod
    def load(cls, path: Path) -> "PlanFacts":
        """Read them. Raises InputError for a file that is no plan."""
        document = check_plan(path)
        facts = document.get("provenance") if isinstance(document, dict) else None
        return cls(path, facts if isinstance(facts, dict) else {})

    @property
    def origin(self) -> Mapping[str, object]:
        """The origin of its profile."""
        profiles = self.provenance.get("profiles")
        first = profiles[0] if isinstance(profiles, list) and len(profiles) == 1 else {}
        origin = first.get("origin") if isinstance(first, dict) else None
        return origin if isinstance(origin, dict) else {}

    @property
    def settings(self) -> dict[str, object]:
        """The settings of a run that its profile was measured with, and the minibatches that it was planned for."""
        minibatches = self.provenance.get("minibatches")
        settings = self._profiled | (minibatches if isinstance(minibatches, dict) else {})
        if any(budget in settings for budget in BUDGETS):
            settings.pop("batch_size", None)  # that of the profile
        return settings

    @property
    def _profiled(self) -> dict[str, object]:
        origin = self.origin
        if isinstance(known := origin.get("settings"), dict):
            return dict(known)
        data = origin.get("data")
        facts = {name: data[name] for name in _FACTS if name in data} if isinstance(data, dict) else {}
        facts |= {name: origin[name] for name in ("model", "batch_size", "model_args", "loss") if name in origin}
        return {name: value for name, value in facts.items() if value is not None}

    def expected(self, plan: Plan, model: str, *, cluster: Path | None) -> tuple[Profile, Cluster] | None:
        """Return the profile and the devices that it was made for; None if it names no files, or another network.

        `cluster`: a file of other devices. Raises InputError if the files are gone or have changed since.
        """
        machines = self.provenance.get("machines")
        if not isinstance(machines, dict) or self.origin.get("model", model) != model:
            return None
        paths = {name: Path(machines[name]) for name in ("cluster", "server_file") if name in machines}
        profile, devices = _of_machines({**machines, **paths})
        profiles = self.provenance.get("profiles")
        if not isinstance(profiles, list) or profile.digest != profiles[0].get("digest"):
            files = ", ".join(map(str, machines.get("profile") or paths.values()))
            raise InputError("plan.profile_changed", f"{files}: changed after {self.path} was planned; plan again")
        if cluster is not None and "profile" in machines:
            profile, devices = _of_machines({"profile": machines["profile"], "cluster": cluster})
        plan.check(profile.graph, devices)
        return profile, devices


def _of_machines(named: Mapping[str, object]) -> tuple[Profile, Cluster]:
    """Return what options of `plan` name, whose others are not given."""
    return profile_and_cluster(argparse.Namespace(**{**dict.fromkeys(_MACHINES), **named}), warn=False)


VERBS: Mapping[str, Callable[[argparse.Namespace], Answer]] = {
    "plan show": plan_show,
    "plan diff": plan_diff,
    "plan export": export,
    "profile show": profile_show,
}
OPTIONS: Mapping[str, tuple[str, Callable[[Parser], None]]] = {
    "plan show": ("show stages, devices, times and memory of a plan", _plan_file),
    "plan diff": ("compare two plans: moved layers, times, memory", _diff_options),
    "plan export": ("write a plan for another runtime, or as stage modules", _export_options),
    "profile show": ("show the cost of every layer of a profile", _profile_file),
}
