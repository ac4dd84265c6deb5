"""Columns without names, and separators: read as what they alone can be, or asked for in one line."""

from pathlib import Path

import numpy as np
import pytest
from coded import mentions, raises

from sparsepipe.data.formats import Reading, read
from sparsepipe.errors import InputError

random = np.random.default_rng(0)
P = random.uniform(-30, 30, size=(400, 3)).round(3)
UNIT = P / np.linalg.norm(P, axis=1, keepdims=True)
RGB = random.integers(0, 256, size=(400, 3))
LABEL = random.integers(0, 13, size=400)
INTENSITY = random.integers(0, 256, size=400)
COLOURS = ("red", "green", "blue")


def _text(folder: Path, *columns: np.ndarray, head: str = "", name: str = "a.txt", separator: str = " ") -> Path:
    path = folder / name
    rows = zip(*(column for each in columns for column in np.atleast_2d(each.T).tolist()), strict=True)
    path.write_text(head + "".join(separator.join(map(repr, row)) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("columns", "names", "head"),
    [
        ((P, UNIT), ("nx", "ny", "nz"), ""),
        ((P, UNIT.round(2), LABEL), ("nx", "ny", "nz"), ""),
        ((P, RGB), COLOURS, ""),
        ((P, RGB / 255), COLOURS, ""),  # xyzrgb: were taken for normals
        ((P, RGB / 255, LABEL), COLOURS, ""),
        ((P, RGB, LABEL), COLOURS, ""),
        ((P, INTENSITY, RGB), ("intensity", *COLOURS), "400\n"),  # PTS: were colours (i, r, g) and labels b
        ((P, INTENSITY - 2048, RGB), ("intensity", *COLOURS), ""),
        ((P, INTENSITY / 255, RGB), ("intensity", *COLOURS), ""),
        ((P, INTENSITY, RGB), ("intensity", *COLOURS), "//X Y Z I R G B\n"),  # CloudCompare names them in a comment
        ((P, RGB / 255), COLOURS, "//X Y Z Rf Gf Bf\n"),
        ((P, LABEL, RGB), COLOURS, "# x y z label r g b\n"),
        ((P, INTENSITY / 255), ("intensity",), ""),
    ],
)
def test_columns_are_read_where_one_reading_alone_fits(tmp_path: Path, columns: tuple, names: tuple, head: str) -> None:
    cloud = read(_text(tmp_path, *columns, head=head))
    assert cloud.names == names
    np.testing.assert_array_equal(cloud.points, P)
    further = np.column_stack(columns[1:])
    if "red" in names:
        given = columns[1 + (columns[1].ndim == 1)]
        scale = 255 if given.max() <= 1 else 1
        np.testing.assert_allclose(cloud.attributes[:, names.index("red") :], given * scale, rtol=1e-6)
    else:
        np.testing.assert_allclose(cloud.attributes, further[:, : len(names)], rtol=1e-6)
    labelled = columns[-1] is LABEL or "label" in head
    assert (cloud.labels is not None) == labelled
    assert not labelled or cloud.labels.tolist() == LABEL.tolist()


@pytest.mark.parametrize(
    "columns",
    [
        (P, INTENSITY, RGB),  # or red green blue and a label: both fit
        (P, LABEL, RGB),
        (P, LABEL),  # was an intensity
        (P, INTENSITY),
        (P, np.where(LABEL == 0, -1, LABEL)),
        (np.arange(400), P),  # was shifted by one
        (np.arange(1, 401), P, RGB),
        (np.arange(400), P, INTENSITY / 255, LABEL),
        (P, np.arange(400)),
        (LABEL, P),
        (P, INTENSITY, LABEL, LABEL[::-1]),  # was colours
        (P, INTENSITY, RGB[:, 0], LABEL),
        (P, np.zeros((400, 3))),
        (P, UNIT * 0.7),  # was normals
        (P, RGB / 255, np.full(400, 0.5)),  # alpha
        (P, RGB, UNIT),
        (P, LABEL, LABEL),
    ],
)
def test_columns_that_could_be_several_things_are_asked_for(tmp_path: Path, columns: tuple) -> None:
    path = _text(tmp_path, *columns)
    with pytest.raises(InputError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}: rows of ")
    assert mentions(str(caught.value), "dataset.json", '"columns"', '"y"', '"z"')
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "rows",
    [
        P,
        random.uniform(0, 1, size=(480, 3)),  # in the unit cube: were KITTI's, three points as four
        np.column_stack([P, LABEL % 2]),  # a class is no intensity
        np.column_stack([P, INTENSITY]),
        np.column_stack([P, INTENSITY, LABEL]),
        np.column_stack([P, np.abs(UNIT)]),  # were ScanNet's colours
        np.column_stack([RGB, RGB]),  # of voxels
    ],
)
def test_scans_of_other_columns_are_asked_for(tmp_path: Path, rows: np.ndarray) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(rows.astype("<f4").tobytes())
    with raises("scan.columns_undecided", "fits neither"):
        read(path)


