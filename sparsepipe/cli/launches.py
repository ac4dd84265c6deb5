"""What `run` and `replay` have in common: the plan's file, the launcher's options, a new folder, and the wait."""

import argparse
import os
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from ..data.cache import NO_CACHE
from ..display.markup import one_line
from ..errors import InputError
from ..formats.plan_files import load_plan
from ..functions import short_name
from ..host.background_load import BackgroundLoad
from ..io.paths import expanded
from ..launchers import LOCAL, RAY
from ..launchers.going_on import went_on
from ..pipelines import Pipelines, holds_pipelines
from ..plan import Plan
from ..record import RunRecord, load_warnings
from ..sinks import Sink
from ..workload_facts import workload_facts
from .drift import DriftLines
from .follow_run import RunFollower
from .output import progress_line
from .run_folders import RUNS


def new_run_dir(model: str, parent: Path = RUNS) -> Path:
    name = short_name(model).replace(".py:", "-").replace(":", "-")
    return parent / f"{name}-{datetime.now().strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"


def load_any_plan(path: Path, graph: Any) -> Plan | Pipelines:
    """Read a plan of several pipelines, or one of one pipeline in whatever format."""
    several = path.suffix == ".json" and path.is_file() and holds_pipelines(path)
    return Pipelines.load(path) if several else load_plan(path, graph)


def check_launcher(options: argparse.Namespace, launcher: str) -> None:
    """Raise InputError for options that go with another launcher."""
    if options.ray_address and launcher != RAY:
        raise InputError("option.of_ray", f"--ray-address goes with --launcher {RAY}")
    on_lost_host = getattr(options, "on_lost_host", None)
    if on_lost_host and launcher == RAY and not (options.ray_address or os.environ.get("RAY_ADDRESS")):
        raise InputError(
            "option.of_ray", "--on-lost-host goes with a Ray cluster: name it, --ray-address ADDRESS, or leave it out"
        )
    cache = getattr(options, "cache", None)
    if launcher == LOCAL and cache not in (None, NO_CACHE):
        # Else workers would go on without, which their logs alone tell.
        expanded(cache).mkdir(parents=True, exist_ok=True)
    given = {"--encrypt": options.encrypt, "--on-lost-host": on_lost_host}
    if launcher == LOCAL and (named := [name for name, value in given.items() if value]):
        raise InputError(
            "option.of_hosts", f"{named[0]} goes with hosts beyond this one: name them, --cluster FILE, or leave it out"
        )


def follower_of(record: RunRecord) -> RunFollower:
    """What shows a run on a terminal while it is at work, in words that suit what it does."""
    trains = workload_facts(record.config.get("engine", "")).trains
    return RunFollower(trains=trains, counted=record.counted)


def waited(job: Any, *, cancel: bool = True, sinks: Sequence[Sink] = ()) -> dict[str, Any]:
    """Follow a job to its end, and return its summary; what to know of it is told on stderr."""
    follower = follower_of(job.record)
    sinks = (follower, DriftLines(job.record, before=follower.close), *sinks)

    def take(row: dict[str, Any]) -> None:
        row = job.record.rated(row)
        for sink in sinks:
            sink(row)

    try:
        summary: dict[str, Any] = job.record.rated(job.wait(on_row=take))
    except KeyboardInterrupt:
        if cancel:
            job.cancel()
        raise
    finally:
        for sink in sinks:
            sink.close()
    if job.state == "stopped":
        progress_line(f"stopped as asked; sparsepipe run --resume {job.record.folder} goes on")
    for text in went_on(job.record.folder):
        progress_line(f"warning: {one_line(text)}")
    for text in load_warnings(BackgroundLoad.from_json(summary.get("load"))):
        progress_line(f"warning: {text}")
    return summary
