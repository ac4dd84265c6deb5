"""Hosts on one machine: namespaces of their own on a bridge, each with a real sshd on its own address and its own home.

    desk   10.77.0.254   where tests launch from; sees this machine's files
    host1  10.77.0.1     ┐ own processes, host name, /etc/hosts, home, /dev/shm and /run; the test's folder is empty
    host2  10.77.0.2 …   ┘ there, so that nothing passes because the disk is shared (code and interpreter are)

No namespace has a way out: there is no route and no interface beyond the bridge. All of it ends with its first
processes, which end with this one. For root; skipped aloud where the kernel refuses or sshd is missing.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from processes import ENOUGH

DESK = "desk"
_SUBNET = "10.77.0"
_TOOLS = ("ssh", "ssh-keygen", "ip", "unshare", "nsenter", "setpriv")
_SETTINGS = """
ListenAddress {address}
HostKey {keys}/host
AuthorizedKeysFile {keys}/desk.pub
StrictModes no
UsePAM no
PermitRootLogin prohibit-password
PidFile none
PrintMotd no
UseDNS no
"""
# What a namespace's first process does before it becomes `$@`: words are given to it, none is part of the script.
_BEGIN = """
set -e
hostname "$1"
mount --bind "$2/hosts" /etc/hosts
mount --bind "$2/passwd" /etc/passwd
mount --bind "$2/shadow" /etc/shadow
mount -t tmpfs none /run
mkdir /run/home /run/sshd /run/keys
mount --bind "$2/home" /run/home
mount --bind "$2/keys" /run/keys
if [ "$3" ]; then
  mount -t tmpfs none /dev/shm
  mount -t tmpfs none "$3"
fi
shift 3
exec "$@"
"""


@dataclass
class Host:
    """A host: a process that holds its namespaces, and what is seen of them from outside."""

    name: str
    address: str
    process: subprocess.Popen = field(repr=False)
    home: Path  # as it is called from outside
    port: str = ""  # of the switch that it is plugged into

    @property
    def pid(self) -> int:
        """The first process within the namespaces: the child of the `unshare` that made them; the desk's has none."""
        if self.name == DESK:
            return self.process.pid  # its children are those of `_BEGIN`, for a moment
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(children[0]) if children else self.process.pid

    def command(self, words: Sequence[str], *, only_network: bool = False) -> list[str]:
        """Return the command that runs `words` on the host. `only_network`: elsewhere in all other respects."""
        which = ["-n"] if only_network else ["-n", "-m", "-u", "-i", *(["-p"] if self.name != DESK else [])]
        return ["nsenter", "-t", str(self.pid), *which, *words]

    def run(self, *words: str, timeout: float = ENOUGH, **options: object) -> subprocess.CompletedProcess[str]:
        """Run a command on the host and return what it said."""
        environment = {**os.environ, "HOME": "/run/home"}
        options = {"capture_output": True, "text": True, "timeout": timeout, "env": environment, **options}
        return subprocess.run(self.command(words), check=False, **options)  # type: ignore[call-overload]

    def listening(self) -> set[tuple[str, int]]:
        """Return (address, port) of every TCP socket that listens on the host."""
        told = subprocess.run(
            self.command(["ss", "-Hltn"], only_network=True), capture_output=True, text=True, check=True
        ).stdout
        pairs = (line.split()[3].rpartition(":") for line in told.splitlines())
        return {(address.strip("[]"), int(port)) for address, _, port in pairs}

    def commands(self) -> dict[int, list[str]]:
        """Return the words of every process of the host but its sshd and those of the look itself, by process id."""
        own, first = Path(f"/proc/{self.pid}/ns/net").readlink(), {self.pid, self.process.pid}
        found = {}
        for path in Path("/proc").iterdir():
            try:
                if path.name.isdigit() and (path / "ns/net").readlink() == own:
                    words = (path / "cmdline").read_bytes().decode(errors="replace").split("\0")
                    if words[0] and not words[0].startswith(("sshd", "/usr/sbin/sshd")) and int(path.name) not in first:
                        found[int(path.name)] = words
            except OSError:
                continue  # ended meanwhile
        return found


