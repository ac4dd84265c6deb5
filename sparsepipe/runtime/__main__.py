"""`python -m sparsepipe.runtime --run-dir DIR [--resume]`: one worker, its rank in the environment as by torchrun."""

import argparse
import gc
import os
import sys
import traceback
from contextlib import suppress
from pathlib import Path

from .processes.identity import Identity
from .processes.rank_readings import forget_gpu
from .processes.run_folder import RunFolder, RunFolderGone
from .processes.signs_of_life import keep_pipe, say, watch


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m sparsepipe.runtime", description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True, help="folder with plan.json and config.json")
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint")
    arguments = parser.parse_args()
    return work(arguments.run_dir, resume=arguments.resume)


def work(run_dir: Path, *, resume: bool) -> int:
    """Be the worker that the environment says, to its end; return the exit code of its process."""
    watch()
    identity, pipe = Identity.from_environment(), keep_pipe()
    rank, resume = identity.rank, resume or identity.attempt > 0
    folder: RunFolder | None = None
    try:
        folder = RunFolder(run_dir)
        folder.watch(lambda error: _end(error, pipe=pipe, rank=rank))
        logs = run_dir / "logs"
        logs.mkdir(exist_ok=True)
        _write_to(logs / f"rank{rank}.log")
        forget_gpu(logs, rank)  # before whoever watches knows of this process
        (logs / f"rank{rank}.pid").write_text(f"{os.getpid()}\n")
        _run(run_dir, rank, resume=resume)
    except BaseException as error:
        return _failed(error, folder, run_dir, pipe=pipe, rank=rank)
    return 0


def _write_to(path: Path) -> None:
    """Send what this process prints to a file of its own."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.close(descriptor)


def _run(run_dir: Path, rank: int, *, resume: bool) -> None:
    gc.disable()  # until `run` has all it keeps: to search torch's modules for garbage takes a sixth of the start
    from ..util.io.files import read_json
    from ..values.plan import Plan
    from .config import RunConfig
    from .worker.run import run

    run(
        run_dir,
        Plan.load(run_dir / "plan.json"),
        RunConfig.from_json(read_json(run_dir / "config.json")),
        resume=resume,
    )


def _failed(error: BaseException, folder: RunFolder | None, run_dir: Path, *, pipe: int, rank: int) -> int:
    """Leave the error where the launcher looks for it, and say it through the pipe too: the disk may take no more."""
    from ..errors import InputError
    from ..util.host.limits import causes
    from .failures import described, write_error

    missing = any(isinstance(one, FileNotFoundError) for one in causes(error))
    if folder is None or (folder.gone_within(1.0) if missing else folder.gone):  # to remove a folder takes a while
        error = RunFolderGone(run_dir)
    document = described(error, run_dir=run_dir, rank=rank, stage=_stage(run_dir, rank))
    say(pipe, document)  # first: what follows may find no room
    with suppress(OSError):
        traceback.print_exc()
        sys.stderr.flush()
    if not isinstance(error, RunFolderGone):
        with suppress(OSError):
            write_error(run_dir, document)
    return 2 if isinstance(error, InputError) else 1


def _stage(run_dir: Path, rank: int) -> int | None:
    """The first stage of this rank, None if the plan cannot be read."""
    from ..values.plan import Plan

    try:
        return next(iter(Plan.load(run_dir / "plan.json").stages_of(rank)), None)
    except Exception:  # it is told for people alone: whatever is wrong with the plan is the error or no matter
        return None


def _end(error: RunFolderGone, *, pipe: int, rank: int) -> None:
    """End this process from a thread, whatever the worker is at."""
    from .failures import described

    say(pipe, described(error, run_dir=None, rank=rank, stage=None))
    os._exit(1)


if __name__ == "__main__":
    status = main()
    with suppress(OSError):  # a full disk
        sys.stdout.flush()
        sys.stderr.flush()
    # Not sys.exit: gloo's threads that wait for a peer would be asked to end and cannot, and a process group that a
    # module still holds is taken down too late, which aborts.
    os._exit(status)
