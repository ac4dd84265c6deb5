"""Records of machines that come and go: both of Bamboo's formats, and what is none in one line."""

from pathlib import Path

import pytest

from sparsepipe.errors import InputError
from sparsepipe.records.formats.spot_machines import SpotMachines, read_spot_machines

EVENTS = "0,add,a\n0,add,b\n60000,add,c\n90000,remove,a\n90000,remove,b\n120000,add,a\n"
READINGS = "2021-12-31, 23:59:00, 2\n2022-01-01, 00:00:00, 3\n\n2022-01-01, 00:00:30, 1\n2022-01-01, 00:01:00, 2\n"


@pytest.mark.parametrize("text", [EVENTS, READINGS])
def test_both_formats_are_counts_over_time(tmp_path: Path, text: str):
    (tmp_path / "some.csv").write_text(text)
    found = read_spot_machines(tmp_path / "some.csv")
    assert found == SpotMachines("some", (0, 60, 90, 120), (2, 3, 1, 2))
    assert (found.duration, found.machine_seconds) == (120, 2 * 60 + 3 * 30 + 1 * 30)
    assert [found.absences(least) for least in (1, 2, 3, 4)] == [[], [(90, 30)], [(0, 60), (90, 30)], [(0, 120)]]


def test_bamboos_records(shared_data: Path):
    folder = shared_data / "outside" / "preemptions" / "traces"
    if not folder.is_dir():
        pytest.skip(f"no records of machines at {folder}: sparsepipe data fetch preemptions")
    aws = read_spot_machines(folder / "p3-trace.csv")
    assert (aws.duration, max(aws.counts), aws.counts[-1]) == (40920, 32, 10)  # 177 came, 167 went
    google = read_spot_machines(folder / "gcloud" / "a100x1-east1b.txt")
    assert (google.duration, min(google.counts), max(google.counts)) == (97266, 17, 64)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "bad.csv: has no rows; expected rows such as '2040000,remove,node19'"),
        ("0,add,a\n", "bad.csv: contains only one point in time"),
        ("0,add,a\n1,add,a\n", "line 2: add 'a', which was there"),
        ("0,add,a\n1,remove,b\n", "line 2: remove 'b', which was not there"),
        ("9,add,a\n1,add,b\n", "line 2: is earlier than the previous row"),
        ("0,add,a\n-1,add,b\n", "line 2: milliseconds is '-1', expected a whole number"),
        (
            "time,event,node\n0,add,a\n1,add,b\n",
            "line 1: 'time,event,node', expected a row such as '2040000,remove,node19'",
        ),
        ("0,add,a\n1,move,b\n", "line 2: '1,move,b', expected a row such as '2040000,remove,node19'"),
        ("0,add,a\n1,add\n", "line 2: '1,add', expected a row such as"),
        ("2021-12-11, 11:15:50, many\n", "line 1: machines is 'many', expected a whole number"),
        (
            "2021-13-11, 11:15:50, 5\n",
            "line 1: '2021-13-11,11:15:50,5', expected a row such as '2021-12-11, 11:15:50, 54'",
        ),
        ("2021-12-11, 11:15:50, 5\n2021-12-11, 11:15:49, 5\n", "line 2: is earlier"),
        ("some words\n", "line 1: 'some words', expected a row such as '2021-12-11"),
    ],
)
def test_what_is_no_record_is_refused_in_one_line(tmp_path: Path, text: str, complaint: str):
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_spot_machines(path)
    assert complaint in str(caught.value) and str(path) in str(caught.value) and "\n" not in str(caught.value)
