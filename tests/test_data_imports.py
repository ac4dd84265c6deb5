"""Listing data sets and looking into a folder wait for no heavy library; names come when asked for."""

import subprocess
import sys
from pathlib import Path

import pytest

from sparsepipe import data

HEAVY = {"torch", "trimesh", "pypcd4", "h5py", "sklearn", "scipy", "pandas"}


@pytest.mark.parametrize(("verb", "needed"), [(("list",), []), (("info", "FOLDER"), ["torch"])])  # it counts voxels
def test_the_verbs_of_data_are_light(tmp_path: Path, verb: tuple[str, ...], needed: list[str]) -> None:
    path = tmp_path / "chair" / "train" / "c.off"
    path.parent.mkdir(parents=True)
    path.write_text("OFF\n3 1 0\n0 0 0\n1 0 0\n0 1 0\n3 0 1 2\n")
    words = ["data", *(str(tmp_path) if word == "FOLDER" else word for word in verb)]
    code = (
        "import sys; from sparsepipe.cli import main; "
        f"assert main({words!r}) == 0; print(sorted({HEAVY!r} & sys.modules.keys()), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout
    assert done.stderr.strip() == str(needed)


def test_every_promised_name_is_there_and_no_other() -> None:
    assert set(data.__all__) <= set(dir(data))
    assert all(getattr(data, name) is not None for name in data.__all__)
    assert set(data.__all__) == set(data._HOME)
    with pytest.raises(AttributeError, match="no attribute 'teapot'"):
        data.teapot  # noqa: B018
