"""The verbs of the command line that start runs: train, predict, and import, which makes plans of other systems' files.

Under Slurm a run starts by a script for sbatch.
"""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from ..data.cache import NO_CACHE
from ..data.describing import unread_files
from ..errors import InputError, one_line
from ..launching import LAUNCHERS, LOCAL, SLURM, check_options, default_launcher
from ..launching.local.launch_local import check_port
from ..launching.prepare import check_plan
from ..monitoring.interference.predictor import Predictor
from ..monitoring.launching import launch
from ..monitoring.variants import variant
from ..records import RunRecord
from ..records.formats.clusters import IN_SLURM, load_cluster
from ..records.formats.pipedream_driver import DriverFile, is_driver_file
from ..records.formats.plan_files import load_plan
from ..records.record_files import HOSTS
from ..records.run_record import check_free
from ..runtime import RunConfig
from ..runtime.config import DEVICES, PARTS
from ..runtime.plan_fit import accumulating
from ..runtime.workloads import layer_graph
from ..runtime.workloads.resolved import resolve
from ..util.io.files import expanded, write_atomic
from ..util.io.settings import rows
from ..util.text.numbers import number_of
from ..values.cluster import Cluster
from ..values.plan import Plan
from ..values.profile import Profile
from ..values.replication import parse_rule
from .launches import (
    RUNS,
    check_forward_only,
    check_launcher,
    checkpoint_or_run,
    followed,
    for_slurm,
    left_alone,
    new_run_dir,
    open_sinks,
    run_folder,
    settings_of,
    trained_by,
)
from .options import (
    Parser,
    cluster_file,
    dry_run_option,
    flags,
    given,
    inject_option,
    known_cluster,
    log_option,
    of_run,
    ray_address_option,
    replan_option,
    replication_option,
    run_dir_option,
    setting_options,
    with_values,
)
from .output import Answer, progress_line, warn
from .plan_file_verbs import PlanFacts
from .profile_and_cluster import profile_and_cluster
from .run_file import NAME, completed, is_run_file, read_changes, read_run_file, run_file_text, set_option
from .without_effect import without_effect

# --- options ------------------------------------------------------------------------------------------------------

_OF_PLAN = dict.fromkeys(("model", "data", "voxel_size", "batch_size"), "the plan's")
_READ_FIRST = (
    "Imports the Python files that the run's config.json names as model, data or loss. Read these files first if the "
    "run is not yours"
)


def _train_options(verb: Parser) -> None:
    verb.add_argument(
        "plan",
        type=expanded,
        nargs="?",
        metavar="PLAN|run.toml",
        help="plan, or a run.toml with a plan. Also: files that import reads",
    )
    set_option(verb)
    _launch_options(verb)
    verb.add_argument(
        "--resume",
        type=expanded,
        metavar="RUN",
        help="run to continue from its newest checkpoint. Named by its folder, or by its name in runs/. "
        f"{_READ_FIRST}. Connects to the hosts of its hosts.toml",
    )
    watching = verb.add_argument_group("monitoring", "online repartitioning, stragglers, trackers")
    watching.add_argument(
        *flags("--expect", "--profile"),
        action="append",
        metavar="[TYPE=]FILE",
        help="profile to compare the run with; slower ranks and links are reported (default: the profile that the plan "
        "was made from)",
    )
    replan_option(watching)
    watching.add_argument(
        "--predictor",
        type=expanded,
        metavar="FILE",
        help="predictor for --replan predicted (or epoch), from interference measure --predictor",
    )
    inject_option(watching)
    replication_option(watching)
    log_option(watching)
    for name, group in PARTS.items():
        setting_options(verb.add_argument_group(name, _summary(group)), rows(group).values(), defaults=_OF_PLAN)


def _launch_options(verb: Parser) -> None:
    """Options of the launch, and of the run directory."""
    verb.add_argument(
        *flags("--cluster"),
        type=cluster_file,
        metavar="FILE",
        help="hosts to run on, in rank order (default: this one)",
    )
    verb.add_argument(
        "--launcher",
        choices=(*LAUNCHERS, SLURM),
        help="launcher (default: ssh for other hosts, else local). slurm prints a script for sbatch",
    )
    ray_address_option(verb)
    verb.add_argument("--submit", action="store_true", help="submission of the script by sbatch, for --launcher slurm")
    verb.add_argument(
        "--port",
        type=int,
        help=(
            "loopback port for the ranks' rendezvous (default: a file). Any user of this machine can connect to it: "
            "omit it on a shared machine"
        ),
    )
    verb.add_argument("--detach", action="store_true", help="run in the background; runs attach follows it")
    dry_run_option(verb)
    run_dir_option(verb)


