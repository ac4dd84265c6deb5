"""A synthetic data set: seeded CAD-like shapes as OFF meshes in ModelNet's layout, with parts, marked as synthetic.

The function of a family draws one shape's proportions from a random generator.
Lengths are in units of roughly one object; z is up. Families overlap on purpose (a table and a desk, a cylinder and a
pipe, a box and a bed), so that telling them apart takes more than one voxel. Faces know which part they belong to.
"""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
from numpy.random import Generator, default_rng

from ..errors import InputError
from ..util.derived import sample_seed
from ..util.io.fields import given_integer
from ..util.io.files import expanded, folder_beside, read_json, write_json
from .layouts import MARKER
from .layouts.classes import SEGMENTS

if TYPE_CHECKING:
    from trimesh import Trimesh

_SECTIONS = 32  # corners of a circle
PARTS = (  # of all families together; a shape of one part is all body
    "body",
    "top",
    "leg",
    "panel",
    "drawer",
    "seat",
    "back",
    "arm",
    "foot",
    "pole",
    "shade",
    "mattress",
    "headboard",
    "pillow",
    "step",
    "wing",
    "tail",
    "fin",
    "neck",
    "plate",
    "rib",
    "wheel",
    "hub",
)
Named = tuple[str, "Trimesh"]  # a part's name and its surface


def _trimesh() -> ModuleType:
    """Bring trimesh where shapes are drawn: most of a second that asking whether they are there need not take."""
    import trimesh

    return trimesh


def face_parts(shape: "Trimesh") -> np.ndarray:
    """Return the index in PARTS of each face's part: int64 [F]."""
    return shape.face_attributes.get("part", np.zeros(len(shape.faces), dtype=np.int64))


def _joined(named: Sequence[Named]) -> "Trimesh":
    """Put parts together into one shape whose faces know their part."""
    shape = _trimesh().util.concatenate([part for _, part in named])
    labels = np.array([PARTS.index(name) for name, _ in named], dtype=np.int64)
    shape.face_attributes["part"] = np.repeat(labels, [len(part.faces) for _, part in named])
    return shape


def _box(size: Sequence[float] | np.ndarray, base: Sequence[float]) -> "Trimesh":
    """Make a box of `size` whose bottom face is centred on `base`."""
    box = _trimesh().creation.box(extents=size)
    box.apply_translation(np.add(base, (0, 0, size[2] / 2)))
    return box