@dataclass
class Network:
    """The hosts, their desk, and the switch between them."""

    hosts: tuple[Host, ...]
    desk: Host
    switch: subprocess.Popen = field(repr=False)

    def cut(self, host: Host) -> None:
        """Pull a host's cable."""
        _ip(self.switch.pid, "link", "set", host.port, "down")

    def mend(self, host: Host) -> None:
        """Plug it in again."""
        _ip(self.switch.pid, "link", "set", host.port, "up")

    def shape(self, host: Host, rate: str) -> None:
        """Give a host's link a rate such as "200mbit", both ways."""
        mbit = float(rate.removesuffix("mbit"))
        words = ["root", "handle", "1:", "tbf", "rate", rate, "burst", f"{max(65536, int(mbit * 500))}b"]
        for pid, interface in ((host.pid, "eth0"), (self.switch.pid, host.port)):  # a bucket of 4 ms
            words_of = ["tc", "qdisc", "replace", "dev", interface, *words, "latency", "50ms"]
            subprocess.run(["nsenter", "-t", str(pid), "-n", *words_of], check=True, capture_output=True)


@contextmanager
def network_hosts(count: int, folder: Path) -> Iterator[Network]:
    """Make `count` hosts and a desk whose files are in `folder`, this test's own. Skips where it cannot."""
    _check_tools()
    names = [*(f"host{k}" for k in range(1, count + 1)), DESK]
    addresses = dict(zip(names, [*(f"{_SUBNET}.{k}" for k in range(1, count + 1)), f"{_SUBNET}.254"], strict=True))
    with ExitStack() as stack:
        switch = stack.enter_context(_first_process(["--net"], ["sleep", "infinity"]))
        _ip(switch.pid, "link", "add", "bridge", "type", "bridge", "forward_delay", "0")
        _ip(switch.pid, "link", "set", "bridge", "up")
        _make_keys(folder, addresses)
        hosts = [
            _host(stack, folder, name, address, switch.pid, is_desk=name == DESK) for name, address in addresses.items()
        ]
        for host in hosts[:-1]:
            _await_sshd(host, folder)
        _await_begin(hosts[-1])
        yield Network(tuple(hosts[:-1]), hosts[-1], switch)


def _check_tools() -> None:
    if os.geteuid() != 0:
        pytest.skip("hosts in namespaces: not root")
    if missing := [tool for tool in _TOOLS if shutil.which(tool) is None]:
        pytest.skip(f"hosts in namespaces: no {missing[0]} on this machine")
    if shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is None:
        pytest.skip("hosts in namespaces: no sshd on this machine (Debian: openssh-server)")


@contextmanager
def _first_process(namespaces: Sequence[str], words: Sequence[str], **options: object) -> Iterator[subprocess.Popen]:
    """Run `words` in new namespaces, to the end of the block or of this process. Skips where the kernel refuses."""
    forking = "--pid" in namespaces
    more = ["--fork", "--kill-child", "--mount-proc"] if forking else []
    command = ["setpriv", "--pdeathsig", "KILL", "unshare", *namespaces, *more, *words]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, **options)  # type: ignore[call-overload]
    try:
        _await_namespaces(process, forking=forking)
        yield process
    finally:
        process.kill()
        process.communicate()


def _await_namespaces(process: subprocess.Popen, *, forking: bool) -> None:
    """Wait until a process has its own network. It execs `setpriv`, `unshare` and what follows one after the other."""
    mine, deadline = Path("/proc/self/ns/net").readlink(), time.monotonic() + ENOUGH
    while time.monotonic() < deadline:
        if process.poll() is not None:
            _, said = process.communicate()
            pytest.skip(f"hosts in namespaces: the kernel refuses them ({said.decode(errors='replace').strip()[:200]})")
        try:
            pid = process.pid
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            if Path(f"/proc/{pid}/ns/net").readlink() != mine and (children or not forking):
                return
        except OSError:
            pass
        time.sleep(0.01)
    pytest.skip("hosts in namespaces: none came within a minute")


