"""Gloo's listening sockets, which hear no one once the ranks are connected.

Gloo keeps a socket open for as long as a group exists, takes whoever connects without asking who it is, and keeps
each of them: some hundred strangers use up the files that the process may open, and gloo ends it then. The socket
cannot be closed under it, so a filter drops what comes in on it (SO_ATTACH_FILTER: Linux, for a process's own sockets,
without privileges). Connections that are there have sockets of their own. Elsewhere nothing is done.
"""

import ctypes
import os
import socket
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_SO_ATTACH_FILTER = 26
_DROP = struct.pack("=HBBI", 0x06, 0, 0, 0)  # one instruction of classic BPF: keep 0 bytes of a packet


@contextmanager
def gloo_connects() -> Iterator[None]:
    """Make groups in the block; what it leaves listening hears no one afterwards."""
    before = {inode for inode, _ in _listening()}
    yield
    for inode, listener in _listening():
        if inode not in before:
            _deafen(listener)


def _listening() -> Iterator[tuple[int, socket.socket]]:
    """Yield this process's listening TCP sockets, each for a moment, with the number that the kernel has for it."""
    with suppress(OSError):  # no such folder: another system
        for path in list(Path("/proc/self/fd").iterdir()):
            with suppress(OSError):  # closed meanwhile
                found = path.stat()
                if stat.S_ISSOCK(found.st_mode):
                    with socket.socket(fileno=os.dup(int(path.name))) as one:
                        if _listens(one):
                            yield found.st_ino, one


def _listens(one: socket.socket) -> bool:
    is_tcp = one.family in (socket.AF_INET, socket.AF_INET6) and one.type == socket.SOCK_STREAM
    return is_tcp and bool(one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _deafen(listener: socket.socket) -> None:
    program = ctypes.create_string_buffer(_DROP)
    with suppress(OSError):  # a sandbox without filters: as it would be without this file
        listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("@HP", 1, ctypes.addressof(program)))