def _rod(radius: float, height: float, base: Sequence[float]) -> "Trimesh":
    """Make an upright cylinder that stands on `base`."""
    rod = _trimesh().creation.cylinder(radius=radius, height=height, sections=_SECTIONS // 2)
    rod.apply_translation(np.add(base, (0, 0, height / 2)))
    return rod


def _turned(profile: Sequence[tuple[float, float]]) -> "Trimesh":
    """Turn a profile of (radius, z) about the z axis."""
    return _trimesh().creation.revolve(np.asarray(profile, dtype=np.float64), sections=_SECTIONS)


def _prism(outline: np.ndarray, height: float) -> "Trimesh":
    """Raise an outline [K, 2], every corner of which the origin sees, to `height`."""
    corners = len(outline)
    rings = [np.column_stack([outline, np.full(corners, z)]) for z in (0.0, height)]
    vertices = np.vstack([*rings, [(0, 0, 0), (0, 0, height)]])
    here = np.arange(corners)
    there = np.roll(here, -1)
    bottom, top = np.full(corners, 2 * corners), np.full(corners, 2 * corners + 1)
    faces = np.vstack(
        [
            np.column_stack([here, there, there + corners]),
            np.column_stack([here, there + corners, here + corners]),
            np.column_stack([there, here, bottom]),
            np.column_stack([here + corners, there + corners, top]),
        ]
    )
    return _trimesh().Trimesh(vertices, faces, process=False)


def _polar(radii: np.ndarray, angles: np.ndarray) -> np.ndarray:
    return np.column_stack([radii * np.cos(angles), radii * np.sin(angles)])


def _four_corners(x: float, y: float) -> tuple[tuple[float, float], ...]:
    return ((x, y), (-x, y), (-x, -y), (x, -y))


def ellipsoid(rng: Generator) -> "Trimesh":
    """A ball, stretched along each axis."""
    shape = _trimesh().creation.icosphere(subdivisions=3)
    shape.apply_scale(rng.uniform(0.5, 1.0, size=3))
    return shape


def box(rng: Generator) -> "Trimesh":
    """A crate."""
    return _box(rng.uniform(0.4, 1.0, size=3), (0, 0, 0))


def cylinder(rng: Generator) -> "Trimesh":
    """A closed drum or rod."""
    return _rod(rng.uniform(0.2, 0.5), rng.uniform(0.5, 1.6), (0, 0, 0))


def cone(rng: Generator) -> "Trimesh":
    """A cone whose tip may be cut off."""
    radius, height, tip = rng.uniform(0.3, 0.6), rng.uniform(0.6, 1.4), rng.uniform(0, 0.15)
    return _turned([(0, 0), (radius, 0), (tip, height), (0, height)])


def torus(rng: Generator) -> "Trimesh":
    """A ring of round cross-section."""
    return _trimesh().creation.torus(
        major_radius=1.0, minor_radius=rng.uniform(0.12, 0.45), major_sections=_SECTIONS, minor_sections=_SECTIONS // 2
    )


def pipe(rng: Generator) -> "Trimesh":
    """A hollow cylinder, open at both ends."""
    outer = rng.uniform(0.25, 0.6)
    return _trimesh().creation.annulus(
        r_min=outer * rng.uniform(0.5, 0.85), r_max=outer, height=rng.uniform(0.5, 1.6), sections=_SECTIONS
    )


def table(rng: Generator) -> "Trimesh":
    """A top, square or round, on four legs."""
    x, y, height, thick = rng.uniform(0.4, 0.8), rng.uniform(0.4, 0.7), rng.uniform(0.5, 0.9), rng.uniform(0.03, 0.1)
    is_round = rng.random() < 0.3
    top = _rod(min(x, y), thick, (0, 0, height)) if is_round else _box((2 * x, 2 * y, thick), (0, 0, height))
    inset, leg = rng.uniform(0.6, 0.9) * (0.6 if is_round else 1.0), rng.uniform(0.03, 0.07)
    reach = (min(x, y),) * 2 if is_round else (x, y)
    legs = [("leg", _rod(leg, height, (*corner, 0))) for corner in _four_corners(reach[0] * inset, reach[1] * inset)]
    return _joined([("top", top), *legs])


def desk(rng: Generator) -> "Trimesh":
    """A top with a panel at one end and drawers at the other."""
    x, y, height, thick = rng.uniform(0.5, 0.9), rng.uniform(0.3, 0.5), rng.uniform(0.5, 0.8), rng.uniform(0.03, 0.08)
    drawers = rng.uniform(0.3, 0.6)
    parts = [
        ("top", _box((2 * x, 2 * y, thick), (0, 0, height))),
        ("panel", _box((thick, 2 * y, height), (thick / 2 - x, 0, 0))),
        ("drawer", _box((drawers, 1.9 * y, height * rng.uniform(0.6, 1.0)), (x - drawers / 2, 0, 0))),
    ]
    if rng.random() < 0.5:  # a panel behind the legs
        parts.append(("panel", _box((2 * x, thick, height * rng.uniform(0.4, 0.9)), (0, y - thick, height * 0.1))))
    return _joined(parts)


def chair(rng: Generator) -> "Trimesh":
    """A seat on four legs with a back, sometimes with arms."""
    half, seat, thick = rng.uniform(0.22, 0.32), rng.uniform(0.35, 0.55), rng.uniform(0.03, 0.1)
    back, leg = rng.uniform(0.35, 0.7), rng.uniform(0.02, 0.05)
    parts = [
        ("seat", _box((2 * half, 2 * half, thick), (0, 0, seat))),
        ("back", _box((2 * half, thick, back), (0, half - thick / 2, seat + thick))),
        *(("leg", _rod(leg, seat, (*corner, 0))) for corner in _four_corners(half * 0.85, half * 0.85)),
    ]
    if rng.random() < 0.4:
        arm = rng.uniform(0.15, 0.25)
        for side in (-half, half):
            parts += [
                ("arm", _box((thick, 2 * half, thick), (side, 0, seat + arm))),
                ("arm", _rod(leg, arm, (side, -half * 0.8, seat))),
            ]
    return _joined(parts)


def lamp(rng: Generator) -> "Trimesh":
    """A foot, a pole and an open shade."""
    foot, pole, height = rng.uniform(0.15, 0.35), rng.uniform(0.02, 0.05), rng.uniform(0.7, 1.5)
    low, high, shade = rng.uniform(0.25, 0.45), rng.uniform(0.1, 0.25), rng.uniform(0.25, 0.45)
    parts = [
        ("foot", _rod(foot, rng.uniform(0.03, 0.1), (0, 0, 0))),
        ("pole", _rod(pole, height, (0, 0, 0))),
        ("shade", _turned([(low, height - shade * 0.7), (high, height + shade * 0.3)])),
    ]
    return _joined(parts)


def bed(rng: Generator) -> "Trimesh":
    """A mattress on a frame with a headboard and pillows."""
    x, y, height = rng.uniform(0.4, 0.9), rng.uniform(0.9, 1.1), rng.uniform(0.2, 0.45)
    parts = [
        ("mattress", _box((2 * x, 2 * y, height), (0, 0, rng.uniform(0.0, 0.2)))),
        ("headboard", _box((2 * x, 0.08, height + rng.uniform(0.3, 0.7)), (0, y, 0))),
    ]
    parts += [("pillow", _box((x * 0.7, 0.35, 0.12), (side * x / 2, y - 0.3, height + 0.1))) for side in (-1, 1)]
    return _joined(parts)


def stairs(rng: Generator) -> "Trimesh":
    """A solid flight of steps."""
    steps, width, depth, rise = (
        rng.integers(4, 9),
        rng.uniform(0.4, 1.0),
        rng.uniform(0.12, 0.25),
        rng.uniform(0.1, 0.2),
    )
    return _joined([("step", _box((width, depth, rise * (step + 1)), (0, depth * step, 0))) for step in range(steps)])


def airplane(rng: Generator) -> "Trimesh":
    """A fuselage with wings, a tailplane and a fin."""
    radius, length, span = rng.uniform(0.08, 0.16), rng.uniform(1.6, 2.2), rng.uniform(1.4, 2.2)
    body = _trimesh().creation.icosphere(subdivisions=3)
    body.apply_scale((radius, length / 2, radius))
    wing, sweep = rng.uniform(0.2, 0.4), rng.uniform(0.0, 0.5)
    parts = [("body", body)]
    tail = span * rng.uniform(0.3, 0.45)
    for name, place, reach, chord in (("wing", 0.05, span, wing), ("tail", -0.42, tail, wing * 0.6)):
        for side in (-1, 1):
            half = _trimesh().creation.box(extents=(reach / 2, chord, 0.04))
            half.apply_translation((side * reach / 4, place * length, 0))
            half.vertices[:, 1] -= sweep * np.abs(half.vertices[:, 0])
            parts.append((name, half))
    parts.append(("fin", _box((0.03, wing * 0.7, rng.uniform(0.25, 0.45)), (0, -0.42 * length, 0))))
    return _joined(parts)


def bottle(rng: Generator) -> "Trimesh":
    """A turned vessel with shoulder and neck."""
    body, neck = rng.uniform(0.2, 0.4), rng.uniform(0.06, 0.12)
    shoulder, height = rng.uniform(0.5, 0.9), rng.uniform(1.1, 1.5)
    turn = np.linspace(0, np.pi / 2, 6)
    rise = (height - shoulder) * rng.uniform(0.3, 0.7)
    curve = [(neck + (body - neck) * np.cos(t), shoulder + rise * np.sin(t)) for t in turn]
    shape = _turned([(0, 0), (body, 0), *curve, (neck, height), (0, height)])
    above = shape.triangles_center[:, 2] > shoulder + rise
    shape.face_attributes["part"] = np.where(above, PARTS.index("neck"), PARTS.index("body"))
    return shape


def star(rng: Generator) -> "Trimesh":
    """A star of four to eight points, raised to a prism."""
    points = int(rng.integers(4, 9))
    radii = np.where(np.arange(2 * points) % 2 == 0, 1.0, rng.uniform(0.3, 0.6))
    return _prism(_polar(radii, np.arange(2 * points) * np.pi / points), rng.uniform(0.15, 0.7))


def bracket(rng: Generator) -> "Trimesh":
    """Two plates that meet in an L, sometimes with a rib."""
    width, thick = rng.uniform(0.4, 1.0), rng.uniform(0.06, 0.2)
    foot, upright = rng.uniform(0.6, 1.0), rng.uniform(0.6, 1.0)
    parts = [
        ("plate", _box((width, foot, thick), (0, foot / 2, 0))),
        ("plate", _box((width, thick, upright), (0, thick / 2, 0))),
    ]
    if rng.random() < 0.5:
        parts.append(("rib", _box((thick, foot * 0.5, upright * 0.4), (0, foot * 0.25, thick))))
    return _joined(parts)


def gear(rng: Generator) -> "Trimesh":
    """A toothed wheel with a hub."""
    teeth, height = int(rng.integers(8, 15)), rng.uniform(0.15, 0.5)
    radii = np.tile([1.0, 1.0, 0.75, 0.75], teeth)
    shares = np.tile([0.05, 0.4, 0.5, 0.95], teeth)  # where in its tooth a corner lies
    angles = (np.repeat(np.arange(teeth), 4) + shares) * 2 * np.pi / teeth
    hub = _rod(rng.uniform(0.15, 0.35), height * rng.uniform(1.3, 2.5), (0, 0, 0))
    return _joined([("wheel", _prism(_polar(radii, angles), height)), ("hub", hub)])


FAMILIES: dict[str, Callable[[Generator], "Trimesh"]] = {
    "airplane": airplane,
    "bed": bed,
    "bottle": bottle,
    "box": box,
    "bracket": bracket,
    "chair": chair,
    "cone": cone,
    "cylinder": cylinder,
    "desk": desk,
    "ellipsoid": ellipsoid,
    "gear": gear,
    "lamp": lamp,
    "pipe": pipe,
    "stairs": stairs,
    "star": star,
    "table": table,
    "torus": torus,
}


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
