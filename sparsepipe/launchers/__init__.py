"""Launchers start a plan as worker processes, on this machine or on a cluster.

A new launcher is a folder or file here with `launch` and `attach` (see `Launcher` in base.py), and a row in LAUNCHERS.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..cluster import Cluster
from ..errors import InputError
from ..plan import Plan
from ..profile import Profile
from ..runtime import RunConfig
from .base import Job, Launcher


def _local() -> Launcher:
    from . import local

    return local  # type: ignore[return-value]  # a module, which names its own options


LAUNCHERS: Mapping[str, Callable[[], Launcher]] = {"local": _local}  # each brought in when it is asked for


def launch(
    plan: Plan,
    config: RunConfig,
    *,
    run_dir: Path | str,
    launcher: str = "local",
    resume: bool = False,
    profile: Profile | None = None,
    cluster: Cluster | None = None,
    campaign: str | None = None,
    **options: Any,
) -> Job:
    """Start `plan` as worker processes and return at once.

    With engine "replay" the workers compute nothing: they sleep as long as `profile` says that their stages take on
    the devices of `cluster` (runtime/workloads/replay.py).
    `campaign` names the runs that this one is made to be compared with (record/campaigns.py); it is kept in the record.
    `resume` goes on from the newest checkpoint in `run_dir`, under the same plan or another. `options` are the
    launcher's own. Raises InputError for a plan, a folder or an option that cannot be used, before anything is started.
    """
    return _launcher(launcher).launch(
        plan,
        config,
        run_dir=run_dir,
        resume=resume,
        profile=profile,
        cluster=cluster,
        campaign=campaign,
        **options,
    )


def attach(run_dir: Path | str, *, launcher: str = "local") -> Job:
    """Return the job of a run on this machine that was launched with `detach=True`, or by another process.

    Raises InputError where the folder holds no run.
    """
    return _launcher(launcher).attach(run_dir)


def _launcher(name: str) -> Launcher:
    if name not in LAUNCHERS:
        raise InputError(f"unknown launcher {name!r}, expected one of {', '.join(LAUNCHERS)}")
    return LAUNCHERS[name]()


__all__ = ["LAUNCHERS", "Job", "Launcher", "attach", "launch"]
