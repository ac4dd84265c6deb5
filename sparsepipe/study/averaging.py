"""Measure how long two processes of this machine take to average gradients with the runtime's own all-reduce.

Gloo's messages between two processes of a machine cost both of them processor time: to copy into the socket and out of
it, to add, and to pack and unpack gradients. A socket that carries bytes one way, while the other side only
reads, is faster than that by a factor.
"""

import subprocess
import tempfile
from pathlib import Path

from ..errors import InputError
from ..launching.probes.measure import loopback_link
from ..util.host.python_path import python_command, python_environment
from ..util.io.files import read_json
from ..values.cluster import Link

SIZES = (2**12, 2**24)  # bytes of gradients: the smaller tells the latency, the larger the bandwidth
SECONDS = "seconds.json"  # the medians for both sizes, where the two processes leave them
TIMEOUT = 120.0  # seconds for both processes to start, meet and measure


def local_link() -> Link:
    """Measure now the link between two processes of a local run: what planners may count on, whatever goes over it.

    Its latency is that of a packet's header, its bandwidth the lower one of packets and of averaging.
    Raises InputError if two processes cannot run.
    """
    packets, gradients = loopback_link(), averaging_link()
    return Link(min(packets.bandwidth, gradients.bandwidth), packets.latency)


def averaging_link() -> Link:
    """Measure now the link by which `costs.averaging_time` says what averaging between two processes takes.

    Raises InputError if two processes cannot run.
    """
    with tempfile.TemporaryDirectory(prefix="sparsepipe-averaging-") as folder:
        environment = python_environment(WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")
        command = python_command("sparsepipe.study.averaging_ranks", folder)
        with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE) as both:  # they end where stdin closes
            try:
                code = both.wait(timeout=TIMEOUT)
            except subprocess.TimeoutExpired:
                raise InputError(
                    "averaging.timeout", f"two processes that average did not end within {TIMEOUT:g} s; try again"
                ) from None
        if code:
            raise InputError(
                "averaging.failed", f"two processes that average ended with exit code {code}; see their output above"
            )
        small, large = read_json(Path(folder) / SECONDS)["seconds"]
    latency = small / 2  # two messages of half the bytes
    return Link(SIZES[1] / max(large - small, 1e-9), latency)
