"""`sparsepipe run --forward-only CHECKPOINT`: which run the checkpoint is of."""

import argparse
from dataclasses import fields
from pathlib import Path

from ..display.markup import one_line
from ..errors import InputError
from ..launchers.inference import run_of
from ..record import RunRecord
from ..runtime.config import CheckpointConfig, OptimizerConfig
from .run_folders import run_folder


def check_forward_only(options: argparse.Namespace) -> None:
    """Raise InputError for what the command line says of training beside --forward-only."""
    names = ["replan", "replication", "straggler", "max_restarts", "on_lost_host", "augmentation"]
    names += ["balance", "last_minibatch", "loss_scale", "synchronised_batch_norm", "bleu_sentences"]
    names += [field.name for field in (*fields(OptimizerConfig), *fields(CheckpointConfig))]
    if given := [name for name in names if getattr(options, name) is not None]:
        raise InputError(
            "option.of_training", f"--forward-only trains nothing: leave out --{given[0].replace('_', '-')}"
        )
    if options.validate is False:
        raise InputError(
            "option.no_validation",
            "--forward-only computes outputs for the validation split: leave out --no-validation",
        )


def checkpoint_or_run(given: Path) -> Path:
    """Return the folder that --forward-only names: of a checkpoint, or of a run, which its name in runs/ says, too."""
    return given if _is_checkpoint(given) else run_folder(given)


def trained_by(options: argparse.Namespace) -> RunRecord | None:
    """Open the run whose checkpoint --forward-only names, None where that stands alone.

    Raises InputError where there is none.
    """
    if not options.forward_only.exists():
        told = "no such folder, expected a checkpoint's or a run's; `sparsepipe runs list` names the runs there are"
        raise InputError("option.of_training", f"--forward-only {options.forward_only}: {told}")
    folder = run_of(options.forward_only)
    if not folder and not _is_checkpoint(options.forward_only):
        told = "neither a run (no plan.json) nor a checkpoint (no manifest.json)"
        raise InputError("option.of_training", f"--forward-only {one_line(options.forward_only)}: {told}")
    return RunRecord.load(folder) if folder else None


def _is_checkpoint(folder: Path) -> bool:
    return (folder / "manifest.json").exists()