def _make_keys(folder: Path, addresses: dict[str, str]) -> None:
    """One key of the desk, one of each host, and what the desk knows of them."""
    for name in addresses:
        (folder / name / "keys").mkdir(parents=True)
        (folder / name / "home" / ".ssh").mkdir(parents=True, mode=0o700)
        key = folder / name / "keys" / ("desk" if name == DESK else "host")
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    keys, ssh = folder / DESK / "keys", folder / DESK / "home" / ".ssh"
    known = []
    for name, address in addresses.items():
        if name != DESK:
            shutil.copy(keys / "desk.pub", folder / name / "keys" / "desk.pub")
            kind, public, *_ = (folder / name / "keys" / "host.pub").read_text().split()
            known.append(f"{address} {kind} {public}\n")
    (ssh / "known_hosts").write_text("".join(known))
    aliases = "".join(f"Host {name}\n  HostName {address}\n" for name, address in addresses.items())
    (ssh / "config").write_text(f"{aliases}Host *\n  IdentityFile /run/keys/desk\n")


def _host(stack: ExitStack, folder: Path, name: str, address: str, switch: int, *, is_desk: bool) -> Host:
    own = folder / name
    others = "".join(f"{_SUBNET}.{k} host{k}\n" for k in range(1, len(list(folder.iterdir()))))
    (own / "hosts").write_text(f"127.0.0.1 localhost\n{address} {name}\n{others}")
    (own / "passwd").write_text(
        "root:x:0:0:root:/run/home:/bin/sh\nsshd:x:105:65534::/run/sshd:/usr/sbin/nologin\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    )
    (own / "shadow").write_text("root:*:19000::::::\n")
    (own / "keys" / "sshd_config").write_text(_SETTINGS.format(address=address, keys="/run/keys"))
    sshd = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") or "sshd"
    waits = 'while [ ! -e /run/keys/plugged ]; do sleep 0.02; done; exec "$@"'
    last = (
        ["sleep", "infinity"] if is_desk else ["sh", "-c", waits, "sh", sshd, "-D", "-e", "-f", "/run/keys/sshd_config"]
    )
    namespaces = ["--net", "--uts", "--mount", "--ipc", *([] if is_desk else ["--pid"])]
    log = stack.enter_context((own / "sshd.log").open("wb"))
    begin = ["sh", "-c", _BEGIN, "sh", name, str(own), "" if is_desk else str(folder), *last]
    process = stack.enter_context(_first_process(namespaces, begin, stdout=log, env=os.environ | {"HOME": "/run/home"}))
    host = Host(name, address, process, own / "home", f"port-{name}")
    _ip(switch, "link", "add", host.port, "type", "veth", "peer", "name", "eth0", "netns", str(process.pid))
    _ip(switch, "link", "set", host.port, "master", "bridge", "up")
    for words in (("addr", "add", f"{address}/24", "dev", "eth0"), ("link", "set", "lo", "up")):
        _ip(process.pid, *words)
    _ip(process.pid, "link", "set", "eth0", "up")
    (own / "keys" / "plugged").touch()
    return host


def _await_sshd(host: Host, folder: Path) -> None:
    deadline = time.monotonic() + ENOUGH
    while (host.address, 22) not in host.listening():
        if host.process.poll() is not None or time.monotonic() > deadline:
            pytest.skip(f"hosts in namespaces: no sshd came up on {host.name}: see {folder / host.name / 'sshd.log'}")
        time.sleep(0.02)


def _await_begin(desk: Host) -> None:
    """Wait until the desk sees its own files: its process has become what it does for the rest of its time."""
    deadline = time.monotonic() + ENOUGH
    while not Path(f"/proc/{desk.pid}/cmdline").read_bytes().startswith(b"sleep\0"):
        if desk.process.poll() is not None or time.monotonic() > deadline:
            pytest.skip("hosts in namespaces: the desk did not begin")
        time.sleep(0.02)


def _ip(pid: int, *words: str) -> None:
    subprocess.run(["nsenter", "-t", str(pid), "-n", "ip", *words], check=True, capture_output=True)
