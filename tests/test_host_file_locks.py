"""Disks without locks or shared memory: a file that is locked or mapped is named with a remedy, or done without."""

import errno
import fcntl
import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest
from coded import raises

from sparsepipe import Cluster
from sparsepipe.data import downloads
from sparsepipe.launching import lock
from sparsepipe.runtime.processes.ballot import Announcement, Ballot
from sparsepipe.runtime.processes.signs_of_life import Heartbeats, mapped_file
from sparsepipe.runtime.workloads.replay import LinksOfHost
from sparsepipe.util.io.files import lock_file

NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)  # of NFS, Lustre, FUSE


def refusing(number):
    """A call of the system as a disk answers it that does not know it."""

    def call(*_):
        raise OSError(number, os.strerror(number))

    return call


@pytest.fixture(params=NO_LOCKS, ids=errno.errorcode.get)
def disk_without_locks(request, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", refusing(request.param))
    return os.strerror(request.param)


def test_a_run_is_refused_in_a_line_that_names_its_lock(tmp_path, disk_without_locks):
    open_before = len(list(Path("/proc/self/fd").iterdir()))
    with raises("lock.unsupported", "another disk") as refused:
        lock.hold(tmp_path / "run")
    assert str(tmp_path / "run" / lock.LOCK) in str(refused.value) and disk_without_locks in str(refused.value)
    assert len(list(Path("/proc/self/fd").iterdir())) == open_before


def test_records_there_can_be_looked_at(tmp_path, disk_without_locks):
    """No run holds a lock there; whether one is at work is seen by its supervisor."""
    (tmp_path / "logs").mkdir()
    (tmp_path / lock.LOCK).touch()
    assert not lock.is_held(tmp_path)
    words = ["-c", "print(flush=True); input()", "supervisor.py", str(tmp_path)]
    with subprocess.Popen([sys.executable, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as guard:
        guard.stdout.readline()
        assert lock.is_held(tmp_path)
        guard.communicate(b"\n")
    assert not lock.is_held(tmp_path)


def test_downloads_and_emulated_links_name_what_they_cannot_lock(tmp_path, disk_without_locks):
    with raises("lock.unsupported", "another disk") as refused, downloads._alone(tmp_path / ".set.partial"):
        pass
    assert str(tmp_path / ".set.partial" / "lock") in str(refused.value)
    links = LinksOfHost(tmp_path / "logs" / ".ports", Cluster.uniform(2))
    with raises("lock.unsupported", "another disk") as refused:
        links.send(0, 1, 1000, forward=True)
    assert str(tmp_path / "logs" / ".ports") in str(refused.value)


def test_a_lock_that_another_has_is_no_fault_of_the_disk(tmp_path):
    with (tmp_path / "a").open("w") as first, (tmp_path / "a").open("w") as second:
        told = {"path": tmp_path / "a", "remedy": "choose another"}
        assert lock_file(first.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB, **told)
        assert not lock_file(second.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB, **told)
        fcntl.flock(first, fcntl.LOCK_UN)
        assert lock_file(second.fileno(), fcntl.LOCK_EX, **told)


@pytest.mark.parametrize(
    "make",
    [
        lambda path: mapped_file(path, 64),
        Announcement,
        lambda path: Ballot(path, 4),
        lambda path: Heartbeats(path, 2, 0),
        lambda path: LinksOfHost(path, Cluster.uniform(2)),
    ],
)
@pytest.mark.parametrize("number", [errno.ENODEV, errno.EINVAL], ids=errno.errorcode.get)
def test_what_cannot_be_mapped_is_named(tmp_path, monkeypatch, make, number):
    monkeypatch.setattr(mmap, "mmap", refusing(number))
    with raises("disk.not_mappable") as refused:
        make(tmp_path / "shared")
    assert "shared: " in str(refused.value) and os.strerror(number) in str(refused.value)


def test_a_mapped_file_has_its_size_and_keeps_what_is_in_it(tmp_path):
    first = mapped_file(tmp_path / "shared", 16)
    first[:3] = b"abc"
    assert bytes(mapped_file(tmp_path / "shared", 16)) == b"abc" + bytes(13)
    assert bytes(mapped_file(tmp_path / "shared", 4)) == b"abc\0"
    assert bytes(mapped_file(tmp_path / "shared", 5000)) == b"abc" + bytes(4997)
    blocks = (tmp_path / "shared").stat().st_blocks
    assert blocks * 512 >= 5000, "no page is missing that a write to the map would have to find room for"


def test_a_full_disk_is_told_as_such():
    """Not as one that cannot be mapped: /dev/full takes no byte."""
    with pytest.raises(OSError) as refused:
        mapped_file(Path("/dev/full"), 64)
    assert refused.value.errno == errno.ENOSPC
