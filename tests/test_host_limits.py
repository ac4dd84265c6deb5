"""A limit of the machine is named in one sentence, in whatever words it came."""

import errno
import os
import resource
from pathlib import Path

import pytest
from coded import mentions

from sparsepipe.errors import InputError
from sparsepipe.runtime.failures import PeerLost, described, translated
from sparsepipe.util.host.limits import MemoryKills, _of_container, limit_in, limit_met


def _caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (FULL, "No space left on device: the disk of /runs/a is full; free some space on it"),
        (OSError(errno.ENOSPC, "", "/d/x"), "No space left on device: the disk of /d/x is full; free some space on it"),
        (RuntimeError("I/O error: No space left on device (os error 28)"), "No space left on device: "),
        (_caused(RuntimeError("while writing"), FULL), "No space left on device: "),
        (OSError(errno.EDQUOT, ""), "Disk quota exceeded: "),
        (OSError(errno.EFBIG, "", "/d/x"), "File too large: /d/x would exceed the file size limit"),
        (OSError(errno.EMFILE, ""), "Too many open files: no more can be opened"),
        (MemoryError(), "Cannot allocate memory: not enough is available"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 9 bytes"), "Cannot allocate memory"),
        (RuntimeError("can't start new thread"), "Resource temporarily unavailable: no thread or process"),
    ],
)
def test_it_is_found_in_what_caused_an_exception(error: Exception, told: str) -> None:
    """A full disk was "ended with code 1", a limit on files torch's stack trace squeezed into one line."""
    found = limit_met(error, where=Path("/runs/a"))
    assert found is not None and found.startswith(told) and "\n" not in found and len(found) < 200
    document = described(error, run_dir=Path("/runs/a"), rank=0, stage=0)
    assert document["message"] == found and document["limit"]


@pytest.mark.parametrize(
    "error", [KeyError("x"), OSError(errno.ENOENT, ""), InputError("a.b", "no"), BlockingIOError(11, "")]
)
def test_other_exceptions_are_no_limit(error: Exception) -> None:
    assert limit_met(error) is None


def test_the_limit_that_is_set_is_said() -> None:
    most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, most[1]))
    try:
        assert mentions(str(limit_met(OSError(errno.EFBIG, ""))), "1,000,000")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, most)


def test_the_end_of_a_log_names_it_too() -> None:
    """C++ code that aborts leaves no exception."""
    log = "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n"
    assert str(limit_in(log)).startswith("Cannot allocate memory") and limit_in("all is well") is None


def test_what_this_process_lacks_is_not_taken_for_a_lost_peer() -> None:
    """`ulimit -v`: "PeerLost … Resource temporarily unavailable"; memory was not named."""
    with pytest.raises(RuntimeError, match="^Resource"), translated("rank 0 waited", peer=1):
        raise RuntimeError("Resource temporarily unavailable")
    with pytest.raises(PeerLost, match="rank 1"), translated("rank 0 waited", peer=1):
        raise RuntimeError("Connection reset by peer")


def test_a_kill_by_the_kernel_is_told_from_its_counts() -> None:
    before = MemoryKills(group=1, machine=5)
    assert MemoryKills(1, 5).since(before) is None and MemoryKills(None, None).since(before) is None
    assert mentions(str(MemoryKills(2, 6).since(before)), "oom_kill")
    assert "perhaps" in str(MemoryKills(1, 6).since(before))
    assert MemoryKills.now().since(MemoryKills.now()) is None


def test_what_a_container_keeps_of_files_is_free_for_whoever_needs_it(tmp_path: Path) -> None:
    """A container that had read a large data set had no memory left for a plan, as it seemed."""
    assert _of_container(tmp_path) == float("inf"), "no container"
    (tmp_path / "memory.max").write_text("8000\n")
    (tmp_path / "memory.current").write_text("7000\n")
    assert _of_container(tmp_path) == 1000
    (tmp_path / "memory.stat").write_text("anon 1500\nfile 5500\ninactive_file 5000\n")
    assert _of_container(tmp_path) == 6000
    (tmp_path / "memory.max").write_text("max\n")
    assert _of_container(tmp_path) == float("inf")