def _summary(group: type) -> str:
    return (group.__doc__ or "").partition("\n")[0].rstrip(".").removeprefix("Configure ")


_PREDICTING = (
    *("model", "data", "model_args", "data_args", "loss", "loss_args", "voxel_size", "batch_size"),
    *("num_points", "task", "features", "collate", "crop", "views", "validation_split", "metrics", "cache"),
)
_COMPUTING = ("engine", "seed", "precision", "float32_layers", "compression")
_RUNNING = ("device", "threads", "shared_memory", "encrypt", "timeout_seconds", "num_workers")


def _predict_options(verb: Parser) -> None:
    verb.add_argument(
        "forward_only",
        type=expanded,
        metavar="RUN|CHECKPOINT",
        help=f"run with trained weights, or a checkpoint's folder. {_READ_FIRST}",
    )
    verb.add_argument(
        "plan", type=expanded, nargs="?", metavar="PLAN", help="plan for inference (default: that of the run)"
    )
    set_option(verb)
    _launch_options(verb)
    log_option(verb)
    for title, names in (("data", _PREDICTING), ("numerics", _COMPUTING), ("processes", _RUNNING)):
        setting_options(
            verb.add_argument_group(title, _summary(PARTS[title])),
            of_run(*names),
            defaults=dict.fromkeys(names, "the run's"),
        )


def _export_options(verb: Parser) -> None:
    verb.add_argument("run", type=expanded, metavar="RUN|CHECKPOINT", help="run, or a checkpoint's folder")
    verb.add_argument(
        *flags("--out"),
        type=expanded,
        required=True,
        metavar="FILE.safetensors",
        help="file, named by the module's own state_dict",
    )


def _import_options(verb: Parser) -> None:
    verb.add_argument(
        "file",
        type=expanded,
        metavar="FILE",
        help="driver yml of PipeDream or SparsePipe, hybrid_conf.json with its gpus=N.txt, or DynPipe's partition",
    )
    setting_options(verb, of_run("model", "data"), defaults=dict.fromkeys(("model", "data"), "the driver's"))
    verb.add_argument(
        *flags("--out"), type=expanded, required=True, metavar="DIR", help="folder of plan.json and run.toml"
    )


def old_run_options(verb: Parser) -> None:
    """The options of `run`, which was `train` and `predict` in one."""
    _train_options(verb)
    verb.add_argument("--forward-only", type=expanded, metavar="CHECKPOINT")


# --- verbs --------------------------------------------------------------------------------------------------------


def train(options: argparse.Namespace) -> Answer:
    """Train what the command line, `--set`, run.toml and the plan say, in this order of precedence."""
    typed = options
    options = completed(options, read_changes(options.set))
    if is_run_file(options.plan):
        values = read_run_file(options.plan)
        options = completed(with_values(options, {"plan": None}), values)
    facts = None
    if options.resume is None and options.plan is not None and not is_driver_file(options.plan):
        facts = PlanFacts.load(options.plan)
        options = completed(options, _suiting(options, facts.settings))
    if typed.launcher is None and options.launcher == SLURM and str(options.cluster) == IN_SLURM:
        options.launcher = None  # this is the job of the script that run.toml asks for
    if options.resume is None:
        options = _without_defaults(options, typed)
    return _launched(with_values(options, {"forward_only": None}), typed, facts)


def _without_defaults(options: argparse.Namespace, typed: argparse.Namespace) -> argparse.Namespace:
    """The options without settings that a file gives as by default: they ask for nothing that could be refused."""
    idle = [
        name
        for name, row in rows(RunConfig).items()
        if getattr(typed, name, None) is None and getattr(options, name, None) == row.default
    ]
    return with_values(options, dict.fromkeys(idle))


# Settings of a plan's network or data, which mean nothing to others.
_DEPENDENT = {
    "model": ("model_args", "freeze"),
    "data": ("data_args", "loss", "loss_args", "num_points", "collate", "crop"),
}


def _suiting(options: argparse.Namespace, settings: Mapping[str, object]) -> dict[str, object]:
    """The settings of a plan without those of its network, or its data, where the options give another one."""
    others = [name for name in _DEPENDENT if getattr(options, name) not in (None, settings.get(name))]
    left_out = {dependent for name in others for dependent in _DEPENDENT[name]}
    return {name: value for name, value in settings.items() if name not in left_out}


