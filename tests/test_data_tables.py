"""Tables with a head line (.csv), .asc, and text of other kinds that lies under a text format's name."""

from pathlib import Path

import numpy as np
import pandas
import pytest
from coded import raises

from sparsepipe.data.formats import Reading, read

XYZ = (("X [m]", "x"), ("Y [m]", "y"), ("Z [m]", "z"))


def _write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_a_table_of_pandas_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Its index has a column without a name, its names of classes are words."""
    rng = np.random.default_rng(0)
    table = pandas.DataFrame(rng.normal(size=(20, 3)), columns=["x", "y", "z"])
    table["intensity"], table["class"], table["kind"] = np.arange(20) / 4, np.arange(20) % 3, "tree"
    table.loc[3, "intensity"] = np.nan
    table.to_csv(tmp_path / "a.csv")
    table.to_csv(tmp_path / "a.csv.gz", index=False)
    table.to_csv(tmp_path / "b.csv", sep=";", decimal=",")
    table.to_csv(tmp_path / "c.csv", sep="\t", encoding="utf-16", lineterminator="\r\n")
    for name in ("a.csv", "a.csv.gz", "b.csv", "c.csv"):
        cloud = read(tmp_path / name)
        np.testing.assert_allclose(cloud.points, table[["x", "y", "z"]])
        assert cloud.labels.tolist() == table["class"].tolist()
        assert cloud.names == ("intensity",)
        np.testing.assert_allclose(cloud.attributes[:, 0], table["intensity"], rtol=1e-6)


@pytest.mark.parametrize(
    ("text", "reading"),
    [
        ("x,y,z\n1,2,3\n4,5,6\n", Reading()),
        ("1,2,3\n4,5,6\n", Reading()),
        ("X,Y,Z\r\n1,2,3\r\n4,5,6\r\n", Reading()),
        ('"x";"y";"z"\n1,0;2,0;3,0\n4;5;6\n', Reading()),
        ("Points:0,Points:1,Points:2\n1,2,3\n4,5,6\n", Reading()),
        ("# a comment\nx,y,z,\n1,2,3,\n4,5,6,\n", Reading()),
        ("X [m],Y [m],Z [m]\n1,2,3\n4,5,6\n", Reading(renamed=XYZ)),
        ("X [m],Y [m],Z [m]\n1,2,3\n4,5,6\n", Reading(columns=("x", "y", "z"))),
        ("//X,Y,Z\n1,2,3\n4,5,6\n", Reading()),  # CloudCompare's
        ("id,x,y,z\n7,1,2,3\n8,4,5,6\n", Reading(columns=("_", "x", "y", "z"))),
    ],
)
def test_tables_of_all_hands_are_the_same_cloud(tmp_path: Path, text: str, reading: Reading) -> None:
    assert read(_write(tmp_path / "a.csv", text), reading).points.tolist() == [[1, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize("name", ["a.asc", "a.txt", "a.xyz", "a.pts"])
def test_text_has_a_head_line_of_any_words_and_any_encoding(tmp_path: Path, name: str) -> None:
    cloud = read(_write(tmp_path / name, "//X Y Z R G B Intensity\n1.5 2 3 10 20 30 0.5\n4 5 6 40 50 60 0.25\n"))
    assert cloud.names == ("red", "green", "blue", "intensity")
    assert cloud.points.tolist() == [[1.5, 2, 3], [4, 5, 6]]
    east = "Easting Northing Height\n1.5 2 3\n4 5 6\n"
    names = (("Easting", "x"), ("Northing", "y"), ("Height", "z"))
    for reading in (Reading(columns=("x", "y", "z")), Reading(renamed=names)):
        assert read(_write(tmp_path / name, east), reading).points.tolist() == [[1.5, 2, 3], [4, 5, 6]]
    assert len(read(_write(tmp_path / name, "1.5 2 3\n4 5 6\n".encode("utf-16")))) == 2


PTX = "2\n2\n0 0 0\n1 0 0\n0 1 0\n0 0 1\n1 0 0 0\n0 1 0 0\n0 0 1 0\n0 0 0 1\n" + "1 2 3 0.5\n" * 4


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("a.csv", "x,y,z\n1,2,3,4\n", ("table.field_count", "4", "3")),
        ("a.csv", "x,y,z\n1,2,three\n", ("table.not_a_number", "z", "three", "0")),
        ("a.csv", "x,y,z,label\n1,2,3,car\n", ("table.not_a_number", "label", "car", "0")),
        ("a.csv", "x,y\n1,2\n", ("cloud.column_missing", "z", "x, y")),
        ("a.csv", "X [m],Y,Z\n1,2,3\n", ("cloud.column_missing", '"columns": {"x [m]": "x"}')),
        ("a.csv", 'x,y,z\n1,2,"3\n', ("file.malformed", "a table of points")),
        ("a.pts", PTX, ("text.ptx_scan",)),
        ("a.xyz", "2\nwater\nO 0 0 0.1\nH 0 1 0\n", ("text.row_malformed", "2", "water", "4")),
        ("a.xyz", "2\n\nO 0 0 0.1\nH 0 1 0\n", ("text.row_malformed", "3", "O 0 0 0.1", "4")),
        ("a.asc", "ncols 2\nnrows 2\nxllcorner 0\n1 2\n3 4\n", ("text.esri_grid",)),
        ("a.txt", "Easting Northing Height\n1 2 3\n", ("text.columns_unnamed",)),
        ("a.txt", "This is a text.\nAnd so on.\n", ("text.row_malformed", "1", "This is a text.")),
        ("a.txt", b"\x00\x01\x02", ("text.binary", "a point cloud as text")),
        ("a.ply", "version https://git-lfs.github.com/spec/v1\noid sha256:0\n", ("file.lfs_pointer",)),
        ("a.off", "<!DOCTYPE html>\n<html>", ("file.web_page", "an OFF mesh")),
        ("a.las", b"PK\x03\x04rest", ("file.zipped", "a LAS point cloud")),
        ("a.ply", "ply\nelement vertex 1\nproperty float x\nend_header\n0\n", ("ply.no_format",)),
    ],
)
def test_the_reason_that_is_given_is_the_reason(
    tmp_path: Path, name: str, content: str | bytes, error: tuple[str, ...]
) -> None:
    path = _write(tmp_path / name, content)
    with raises(*error) as caught:
        read(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_an_array_on_its_side_is_named_so(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((3, 40)))
    with raises("npz.transposed", "[3, 40]", name="a"):
        read(tmp_path / "a.npy")
