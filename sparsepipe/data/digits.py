"""A small real data set that needs no download: scikit-learn's handwritten digits as height fields, in HDF5 files."""

import shutil
from pathlib import Path

import numpy as np

from ..errors import InputError
from ..util.io.files import expanded, folder_beside, write_atomic, write_json
from .layouts import MARKER

_FACTOR = 4  # grid steps between two pixels
_HEIGHT = 0.5  # of full ink, in units of an image's width
_NUM_TEST = 360  # the last fifth


def make_digits(out: Path | str) -> Path:
    """Generate 1,437 clouds for training and 360 for testing in `out`, of 841 points each, from scikit-learn's digits.

    A cloud is the surface x, y, ink over a grid four times as fine as the 8 × 8 pixels. The folder is written
    completely or not at all, and an existing one is reused. Returns the folder. Raises InputError if it cannot be
    written.
    """
    import h5py  # here: a listing of data sets need not wait for them
    from sklearn.datasets import load_digits

    out = expanded(out)
    digits = load_digits()
    clouds, labels = height_fields(digits.images / 16), digits.target.astype(np.uint8)
    marker = {"name": "digits", "synthetic": False, "generator": "digits", "version": 1}
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        work = folder_beside(out)
        try:
            for split, rows in (("train", slice(None, -_NUM_TEST)), ("test", slice(-_NUM_TEST, None))):
                with h5py.File(work / f"digits_{split}.h5", "w") as file:
                    file.create_dataset("data", data=clouds[rows], compression="gzip", chunks=(1, *clouds.shape[1:]))
                    file.create_dataset("label", data=labels[rows, None])
            write_atomic(work / "shape_names.txt", "".join(f"{digit}\n" for digit in range(10)))
            write_json(work / MARKER, marker)
            if not (out / MARKER).is_file():
                work.replace(out)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    except OSError as error:
        if not (out / MARKER).is_file():  # else another process has just put it there
            raise InputError(
                "out.unwritable", f"{out}: cannot be written ({error.strerror or error}); name another folder"
            ) from None
    return out


def height_fields(images: np.ndarray) -> np.ndarray:
    """Return the surface over each image [S, H, W] of values 0 to 1, interpolated linearly: float32 [S, P, 3]."""
    for axis in (1, 2):
        images = _refined(images, axis)
    rows, columns = images.shape[1:]
    y, x = np.meshgrid(np.linspace(1, 0, rows), np.linspace(0, 1, columns), indexing="ij")  # row 0 is the top
    flat = np.broadcast_to(np.stack([x, y], axis=-1), (*images.shape, 2))
    surface = np.concatenate([flat, _HEIGHT * images[..., None]], axis=-1)
    return surface.reshape(len(images), -1, 3).astype(np.float32)


def _refined(values: np.ndarray, axis: int) -> np.ndarray:
    """Interpolate linearly along one axis, _FACTOR steps for one."""
    fine = np.arange((values.shape[axis] - 1) * _FACTOR + 1) / _FACTOR
    low = np.minimum(fine.astype(int), values.shape[axis] - 2)
    share = (fine - low).reshape([-1 if place == axis else 1 for place in range(values.ndim)])
    between: np.ndarray = values.take(low, axis) * (1 - share) + values.take(low + 1, axis) * share
    return between
