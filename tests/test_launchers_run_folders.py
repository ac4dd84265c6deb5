"""Run folders: numbered, found again by name, never used twice."""

from sparsepipe.launching.run_folders import folders, new_folder


def test_folders_are_numbered_on_and_found_the_newest_first(tmp_path):
    runs = tmp_path / "runs"
    assert folders(runs, "net-a") == [] and new_folder(runs, "net-a").name == "net-a-001"
    for name in ("net-a-002", "net-a-999", "net-a-1000", "net-a-b-005", "net-ab-007"):
        (runs / name).mkdir(parents=True)
        (runs / name / "plan.json").write_text("{}")
    (runs / "net-a-1001").mkdir()  # no record in it yet: its number is taken all the same
    assert [path.name for path in folders(runs, "net-a")] == ["net-a-1000", "net-a-999", "net-a-002"]
    assert new_folder(runs, "net-a").name == "net-a-1002"


def test_a_name_is_one_folder_whatever_it_holds(tmp_path):
    path = new_folder(tmp_path, "1f1b / flush [2]")
    assert path.parent == tmp_path
    path.mkdir()
    (path / "plan.json").write_text("{}")
    assert folders(tmp_path, "1f1b / flush [2]") == [path]
