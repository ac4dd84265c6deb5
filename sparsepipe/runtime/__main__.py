"""`python -m sparsepipe.runtime --run-dir DIR [--resume]`: one worker, its rank in the environment as by torchrun."""

import argparse
import os
import sys
import traceback
from pathlib import Path

from .lifeline import watch


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m sparsepipe.runtime", description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True, help="folder with plan.json and config.json")
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint")
    arguments = parser.parse_args()
    watch()
    rank = int(os.environ.get("RANK", "0"))
    resume = arguments.resume or int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    logs = arguments.run_dir / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    (logs / f"rank{rank}.pid").write_text(f"{os.getpid()}\n")
    _write_to(logs / f"rank{rank}.log")
    return _run(arguments.run_dir, rank, resume=resume)


def _write_to(path: Path) -> None:
    """Send what this process prints to a file of its own."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.close(descriptor)


def _run(run_dir: Path, rank: int, *, resume: bool) -> int:
    from ..errors import InputError
    from ..files import read_json
    from ..plan import Plan
    from .failures import write_error

    stage = None
    try:
        plan = Plan.load(run_dir / "plan.json")
        stage = next(iter(plan.stages_of(rank)), None)
        from .config import RunConfig
        from .run import run

        run(run_dir, plan, RunConfig.from_json(read_json(run_dir / "config.json")), resume=resume)
    except BaseException as error:
        traceback.print_exc()
        try:
            write_error(run_dir, error, rank=rank, stage=stage)
        except OSError as full:
            print(f"the error could not be written either: {full}", file=sys.stderr)
        return 2 if isinstance(error, InputError) else 1
    return 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: gloo's threads that wait for a peer would be asked to end and cannot, and a process group that a
    # module still holds is taken down too late, which aborts.
    os._exit(status)
