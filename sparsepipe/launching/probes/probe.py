"""The program that is sent to each host: it answers questions, a frame each (wire/frames.py), until its input ends.

It is run as `python -c` behind the texts of wire/frames.py and wire/handshake.py, by whatever Python the host has, with
sparsepipe or without: standard library alone, and torch only for `compute`. It listens on the address that it is
given, takes connections that prove the secret, and ends with its input.
"""

from __future__ import annotations  # an older Python there is to be told of, not to fail in a traceback

import hashlib
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # there, they stand before this program
    from ...runtime.wire.frames import LENGTHS_BYTES, FrameReader, FrameWriter, lengths, read_lengths
    from ...runtime.wire.handshake import Caller, Listener, call, fill

PACKAGES = ("sparsepipe", "torch", "numpy")
MOST_SENT = 1 << 26  # of one message
CONNECT_SECONDS = 10.0
CPU = "cpu"
WIDTH, ROWS = 1024, 512  # of the reference layer
SENT_AT_ONCE = 1 << 18  # bytes of a message while loops run beside it
# Counts for the seconds that it is given, again and again; says how far it came, and in how much of that time it ran:
# all but what it waited for a processor, so that interrupts which took some of a processor's time count as slowness.
LOOP = """
import sys, time
def waited():
    try:
        with open("/proc/self/schedstat") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return time.perf_counter() - time.process_time()
print(flush=True)
for line in sys.stdin:
    count, before, begin = 0, waited(), time.perf_counter()
    while time.perf_counter() < begin + float(line):
        for _ in range(1000):
            pass
        count += 1
    print(count, time.perf_counter() - begin - (waited() - before), flush=True)
"""


def facts(asked: dict[str, Any]) -> dict[str, Any]:
    """Versions, devices, memory, disk and clock of this host."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "hostname": socket.gethostname(),
        "python": ".".join(platform.python_version_tuple()[:2]),
        "executable": sys.executable,
        "packages": {name: found for name in PACKAGES for found in [version(name)] if found},
        "code": code_digest(),
        "cores": len(os.sched_getaffinity(0)),
        "gpus": gpus(),
        "memory_bytes": pages,
        **disk(),
    }


def disk() -> dict[str, Any]:
    """Return the folder of remotely launched runs on this host (launching/ssh/hosted_run.py), and its free space.

    As long as there is none the folder that it will be in says it.
    """
    folder = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "sparsepipe" / "hosted"
    there = next(path for path in (folder, *folder.parents) if path.exists())
    return {"disk_folder": str(there), "disk_bytes": shutil.disk_usage(there).free}


def clock(asked: dict[str, Any]) -> dict[str, Any]:
    return {"clock": time.time()}


def version(name: str) -> str | None:
    try:
        from importlib.metadata import PackageNotFoundError
        from importlib.metadata import version as of_package
    except ImportError:  # Python 3.7
        return None
    try:
        return of_package(name)
    except PackageNotFoundError:
        return None


def code_digest() -> str | None:
    """A digest of sparsepipe's files, None if it is not installed."""
    from importlib.util import find_spec

    sys.path[:] = [path for path in sys.path if path]  # not what lies in the current folder
    spec = find_spec("sparsepipe")
    if spec is None or not spec.submodule_search_locations:
        return None
    digest, top = hashlib.sha256(), Path(next(iter(spec.submodule_search_locations)))
    for path in sorted(top.rglob("*.py")):
        digest.update(path.relative_to(top).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def gpus() -> list[tuple[str, float]]:
    """(name, bytes) of each GPU that may be used."""
    command = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        lines = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=30, check=True
        ).stdout
        found = [line.rsplit(",", 1) for line in lines.decode().splitlines() if "," in line]
        every = [(name.strip(), float(mebibytes) * 2**20) for name, mebibytes in found]
    except (OSError, ValueError, subprocess.SubprocessError):
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return every
    chosen = [int(text) for text in visible.split(",") if text.strip().isdigit()]
    return [every[number] for number in chosen if number < len(every)]


