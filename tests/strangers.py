"""Strangers on a network: they connect to whatever listens, say much, little or nothing, and stay if they can."""

import json
import subprocess
import sys
import textwrap
from collections.abc import Callable, Collection, Sequence

Place = tuple[str, int]  # address, port
_PROGRAM = """
    import errno, json, resource, select, socket, sys, time
    places, count = json.loads(sys.argv[1]), int(sys.argv[2])
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    words = [b"", b"x", b"\\0" * 8, b"\\0" * 100000, b'{"id": 1, "op": "get"}\\n', b"GET / HTTP/1.1\\r\\n\\r\\n",
             b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n"]
    for host, port in places:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        waiting, held, refused = select.epoll(), {}, 0
        for k in range(count):
            one = socket.socket(family)
            one.setblocking(False)
            try:
                one.connect((host, port))
            except BlockingIOError:
                pass
            except OSError:
                refused += 1
                one.close()
                continue
            held[one.fileno()] = (one, words[k % len(words)])
            waiting.register(one, select.EPOLLOUT)
        in_, shut, pause = set(), 0, time.monotonic() + float(sys.argv[3])
        while time.monotonic() < pause and held:
            for number, what in waiting.poll(0.2):
                one, word = held[number]
                try:
                    if number not in in_:
                        if one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                            raise ConnectionRefusedError
                        in_.add(number)
                        waiting.modify(one, select.EPOLLIN)
                        one.send(word)
                    elif not one.recv(65536):
                        raise ConnectionResetError
                except BlockingIOError:
                    pass
                except OSError:
                    shut, refused = shut + (number in in_), refused + (number not in in_)
                    waiting.unregister(one)
                    one.close()
                    held.pop(number)
                    in_.discard(number)
        unheard = sum(number not in in_ for number in held)
        print(json.dumps({"place": [host, port], "refused": refused, "unheard": unheard, "shut": shut,
                          "held": len(in_)}), flush=True)
        for one, _ in held.values():
            one.close()
"""


def knock(
    places: Collection[Place],
    count: int,
    *,
    seconds: float,
    command: Callable[[Sequence[str]], list[str]] = list,
) -> dict[Place, dict[str, int]]:
    """Connect `count` times to each place, one place after the other, and stay there for so many seconds.

    `command` makes of words the command that runs them where the strangers are. Returns of each place's connections how
    many were `refused`, `unheard` (nobody answered), `shut` by whoever listens, and `held` to the end.
    """
    words = [
        sys.executable,
        "-I",
        "-c",
        textwrap.dedent(_PROGRAM),
        json.dumps(sorted(places)),
        str(count),
        str(seconds),
    ]
    done = subprocess.run(command(words), capture_output=True, text=True, check=True)
    told = [json.loads(line) for line in done.stdout.splitlines()]
    return {(address, port): facts for facts in told for address, port in [facts.pop("place")]}