def predict(options: argparse.Namespace) -> Answer:
    """Compute outputs for the validation split with the weights of a run, or of a checkpoint."""
    changed = completed(options, read_changes(options.set))
    for_training = ("resume", "expect", "replan", "predictor", "straggler", "replication")
    absent = dict.fromkeys(name for name in for_training if name not in changed)
    return _launched(with_values(changed, absent), options)


def export_run_weights(options: argparse.Namespace) -> Answer:
    """Write the weights of a run's newest checkpoint, of all its stages, as one file."""
    from ..runtime.training_state.initial_weights import export_weights  # here: it brings torch

    path = export_weights(checkpoint_or_run(options.run), options.out)
    return Answer({"file": str(path)}, f"{one_line(path)}: written; module.load_state_dict reads it")


def run(options: argparse.Namespace) -> Answer:
    """Do what `run` did: train, or with --forward-only predict; nothing comes from the plan but the plan."""
    if options.forward_only:
        check_forward_only(options)  # before a driver file says more
        return predict(options)
    changed = completed(options, read_changes(options.set))
    return _launched(changed, options)


def _launched(options: argparse.Namespace, typed: argparse.Namespace, facts: PlanFacts | None = None) -> Answer:
    """Launch what the options say; `facts`: of the plan, if the run is compared with the profile it was made for."""
    options = _with_run_folders(options)
    driver = DriverFile.load(options.plan) if options.plan and is_driver_file(options.plan) else None
    if driver:
        options = filled(options, driver)
    of_driver = driver.cluster() if driver else None
    cluster = load_cluster(known_cluster(named)) if (named := _cluster_file(options)) else of_driver
    launcher = options.launcher or default_launcher(cluster)
    record, folder = _record_and_folder(options, driver)
    config = settings_of(options, before=dict(record.config) if record else None)
    resolved = resolve(config)
    chosen = record.plan if record and not options.plan else load_plan(options.plan, lambda: layer_graph(resolved))
    chosen = accumulating(_as_driver_says(driver, chosen), config.accumulation)
    warn(f"plan: {text}" for text in chosen.warnings)
    warn(without_effect(typed, resolved, chosen))
    if facts is not None and config.freeze and list(config.freeze) != facts.settings.get("freeze"):
        warn(["frozen layers were profiled with gradients: stages with them are faster than planned; profile --freeze"])
    if not options.dry_run:
        warn(unread_files(config.data, lambda _: resolved.data.folder))
    if resolved.is_table and (options.launcher == SLURM or options.dry_run):
        chosen.check(layer_graph(resolved))  # of a module only where its data are is it known
    if options.launcher == SLURM:
        return for_slurm(options, run_dir=folder, plan=chosen, cluster=cluster, gpus=config.device not in _CPU)
    if options.submit:
        raise InputError("option.of_slurm", f"--submit requires --launcher {SLURM}; add that, or omit --submit")
    check_launcher(options, launcher)
    profile, cluster = _expected(options, facts, chosen, cluster, config)
    if options.dry_run:
        _check_launch(options, launcher, folder)
        if resolved.is_table:
            check_plan(
                chosen,
                resolve(config.replace(cache=NO_CACHE)),
                profile=profile,
                cluster=cluster,
                resumes=folder if options.resume else None,
                here=launcher == LOCAL,
                forward_only=options.forward_only is not None,
            )
        return _planned(options, chosen, config, profile, folder=folder, launcher=launcher)
    where = {"port": options.port, "detach": options.detach or None, "replication": options.replication}
    where |= {"replan": options.replan, "tell": progress_line, "predictor": _predictor(options)}
    where |= {"forward_only": options.forward_only, "ray_address": options.ray_address}
    where = {key: value for key, value in where.items() if value is not None}
    where |= {"launcher": launcher, "profile": profile, "cluster": cluster}
    sinks = open_sinks(options)
    done = options.resume is not None and _nothing_left(folder, config)
    job = launch(chosen, resolved, run_dir=folder, resume=options.resume is not None, **where)
    if not options.forward_only:
        text = run_file_text(_resolved(options, folder, job.record.config), name=str(folder / NAME))
        (folder / NAME).write_text(text)  # the supervisor that starts now removes half-written files
    if options.detach:
        return left_alone(job)
    return followed(job, sinks=sinks, nothing_left=done)