class Receiver:
    """Listens on one address; who proves the secret sends messages that are acknowledged."""

    def __init__(self, address: str, secret: str) -> None:
        self.received = 0  # bytes, of all messages
        self.listener = Listener(address, bytes.fromhex(secret), self.take)

    def take(self, caller: Caller) -> None:
        threading.Thread(target=self.answer, args=(caller.connection,), daemon=True).start()

    def answer(self, connection: socket.socket) -> None:
        begin, room = bytearray(LENGTHS_BYTES), memoryview(bytearray(1 << 20))
        with connection:
            connection.settimeout(CONNECT_SECONDS)
            try:
                while True:
                    fill(connection, memoryview(begin))
                    _, left = read_lengths(begin, most_head=0, most_payload=MOST_SENT)
                    while left:
                        part = room[: min(left, len(room))]
                        fill(connection, part)
                        left -= len(part)
                        self.received += len(part)
                    connection.sendall(b"\1")
            except (OSError, ValueError):
                return


def connected(asked: dict[str, Any], address: str, port: int) -> socket.socket:
    deadline = time.monotonic() + CONNECT_SECONDS
    return call(address, port, bytes.fromhex(asked["secret"]), (0, 0, 0), deadline=deadline)


def send(connection: socket.socket, payload: bytes) -> float:
    """Seconds of one message until it is acknowledged."""
    begin = time.perf_counter()
    connection.sendall(lengths(0, len(payload)))
    connection.sendall(payload)
    fill(connection, memoryview(bytearray(1)))
    return time.perf_counter() - begin


RECEIVERS: list[Receiver] = []


def listen(asked: dict[str, Any]) -> dict[str, Any]:
    RECEIVERS.append(Receiver(asked["address"], asked["secret"]))
    return {"port": RECEIVERS[-1].listener.port}


def reach(asked: dict[str, Any]) -> dict[str, Any]:
    """List the peers (name, address, port) that cannot be reached, with the reason."""
    failed = {}
    for name, address, port in asked["peers"]:
        try:
            with connected(asked, address, port) as connection:
                send(connection, b"")
        except OSError as error:
            failed[name] = str(error)[:200]
    return {"failed": failed}


def link(asked: dict[str, Any]) -> dict[str, Any]:
    """Median seconds of a message of each size to a peer; few of the large ones where they take long."""
    times = {}
    with connected(asked, asked["address"], asked["port"]) as connection:
        connection.settimeout(60.0)
        send(connection, b"")
        for size in asked["sizes"]:
            took: list[float] = []
            payload, begin = bytes(size), time.perf_counter()
            while len(took) < 3 or (len(took) < 200 and time.perf_counter() - begin < asked["seconds"]):
                took.append(send(connection, payload))
                if len(took) >= 2 and time.perf_counter() - begin > 10 * asked["seconds"]:
                    break
            times[size] = sorted(took)[len(took) // 2]
    return {"times": times}


def busy(asked: dict[str, Any]) -> dict[str, Any]:
    """Return the iterations of one loop per device and this program's time, while it sends to a peer, if any.

    `pace`: turns of the loops for a second in which they ran; `loop_seconds`: those seconds; `own_seconds`: of a
    processor, of this program; `bytes`: that it sent and received.
    """
    command = [sys.executable, "-S", "-c", LOOP]
    loops = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        for _ in range(asked["devices"])
    ]
    try:
        for one in loops:
            read_line(one)  # it has begun
        before, own = received_bytes(), time.process_time()
        for one in loops:
            tell(one, str(asked["seconds"]))
        sent = stream(asked) if asked.get("address") else 0
        told = [read_line(one).split() for one in loops]
        own = time.process_time() - own
        moved = sent + received_bytes() - before
    finally:
        for one in loops:
            one.kill()
            one.communicate()
    ran = sum(float(took) for _, took in told)
    pace = sum(int(count) for count, _ in told) / ran
    where = {"machine": machine(), "processors": len(os.sched_getaffinity(0))}
    return {"pace": pace, "loop_seconds": ran, "own_seconds": own, "bytes": moved, **where}


def stream(asked: dict[str, Any]) -> int:
    """Send to a peer for some seconds, one message after the other; return how many bytes."""
    sent, payload, end = 0, bytes(SENT_AT_ONCE), time.perf_counter() + asked["seconds"]
    with connected(asked, asked["address"], asked["port"]) as connection:
        connection.settimeout(60.0)
        while time.perf_counter() < end:
            send(connection, payload)
            sent += len(payload)
    return sent


