"""Fetching from a server of our own: interrupted and resumed, from servers that can and cannot, verified before use."""

import errno
import hashlib
import io
import os
import re
import threading
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from coded import raises

from sparsepipe import data
from sparsepipe.data import downloads, transfer

TRIANGLE = b"OFF\n3 1 0\n0 0 0\n1 0 0\n0 1 0\n3 0 1 2\n"
HEAD = "title: t\nlicence: l\ncitation: c\nhomepage: https://example.org/\nsplits: {train: 1}\n"


class _Handler(BaseHTTPRequestHandler):
    """Serves `content`; may break off after so many bytes of a response, ignore ranges, or answer with an error."""

    def do_GET(self) -> None:
        server = self.server
        server.asked.append((self.path, self.headers.get("Range")))
        if server.errors:
            self.send_error(server.errors.pop(0))
            return
        content = server.content[self.path]
        match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
        start = int(match[1]) if match and server.ranges else 0
        if start >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if match and server.ranges else 200)
        if match and server.ranges:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        if server.says_length:
            self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        break_off = server.break_off.pop(0) if server.break_off else None
        self.wfile.write(content[start:] if break_off is None else content[start : start + break_off])

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadingHTTPServer]:
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(transfer, "_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(transfer, "_CHUNK_BYTES", 1000)
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        server.content, server.asked, server.errors, server.break_off = {}, [], [], []
        server.ranges = server.says_length = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def _archive(size: int = 20_000) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("Toys/chair/train/c.off", TRIANGLE)
        archive.writestr("Toys/README.txt", os.urandom(size))
    return buffer.getvalue()


def _manifest(folder: Path, server: ThreadingHTTPServer, content: dict[str, bytes], *, sizes: bool = True) -> Path:
    """Write the manifest of a data set of these files, which the server then serves."""
    entries = []
    for path, body in content.items():
        server.content[f"/{path}"] = body
        size = len(body) if sizes else "null"
        entries.append(f'  - {{path: {path}, bytes: {size}, sha256: "{hashlib.sha256(body).hexdigest()}"}}\n')
    folder.mkdir(exist_ok=True)
    base = f"base: http://127.0.0.1:{server.server_port}/\n"
    (folder / "toys.yaml").write_text(f"name: toys\nfolder: Toys\n{HEAD}{base}files:\n{''.join(entries)}")
    return folder


@pytest.mark.parametrize("sizes", [True, False])
def test_a_broken_connection_is_taken_up_where_it_ended(
    tmp_path: Path, server: ThreadingHTTPServer, sizes: bool
) -> None:
    archive = _archive()
    manifests = _manifest(tmp_path / "m", server, {"toys.zip": archive}, sizes=sizes)
    server.break_off = [5000, 7000, 1000, 1000, 1000, 1000]  # more often than is tried in vain
    seen: list[tuple] = []
    folder = data.fetch("toys", tmp_path / "d", manifests=manifests, progress=lambda *now: seen.append(now))
    assert server.asked[:3] == [("/toys.zip", None), ("/toys.zip", "bytes=5000-"), ("/toys.zip", "bytes=12000-")]
    assert server.asked[-1] == ("/toys.zip", "bytes=16000-")
    assert (folder / "chair" / "train" / "c.off").read_bytes() == TRIANGLE
    assert [path.name for path in (tmp_path / "d").iterdir()] == ["Toys"]
    assert [size for _, size, _ in seen] == sorted(size for _, size, _ in seen)
    assert seen[-1] == ("toys.zip", len(archive), len(archive))


def test_a_fetch_that_gave_up_is_taken_up_by_the_next(tmp_path: Path, server: ThreadingHTTPServer) -> None:
    archive = _archive()
    manifests = _manifest(tmp_path / "m", server, {"toys.zip": archive})
    server.break_off = [3000, 0, 0, 0, 0]
    with raises("download.failed", "toys.zip"):
        data.fetch("toys", tmp_path / "d", manifests=manifests)
    assert not (tmp_path / "d" / "Toys").exists()
    assert [path.name for path in (tmp_path / "d").iterdir()] == [".Toys.partial"]
    with raises("dataset.not_fetched"):
        _find(tmp_path / "d")
    server.asked.clear()
    server.break_off = []
    data.fetch("toys", tmp_path / "d", manifests=manifests)
    assert server.asked == [("/toys.zip", "bytes=3000-")]
    assert [path.name for path in (tmp_path / "d").iterdir()] == ["Toys"]


def _find(folder: Path) -> Path:
    """Look for a known data set where only an unfinished download is."""
    (folder / ".Toys.partial").rename(folder / ".ModelNet40.partial")
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SPARSEPIPE_DATA", str(folder))
            patch.setenv("XDG_CACHE_HOME", str(folder / "none"))
            return data.find("modelnet40")
    finally:
        (folder / ".ModelNet40.partial").rename(folder / ".Toys.partial")


def test_files_that_came_whole_are_not_fetched_twice(tmp_path: Path, server: ThreadingHTTPServer) -> None:
    files = {f"chair/train/{name}.off": TRIANGLE + name.encode() for name in "abc"}
    manifests = _manifest(tmp_path / "m", server, files)
    last = server.content.pop("/chair/train/c.off")
    server.content["/chair/train/c.off"] = b"#" * len(last)
    with raises("download.digest_differs", "c.off"):
        data.fetch("toys", tmp_path / "d", manifests=manifests)
    partial = tmp_path / "d" / ".Toys.partial" / "files" / "chair" / "train"
    assert sorted(path.name for path in partial.iterdir()) == ["a.off", "b.off"]
    (partial / "b.off").write_bytes(b"damaged since")
    server.content["/chair/train/c.off"] = last
    server.asked.clear()
    folder = data.fetch("toys", tmp_path / "d", manifests=manifests)
    assert [path for path, _ in server.asked] == ["/chair/train/b.off", "/chair/train/c.off"]
    assert {path.name: path.read_bytes() for path in (folder / "chair" / "train").iterdir()} == {
        path.rpartition("/")[2]: body for path, body in files.items()
    }


def test_a_server_without_ranges_sends_all_again(tmp_path: Path, server: ThreadingHTTPServer) -> None:
    manifests = _manifest(tmp_path / "m", server, {"toys.zip": _archive()})
    server.ranges, server.break_off = False, [5000]
    folder = data.fetch("toys", tmp_path / "d", manifests=manifests)
    assert (folder / "chair" / "train" / "c.off").read_bytes() == TRIANGLE
    assert len(server.asked) == 2


def test_a_server_that_tells_no_length_is_held_to_the_manifest(tmp_path: Path, server: ThreadingHTTPServer) -> None:
    manifests = _manifest(tmp_path / "m", server, {"toys.zip": _archive()})
    server.says_length, server.break_off = False, [5000]
    data.fetch("toys", tmp_path / "d", manifests=manifests)
    assert server.asked[1] == ("/toys.zip", "bytes=5000-")


@pytest.mark.parametrize("sizes", [True, False])
def test_what_was_kept_of_another_file_is_dropped(tmp_path: Path, server: ThreadingHTTPServer, sizes: bool) -> None:
    """The archive changed on the server between two tries: the joined halves do not verify, so all is fetched anew."""
    archive = _archive()
    manifests = _manifest(tmp_path / "m", server, {"toys.zip": archive}, sizes=sizes)
    part = tmp_path / "d" / ".Toys.partial" / "files" / "toys.zip.part"
    for size in (5000, len(archive), len(archive) + 50):  # shorter, whole, longer
        part.parent.mkdir(parents=True)
        part.write_bytes(b"#" * size)
        server.asked.clear()
        folder = data.fetch("toys", tmp_path / "d", manifests=manifests)
        assert server.asked[-1] == ("/toys.zip", None)
        assert (folder / "chair" / "train" / "c.off").read_bytes() == TRIANGLE
        for path in sorted(folder.rglob("*"), reverse=True):
            path.unlink() if path.is_file() else path.rmdir()
        folder.rmdir()


def test_a_whole_part_is_only_verified(tmp_path: Path, server: ThreadingHTTPServer) -> None:
    """A kill between the last byte and the check."""
    archive = _archive()
    for sizes, asked in ((True, []), (False, [("/toys.zip", f"bytes={len(archive)}-")])):
        manifests = _manifest(tmp_path / "m", server, {"toys.zip": archive}, sizes=sizes)
        part = tmp_path / str(sizes) / ".Toys.partial" / "files" / "toys.zip.part"
        part.parent.mkdir(parents=True)
        part.write_bytes(archive)
        server.asked.clear()
        data.fetch("toys", tmp_path / str(sizes), manifests=manifests)
        assert server.asked == asked


def test_errors_of_the_server(tmp_path: Path, server: ThreadingHTTPServer) -> None:
    manifests = _manifest(tmp_path / "m", server, {"toys.zip": _archive()})
    server.errors = [404]
    with raises("download.failed", "toys.zip", "HTTP Error 404"):
        data.fetch("toys", tmp_path / "d", manifests=manifests)
    assert len(server.asked) == 1
    assert list((tmp_path / "d").iterdir()) == []
    server.errors = [503, 429]
    assert data.fetch("toys", tmp_path / "d", manifests=manifests).is_dir()


def test_nobody_there(tmp_path: Path, server: ThreadingHTTPServer) -> None:
    manifests = _manifest(tmp_path / "m", server, {"toys.zip": _archive()})
    manifest = manifests / "toys.yaml"
    manifest.write_text(manifest.read_text().replace(f":{server.server_port}/", ":9/"))
    with raises("download.failed", "refused"):
        data.fetch("toys", tmp_path / "d", manifests=manifests)
    assert list((tmp_path / "d").iterdir()) == []


def test_a_full_disk_is_one_line_and_leaves_nothing_under_the_final_name(
    tmp_path: Path, server: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifests = _manifest(tmp_path / "m", server, {"toys.zip": _archive()})

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(transfer.os, "fsync", full)
    with raises("download.unwritable", "No space left on device", name="toys"):
        data.fetch("toys", tmp_path / "d", manifests=manifests)
    assert not (tmp_path / "d" / "Toys").exists()
    monkeypatch.undo()
    monkeypatch.setenv("no_proxy", "*")
    assert data.fetch("toys", tmp_path / "d", manifests=manifests).is_dir()


def test_a_file_of_no_stated_size_is_bounded(
    tmp_path: Path, server: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`bytes: null` downloaded without an end."""
    monkeypatch.setattr(transfer, "_MOST_UNSTATED_BYTES", 10_000)
    manifests = _manifest(tmp_path / "m", server, {"toys.zip": _archive()}, sizes=False)
    with raises("download.too_large", "toys.zip", "10 kB"):
        data.fetch("toys", tmp_path / "d", manifests=manifests)
    assert list((tmp_path / "d").iterdir()) == []


def test_an_archive_damaged_inside_is_refused(tmp_path: Path, server: ThreadingHTTPServer) -> None:
    archive = bytearray(_archive())
    archive[archive.index(b"Toys/README.txt") + 500] ^= 0xFF
    manifests = _manifest(tmp_path / "m", server, {"toys.zip": bytes(archive)})
    with raises("archive.damaged", "Bad CRC-32"):
        data.fetch("toys", tmp_path / "d", manifests=manifests)
    assert list((tmp_path / "d").iterdir()) == []


@pytest.mark.parametrize("name", ["toys", "Toys"])
def test_what_a_folder_of_the_environment_holds_is_not_fetched(
    tmp_path: Path, server: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Unless another folder is named; what no folder holds goes to the user's own, and what has no SHA-256 nowhere."""
    manifests = _manifest(tmp_path / "m", server, {"toys.zip": _archive()})
    monkeypatch.setenv("SPARSEPIPE_DATA", f"{tmp_path / 'one'}{os.pathsep}{tmp_path / 'two'}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    own = tmp_path / "cache" / "sparsepipe" / "data" / "Toys"
    assert data.fetch("toys", manifests=manifests) == own
    server.asked.clear()
    there = tmp_path / "two" / name
    (there / "chair" / "train").mkdir(parents=True)
    assert data.fetch("toys", manifests=manifests) == there
    assert server.asked == []
    assert data.fetch("toys", tmp_path / "d", manifests=manifests) == tmp_path / "d" / "Toys"
    assert len(server.asked) == 1
    manifest = manifests / "toys.yaml"
    manifest.write_text(re.sub('sha256: "[0-9a-f]+"', "sha256: null", manifest.read_text()))
    assert data.fetch("toys", manifests=manifests) == there
    with raises("download.unverified", "no SHA-256 is known for", "toys.zip", name="toys"):
        data.fetch("toys", tmp_path / "e", manifests=manifests)


def _four_at_once(function: Callable[[], object]) -> list[object]:
    """Call a function in four threads; return what each returned. Raises what any of them raised."""
    with ThreadPoolExecutor(4) as pool:
        return [call.result() for call in [pool.submit(function) for _ in range(4)]]


def test_two_at_once_fetch_once(tmp_path: Path, server: ThreadingHTTPServer) -> None:
    manifests = _manifest(tmp_path / "m", server, {"toys.zip": _archive()})
    results = _four_at_once(lambda: data.fetch("toys", tmp_path / "d", manifests=manifests))
    assert results == [tmp_path / "d" / "Toys"] * 4
    assert len(server.asked) == 1
    assert [path.name for path in (tmp_path / "d").iterdir()] == ["Toys"]


def test_the_lock_of_a_folder_that_was_removed_meanwhile_is_not_taken_for_one(tmp_path: Path) -> None:
    work = tmp_path / ".Toys.partial"
    order: list[str] = []
    inside = threading.Event()

    def second() -> None:
        inside.wait()
        with downloads._alone(work):
            order.append("second")
            assert (work / "lock").is_file()

    thread = threading.Thread(target=second)
    thread.start()
    with downloads._alone(work):
        inside.set()
        thread.join(0.2)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
    assert not work.exists()


def test_a_folder_that_comes_and_goes_meanwhile_is_waited_for(tmp_path: Path) -> None:
    """As where others fetch the same: each removes the folder when it is done."""
    work = tmp_path / ".Toys.partial"

    def hold_again_and_again() -> int:
        held = 0
        for _ in range(300):
            with downloads._alone(work):
                held += 1
        return held

    assert _four_at_once(hold_again_and_again) == [300] * 4
    assert not work.exists()


def test_a_file_where_its_folder_would_be_is_one_line(tmp_path: Path, server: ThreadingHTTPServer) -> None:
    (tmp_path / ".Toys.partial").write_text("")
    manifests = _manifest(tmp_path / "m", server, {"toys.zip": _archive()})
    with raises("download.unwritable", "Not a directory", name="toys"):
        data.fetch("toys", tmp_path, manifests=manifests)
