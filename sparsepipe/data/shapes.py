"""A synthetic data set: seeded CAD-like shapes as OFF meshes in ModelNet's layout, with parts, marked as synthetic."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.random import Generator, default_rng

from ..errors import InputError
from ..util.derived.seeds import sample_seed
from ..util.io.fields import given_integer
from ..util.io.files import expanded, folder_beside, read_json, write_json
from .families import FAMILIES, PARTS, face_parts
from .layouts import MARKER
from .layouts.classes import SEGMENTS

if TYPE_CHECKING:
    from trimesh import Trimesh

_VERSION = 2  # of the shapes: raised when the same seed would give others


def make_shapes(
    out: Path | str, *, num_train: int, num_test: int, seed: int = 0, families: Sequence[str] | None = None
) -> Path:
    """Generate a synthetic data set of CAD-like shapes as OFF meshes.

    NAME.seg next to NAME.off contains the part of each face, for segmentation. The same arguments generate identical
    files. The folder is written completely or not at all; an identical folder is reused. dataset.json marks the data as
    synthetic.

    Args:
        out: Folder of the data set.
        num_train: Number of training shapes per family.
        num_test: Number of test shapes per family.
        seed: Random seed of the shapes.
        families: Names of the families, which are the classes. Default: all 17.

    Returns:
        The folder.

    Raises:
        InputError: An unknown family, a malformed number, or a folder with different content.

    Example:
        >>> sp.data.make_shapes("shapes", num_train=2, num_test=1, families=["box", "torus"]).name
        'shapes'

    See also:
        guides/own_data, `data.load`
    """
    names = tuple(sorted(FAMILIES)) if families is None else tuple(families)
    _check(names, num_train=num_train, num_test=num_test, seed=seed)
    out = expanded(out)
    marker = {
        "name": f"synthetic shapes (seed {seed})",
        "synthetic": True,
        "generator": "sparsepipe data make shapes",
        "version": _VERSION,
        "seed": seed,
        "num_train": num_train,
        "num_test": num_test,
        "families": list(names),
        "parts": list(PARTS),
    }
    if out.is_file():
        raise InputError("out.is_file", f"{out}: is a file, expected an empty or new folder")
    if out.is_dir() and any(out.iterdir()):
        if (out / MARKER).is_file() and read_json(out / MARKER) == marker:
            return out
        raise InputError(
            "out.not_empty", f"{out}: contains other files, expected an empty or new folder; choose another one"
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    work = folder_beside(out)
    try:
        for family in names:
            for split, first, count in (("train", 1, num_train), ("test", num_train + 1, num_test)):
                (work / family / split).mkdir(parents=True)
                for number in range(first, first + count):
                    path = work / family / split / f"{family}_{number:04d}.off"
                    shape, parts = _shape(family, number, seed=seed)
                    path.write_text(_off_text(shape), encoding="utf-8")
                    path.with_suffix(SEGMENTS).write_text("".join(f"{part}\n" for part in parts), encoding="utf-8")
        write_json(work / MARKER, marker)
        work.replace(out)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    return out


def _check(names: tuple[str, ...], *, num_train: int, num_test: int, seed: int) -> None:
    unknown = [name for name in names if name not in FAMILIES]
    if unknown or not names or len(set(names)) != len(names):
        given = ", ".join(unknown or names) or "none"
        raise InputError(
            "shapes.families_malformed", f"families {given} given, expected some of {', '.join(FAMILIES)}, each once"
        )
    for what, value, least in (("training shapes", num_train, 1), ("test shapes", num_test, 1), ("seed", seed, 0)):
        given_integer(value, f"{what}:")
        if value < least:
            raise InputError("shapes.below_least", f"{what}: {value} given, expected at least {least}")


def _shape(family: str, number: int, *, seed: int) -> tuple["Trimesh", np.ndarray]:
    """Draw one shape, stretched a little along each axis and turned about z, and the part of each of its faces."""
    from trimesh import Trimesh  # here: where the shapes are there already, nobody waits for it

    rng: Generator = default_rng(sample_seed(seed, f"{family}/{number}"))
    shape = FAMILIES[family](rng)
    vertices = np.asarray(shape.vertices) * rng.uniform(0.85, 1.15, size=3)
    angle = rng.uniform(0, 2 * np.pi)
    turn = np.array([[np.cos(angle), -np.sin(angle), 0], [np.sin(angle), np.cos(angle), 0], [0, 0, 1]])
    return Trimesh(vertices @ turn.T, shape.faces, process=False), face_parts(shape)


def _off_text(mesh: "Trimesh") -> str:
    vertices = "".join(f"{x:.6f} {y:.6f} {z:.6f}\n" for x, y, z in mesh.vertices)
    faces = "".join(f"3 {a} {b} {c}\n" for a, b, c in mesh.faces)
    return f"OFF\n{len(mesh.vertices)} {len(mesh.faces)} 0\n{vertices}{faces}"