def tell(process: subprocess.Popen[bytes], line: str) -> None:
    assert process.stdin
    process.stdin.write(line.encode() + b"\n")


def read_line(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout
    found = b""
    while not found.endswith(b"\n"):
        part = process.stdout.read(1)
        if not part:
            raise OSError("a loop ended that was to be timed")
        found += part
    return found.decode()


def received_bytes() -> int:
    return sum(one.received for one in RECEIVERS)


def machine() -> str:
    """Return an identifier that hosts with the same kernel and processors share."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


def memory(asked: dict[str, Any]) -> dict[str, Any]:
    """Bytes a second of a copy within this host's memory, which is what its devices' own link is."""
    source, target = bytearray(1 << 25), memoryview(bytearray(1 << 25))
    took = []
    for _ in range(5):
        begin = time.perf_counter()
        target[:] = source
        took.append(time.perf_counter() - begin)
    return {"bandwidth": len(source) / sorted(took)[2] / 2}  # in and out again


def compute(asked: dict[str, Any]) -> dict[str, Any]:
    """Median seconds of the reference layer's forward and backward on each device: a linear one with a ReLU."""
    try:
        import torch
    except ImportError as error:
        return {"error": f"no torch there ({error})"}
    if asked["device"] != CPU and torch.cuda.is_available():
        places = [f"cuda:{k}" for k in range(min(asked["devices"], torch.cuda.device_count()))]
    else:
        places = [CPU]  # its cores are alike
        torch.set_num_threads(1)
    return {"seconds": [layer_seconds(torch, place) for place in places]}


def layer_seconds(torch: ModuleType, place: str) -> float:
    torch.manual_seed(0)
    layer = torch.nn.Linear(WIDTH, WIDTH, device=place)
    rows = torch.randn(ROWS, WIDTH, device=place, requires_grad=True)
    took = []
    for turn in range(13):
        begin = time.perf_counter()
        torch.relu(layer(rows)).sum().backward()
        if place != CPU:
            torch.cuda.synchronize(place)
        if turn >= 2:  # the first ones set things up
            took.append(time.perf_counter() - begin)
    return sorted(took)[len(took) // 2]


def coding(asked: dict[str, Any]) -> dict[str, Any]:
    """Seconds of a processor to code a tensor after a ReLU as sockets send it, and restore it, for each byte of both.

    None if sparsepipe or torch is not installed.
    """
    sys.path[:] = [path for path in sys.path if path]  # not what lies in the current folder
    try:
        import torch

        from sparsepipe.runtime.transport.compression import Compressor, restored
        from sparsepipe.runtime.transport.packet import Packet, Slot
    except ImportError:
        return {"seconds": None}
    torch.set_num_threads(1)
    torch.manual_seed(0)
    slot, took, num_bytes = Slot(torch.relu(torch.randn(ROWS, WIDTH))), [], 0
    for turn in range(13):
        begin = time.process_time()
        coded = Compressor("lossless").shrink((slot,))
        restored(coded[0])
        if turn >= 2:  # the first ones set things up
            took.append(time.process_time() - begin)
        num_bytes = Packet(0, 0, 0, coded).num_bytes
    return {"seconds": sorted(took)[len(took) // 2] / 2 / num_bytes}


ANSWERS: dict[str, Any] = {
    "facts": facts,
    "clock": clock,
    "listen": listen,
    "reach": reach,
    "link": link,
    "busy": busy,
    "coding": coding,
    "memory": memory,
    "compute": compute,
}


def main() -> None:
    out = os.dup(1)
    os.dup2(2, 1)  # what a library prints goes where errors go
    reader, writer = FrameReader(0), FrameWriter(out)
    while True:
        frame = reader.read()
        if frame is None:
            os._exit(0)  # threads may be in the middle of a connection
        asked = json.loads(frame.payload)
        try:
            told = ANSWERS[frame.kind](asked)
        except OSError as error:
            told = {"error": str(error)[:200]}
        writer.send("answer", json.dumps(told).encode(), number=frame.head["number"])


if __name__ == "__main__":
    main()