def _as_driver_says(driver: DriverFile | None, plan: Plan) -> Plan:
    """Return the plan with the schedule and the recomputation that a driver file asks for."""
    return driver.planned(plan) if driver and plan.replication is None else plan


def _record_and_folder(options: argparse.Namespace, driver: DriverFile | None) -> tuple[RunRecord | None, Path]:
    """The run that is resumed, or whose weights are used, and the folder that is written to. Raises InputError."""
    if options.resume:
        if options.forward_only:
            raise InputError("option.of_training", "--forward-only recomputes all outputs: omit --resume")
        record = RunRecord.load(options.resume)
        if options.run_dir and options.run_dir.resolve() != record.folder.resolve():
            raise InputError(
                "option.run_dir_of_resume",
                f"--out {options.run_dir} with --resume {options.resume}: a resumed run stays in its folder; omit "
                "--out, or copy the folder and resume the copy",
            )
        return record, record.folder
    trained = trained_by(options) if options.forward_only else None
    for name in ("plan", "model", "data"):
        if not getattr(options, name) and trained is None:
            raise InputError("option.missing", f"no {name} given; {_REMEDIES[name]}")
    parent = driver.folder if driver and driver.folder else RUNS
    model = trained.config["model"] if trained and not options.model else options.model
    return trained, options.run_dir or new_run_dir(model, parent)


_REMEDIES = {
    "plan": "use sparsepipe train PLAN, sparsepipe train run.toml, or --resume RUN",
    "model": "the plan does not name it; add --model M",
    "data": "the plan does not name it; add --data D",
}


def _check_launch(options: argparse.Namespace, launcher: str, folder: Path) -> None:
    """Raise InputError for what the launch would refuse; the launch itself checks this when it starts."""
    check_options(launcher, [name for name in ("port", "ray_address") if getattr(options, name) is not None])
    check_port(options.port)
    if options.replan:
        variant(options.replan)
    if options.replication:
        parse_rule(options.replication)
    _predictor(options)
    if not options.resume:
        check_free(folder)


def _planned(
    options: argparse.Namespace,
    plan: Plan,
    config: RunConfig,
    profile: Profile | None,
    *,
    folder: Path,
    launcher: str,
) -> Answer:
    """The answer of --dry-run: the plan, the settings that are not defaults, the launcher and the folder."""
    does = "compute outputs" if options.forward_only else "train"
    lines = [
        f"would {does} under {one_line(options.plan or 'the plan of the run')}, and write to {one_line(folder)}",
        f"launcher: {launcher}, {number_of(len(plan.ranks), 'process')}",
        f"compared with a profile: {'yes' if profile else 'no'}",
        *str(config).splitlines(),
        str(replace(plan, warnings=())),  # printed before
    ]
    document = {"run_dir": str(folder), "launcher": launcher, "compared": profile is not None}
    document |= {"config": config.to_json(), "plan": plan.to_json()}
    return Answer(document, "\n".join(lines))


def _resolved(options: argparse.Namespace, folder: Path, config: Mapping[str, object]) -> dict[str, object]:
    """The values of the run.toml that repeats a run: its plan, all settings, and how it was launched."""
    launched = {name: getattr(options, name) for name in ("launcher", "cluster", "expect", "replan", "predictor")}
    launched |= {name: getattr(options, name) for name in ("replication", "ray_address", "port")}
    values = {**config, **launched, "plan": folder / "plan.json"}
    return {name: value for name, value in values.items() if value is not None}


_CPU = DEVICES[:1]


def _nothing_left(folder: Path, config: RunConfig) -> bool:
    from ..launching.resuming import nothing_left  # here: it brings torch, as what resumes will

    return nothing_left(folder, config)


def _with_run_folders(options: argparse.Namespace) -> argparse.Namespace:
    """The options with the folder of the run, or of the checkpoint, that they name."""
    resume = options.resume and run_folder(options.resume)
    forward_only = options.forward_only and checkpoint_or_run(options.forward_only)
    return with_values(options, {"resume": resume, "forward_only": forward_only})


def _predictor(options: argparse.Namespace) -> Predictor | None:
    return Predictor.load(options.predictor) if options.predictor else None


def _cluster_file(options: argparse.Namespace) -> Path | None:
    """Return the file of the hosts to run on; of a run that resumes, unless others are given, those it ran on."""
    given: Path | None = options.cluster
    if given or options.resume is None or options.launcher is not None:
        return given
    before: Path = options.resume / HOSTS
    return before if before.exists() else None