def test_a_scans_colours_from_0_to_1_are_colours(tmp_path: Path) -> None:
    """They were taken for 0 to 255, which is nearly black."""
    path = tmp_path / "a.bin"
    path.write_bytes(np.column_stack([P, RGB / 255]).astype("<f4").tobytes())
    np.testing.assert_allclose(read(path).attributes, RGB, rtol=1e-5)


POINTS = [[1.5, 2.0, 3.25], [-0.5, 1e-3, 7.0]]


@pytest.mark.parametrize(
    "text",
    [
        "1.5 2 3.25\n-0.5 1e-3 7\n",
        "1,5;2,0;3,25\n-0,5;1e-3;7\n",  # were six whole numbers
        "1,5 2,0 3,25\n-0,5 0,001 7\n",
        "1,5\t2,0\t3,25\n-,5\t1,0e-3\t7,0\n",
        "2\n1,5; 2,0; 3,25\n-0,5; 0,001; 7\n",
        "x;y;z\n1,5;2,0;3,25\n-0,5;0,001;7\n",
        "1.5,2,3.25\n-0.5,1e-3,7\n",
        "1.5, 2, 3.25\n-0.5, 1e-3, 7\n",
        "1.5;2.0;3.25\r-0.5;0.001;7\r",  # lines of old Macs
    ],
)
def test_separators_are_told_from_decimal_marks(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.xyz"
    path.write_text(text, newline="")
    assert read(path).points.tolist() == POINTS


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("1,0, 2,0, 3,0\n4,0, 5,0, 6,0\n", ("text.commas_undecided", "1", "1,0, 2,0, 3,0")),
        ("1,50,2,00,3,25\n-0,5,0,01,7,0\n", ("text.commas_undecided", "1", "1,50,2,00,3,25")),
        ("1.234,5;2,0;3,0\n", ("text.number_grouped", "1", "1.234,5;2,0;3,0")),
        ("1,5;2,0;3,0\n1.5;2,0;3\n", ("text.row_malformed", "2", "1.5 2 0 3", "6")),
    ],
)
def test_separators_that_cannot_be_told_are_refused(tmp_path: Path, text: str, error: tuple[str, ...]) -> None:
    path = tmp_path / "a.xyz"
    path.write_text(text)
    with raises(*error):
        read(path)


def test_whole_numbers_between_commas_stay_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.xyz"
    for text in ("0,0,1\n5,6,7\n", "0, 0, 1\n5, 6, 7\n", "0;0;1\n5;6;7\n", "0,0 1\n5,6 7\n"):
        path.write_text(text)
        assert read(path).points.tolist() == [[0, 0, 1], [5, 6, 7]]
    path.write_text("0,0,1;255,7,0\n5,6,7;30,40,50\n")
    assert read(path, Reading(columns=("x", "y", "z", *COLOURS))).attributes.tolist() == [[255, 7, 0], [30, 40, 50]]
