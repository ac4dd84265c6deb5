import os
import resource
import socket

import pytest
from coded import raises

from sparsepipe.launching.supervisor import tell_status
from sparsepipe.util.io.files import (
    cut_torn_row,
    open_regular,
    read_json,
    read_rows,
    read_text,
    read_whole,
    sha256,
    write_atomic,
    write_json,
)


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path):
    path = write_json(tmp_path / "a.json", {"a": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, {"a": float("nan")})
    assert read_json(path) == {"a": 1}
    assert [item.name for item in tmp_path.iterdir()] == ["a.json"]


def test_bytes_are_written_as_they_are(tmp_path):
    assert write_atomic(tmp_path / "new/folder/b", b"\x00\xff").read_bytes() == b"\x00\xff"


def test_a_folder_and_a_device_are_not_replaced(tmp_path, monkeypatch):
    """A folder said as "." ended in a traceback, and /dev/null became a file where its owner asked."""
    monkeypatch.chdir(tmp_path)
    for folder in (".", tmp_path):
        with pytest.raises(IsADirectoryError) as caught:
            write_json(folder, {})
        assert caught.value.filename == str(folder)
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert write_atomic(tmp_path / "pipe", "some").is_fifo() and os.read(reader, 10) == b"some"
    finally:
        os.close(reader)
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_unreadable_files_are_named_in_one_line(tmp_path):
    (tmp_path / "bad.json").write_text('{"a":\n 1,}')
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    (tmp_path / "loop").symlink_to("loop")
    for read, path, error in (
        (read_json, tmp_path / "bad.json", ("json.malformed", "bad.json", "2")),
        (read_text, tmp_path / "none", ("file.not_found", "file")),
        (read_text, tmp_path, ("file.is_folder",)),
        (read_text, tmp_path / "bytes", ("file.unreadable",)),
        (read_text, tmp_path / "loop", ("file.unreadable", "loop", "file", "Too many levels of symbolic links")),
    ):
        with raises(*error) as caught:
            read(path)
        assert "\n" not in str(caught.value)


def test_a_torn_row_is_cut_and_one_further_up_is_named(tmp_path):
    path = tmp_path / "rows.jsonl"
    cut_torn_row(path)
    assert not path.exists()
    for content, kept in ((b'{"a": 1}\n{"a": "\xc3', b'{"a": 1}\n'), (b'{"a"', b""), (b'{"a": 1}\n', b'{"a": 1}\n')):
        path.write_bytes(content)
        cut_torn_row(path)
        assert path.read_bytes() == kept
    path.write_text('{"a": 1}\n{"a{"a": 2}\n')
    with raises("json.row_malformed", "rows.jsonl", number=2):
        read_rows(path)


def test_the_mark_before_a_text_is_taken_off(tmp_path):
    """Editors put U+FEFF before a text; of a graph.txt it became a part of the first layer's name."""
    path = tmp_path / "a.json"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}')
    assert read_json(path) == {"a": 1} and read_text(path) == '{"a": 1}'
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\n{"a": 2}\n')
    assert read_rows(path) == [{"a": 1}, {"a": 2}]


def test_rows_that_are_not_wanted_are_not_parsed(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a": 1}\n{"b": [[[\n\n{"a": 3}\n{"a"')
    assert read_rows(path, wanted=lambda line: line.startswith(b'{"a"')) == [{"a": 1}, {"a": 3}]
    for content, error in (
        (b"[1]\n", ("json.row_malformed",)),
        (b'{"a": 1\n}\n', ("json.row_malformed", "1")),
        (b"\xff\n", ("json.row_malformed", "1")),
    ):
        path.write_bytes(content)
        with raises(*error):
            read_rows(path)
    path.unlink()
    os.mkfifo(path)  # nobody writes: it would be waited for
    with raises("file.unreadable", "expected a regular file"):
        read_rows(path)


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_a_new_file_gets_the_mode_that_the_umask_leaves_and_an_old_one_keeps_its_own(tmp_path, umask, mode):
    """Plans, settings and manifests were 0644 under umask 077, the status 0600 under 022."""
    before = os.umask(umask)
    try:
        path = write_json(tmp_path / "a.json", 1)
        assert path.stat().st_mode & 0o777 == mode
        tell_status(tmp_path, state="finished")
        assert (tmp_path / "status.json").stat().st_mode & 0o777 == mode
        path.chmod(0o640)
        assert write_json(path, 2).stat().st_mode & 0o777 == 0o640
        assert write_atomic(path, "", private=True).stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(before)


def test_what_goes_wrong_in_writing_names_the_file_asked_for_and_leaves_no_other(tmp_path):
    most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, most[1]))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            write_atomic(tmp_path / "large", bytes(1000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, most)
    assert caught.value.filename == str(tmp_path / "large") and not list(tmp_path.iterdir())
    with pytest.raises(FileNotFoundError):
        write_atomic(tmp_path / "gone" / "status.json", "", make_folder=False)
    assert not list(tmp_path.iterdir()), "a folder that was taken away is not made anew"


@pytest.mark.parametrize("what", ["a pipe", "a device", "a socket"])
def test_what_is_no_regular_file_is_refused_at_once(tmp_path, what):
    """Whoever opened a pipe waited for a writer, and a device was read until the memory was full."""
    path = tmp_path / "it"
    if what == "a pipe":
        os.mkfifo(path)
    elif what == "a device":
        path.symlink_to("/dev/zero")
    else:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(path))
    for read in (read_text, read_json, read_rows):
        with raises("file.unreadable", "it"):
            read(path)
    for read in (open_regular, read_whole, sha256):
        with pytest.raises(OSError, match="regular file|No such device"):
            read(path)


def test_a_sparse_file_does_not_fill_the_memory(tmp_path):
    path = tmp_path / "large"
    path.touch()
    os.truncate(path, 2**42)
    with raises("file.unreadable", "larger than 512 MiB"):
        read_json(path)
    with raises("json.row_too_long", "large", number=1):
        read_rows(path)