def _expected(
    options: argparse.Namespace, facts: PlanFacts | None, plan: Plan, cluster: Cluster | None, config: RunConfig
) -> tuple[Profile | None, Cluster | None]:
    """The profile that the run is compared with while it trains, and its devices.

    Raises InputError if the plan is none for the profile of --expect. If its own is gone, a line says so.
    """
    if options.expect:
        return _compared(options, plan, cluster)
    if facts is None:
        return None, cluster
    try:
        known = facts.expected(plan, config.model, cluster=options.cluster)
    except InputError as error:
        progress_line(f"not compared with a profile: {error} [{error.code}]; give one by --expect FILE")
        return None, cluster
    return known or (None, cluster)


def _compared(
    options: argparse.Namespace, plan: Plan, cluster: Cluster | None
) -> tuple[Profile | None, Cluster | None]:
    """The profile of --expect, and the devices: without a cluster as many identical ones as the plan has ranks."""
    if options.resume and (options.resume / "profile.json").exists():
        raise InputError(
            "option.of_new_run",
            f"--expect applies to a run without a profile, but {options.resume} has kept that of its launch; omit it",
        )
    machines = dict.fromkeys(("server_file", "bandwidth", "memory", "devices")) | vars(options)
    machines["profile"] = options.expect
    if options.cluster is None:
        machines["devices"] = [len(plan.ranks)]
    profile, devices = profile_and_cluster(argparse.Namespace(**machines), warn=False)
    warn(text for text in profile.warnings if text not in plan.warnings)
    cluster = devices if cluster is None or options.cluster is not None else cluster
    plan.check(profile.graph, cluster)
    return profile, cluster


def import_files(options: argparse.Namespace) -> Answer:
    """Write a plan and a run.toml from a file of another system. Nothing of it is run."""
    path = options.file
    driver = DriverFile.load(path) if is_driver_file(path) else None
    asked = argparse.Namespace(plan=path, model=options.model, data=options.data)
    asked = filled(asked, driver) if driver else asked
    if not asked.model:
        raise InputError("option.missing", f"{path} names no network; add --model M")
    values = given(asked, rows(RunConfig))
    run = resolve(RunConfig(**{"data": "none", **values}))
    plan = _as_driver_says(driver, load_plan(asked.plan, lambda: layer_graph(run)))
    if run.is_table:
        plan.check(layer_graph(run))
    values["plan"] = plan.save(options.out / "plan.json")
    files = [values["plan"], options.out / NAME]
    if driver and default_launcher(driver.cluster()) != LOCAL:
        values["cluster"] = options.out / HOSTS
        files.append(write_atomic(values["cluster"], driver.cluster().to_toml()))
    write_atomic(files[1], run_file_text(values, name=str(files[1])))
    missing = "" if "data" in values else " --data D"
    text = "\n".join(
        [*(f"{one_line(file)}: written" for file in files), f"sparsepipe train {one_line(files[1])}{missing}"]
    )
    return Answer({"files": [str(file) for file in files], "plan": plan.to_json()}, text)


def filled(options: argparse.Namespace, driver: DriverFile) -> argparse.Namespace:
    """The options with what the file says wherever the command line says nothing.

    Prints a line for each key of the file that has no meaning here. Raises InputError for a network, or a conf json,
    that is not there.
    """
    for line in driver.without_meaning:
        progress_line(f"{driver.path}: {line}")
    said: dict[str, object] = {"plan": driver.config_file}
    if options.model is None:
        said["model"] = driver.model
    if options.data is None:
        said["data"] = driver.data
    said |= {name: value for name, value in driver.settings.items() if getattr(options, name, None) is None}
    return with_values(options, said)


VERBS: Mapping[str, Callable[[argparse.Namespace], Answer]] = {
    "train": train,
    "predict": predict,
    "export-weights": export_run_weights,
    "import": import_files,
}
OPTIONS: Mapping[str, tuple[str, Callable[[Parser], None]]] = {
    "train": ("train a network under a plan, or by a run.toml", _train_options),
    "predict": ("compute outputs and latencies with trained weights", _predict_options),
    "export-weights": ("write the weights of a run as one state_dict", _export_options),
    "import": ("convert a plan of PipeDream, SparsePipe or DynPipe", _import_options),
}
