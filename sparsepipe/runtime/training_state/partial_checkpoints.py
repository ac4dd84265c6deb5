"""What is left of checkpoints that were never completed, by name alone: nobody who removes it waits for torch."""

import shutil
from pathlib import Path

ASIDE = "-aside"  # ends the name of a whole checkpoint, until another has come in its place
GONE = "-gone"  # ends the name of one whose files are being removed: nobody reads it


def remove_partial(run_dir: Path) -> None:
    """Remove shards of checkpoints that were never completed, or not removed whole. No rank is at work."""
    for path in (run_dir / "checkpoints").glob(".minibatch-*"):
        if not path.name.endswith(ASIDE):
            shutil.rmtree(path, ignore_errors=True)
