"""Unpack LAZ to LAS in a separate process, because the decompressor aborts its process on a damaged file.

`python -m sparsepipe.data.formats.laz BYTES` reads LAZ from its input and writes LAS to its output, in memory bounded
by that many bytes in addition to what it began with.
"""

import io
import signal
import subprocess
import sys
from pathlib import Path

from ...errors import InputError
from ...util.host.python_path import python_command, python_environment
from .base import one_line, too_large

_BESIDE_BYTES = 256 * 2**20  # for threads, buffers and the file's own bytes
_COPIES = 6  # of the points, packed and not, while they are read and written
_SECONDS = 60  # and one more for each megabyte


def unpacked(path: Path, data: bytes, *, num_bytes: int) -> bytes:
    """Return LAZ `data` as LAS with points of `num_bytes`. Raises InputError that names the file if that fails."""
    allowed = _BESIDE_BYTES + _COPIES * (num_bytes + len(data))
    command = python_command("sparsepipe.data.formats.laz", str(allowed))
    seconds = _SECONDS + num_bytes / 1e6
    try:
        done = subprocess.run(
            command, input=data, capture_output=True, env=python_environment(), timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        raise InputError(
            "laz.timeout",
            f"{path}: not unpacked within {seconds:.0f} s; store it as LAS, or try again on a machine that is "
            "less busy",
        ) from None
    except OSError as error:
        raise InputError(
            "laz.not_startable", f"{path}: the LAZ unpacking process cannot be started ({error.strerror}); try again"
        ) from None
    if done.returncode == -signal.SIGKILL:  # by the system, which ran out of memory
        raise too_large(path)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        reason = said[-1][:200] if done.returncode == 1 and said else "the decompressor gave up"
        raise InputError(
            "laz.unreadable", f"{path}: not a LAZ point cloud that can be read ({reason}); fetch the file again"
        )
    return done.stdout


def main(allowed_bytes: int) -> int:
    """Unpack standard input to standard output; return the exit code."""
    import laspy

    data = sys.stdin.buffer.read()
    _limit_memory(allowed_bytes)
    try:
        found = laspy.read(io.BytesIO(data), laz_backend=laspy.LazBackend.Lazrs)
        out = io.BytesIO()
        found.write(out, do_compress=False)
    except Exception as error:  # laspy and the decompressor raise many kinds; the file is at fault in each
        print(one_line(error), file=sys.stderr)
        return 1
    sys.stdout.buffer.write(out.getbuffer())
    return 0


def _limit_memory(allowed_bytes: int) -> None:
    """Let this process take so much address space in addition to what it has, where the system can say and limit it."""
    try:
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + allowed_bytes
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (limit if most == resource.RLIM_INFINITY else min(limit, most), most))
    except (ImportError, OSError, ValueError):
        return


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
