"""TensorBoard, written by torch's own writer."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import InputError, missing_extra
from .base import scalars


class TensorBoard:
    """Writes a run's rows as scalars below `folder`: `tensorboard --logdir FOLDER` draws them while the run
    continues.
    """

    def __init__(self, folder: Path | str) -> None:
        """Raises InputError if tensorboard is not installed, or the folder cannot be written to."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise missing_extra(error) or error from None
        try:
            self._writer = SummaryWriter(str(folder))
        except OSError as error:
            reason = error.strerror or error
            raise InputError(
                "out.unwritable", f"{folder}: cannot be written to ({reason}); choose another folder"
            ) from None

    def __call__(self, row: Mapping[str, Any]) -> None:
        """Write the numbers of a row at the minibatch that it is of."""
        if values := scalars(row):
            minibatch, numbers = values
            for name, number in numbers.items():
                self._writer.add_scalar(name, number, minibatch)
            if row.get("event") == "epoch":
                self._writer.flush()

    def close(self) -> None:
        self._writer.close()
