"""Faults of hosts at random moments, and what a job says of them: `scripts/fault_hosts.py [--runs 6] [--seed S]`.

Three hosts are namespaces of this machine, each with an sshd of its own (tests/network_hosts.py). A job of a rank on
each trains for some seconds, and meanwhile

    dies     a host loses power, and all that was on it
    cable    its cable is pulled, and plugged in again after up to 40 s
    pauses   all of its processes stand still for up to 40 s
    disk     its disk becomes full, and has room again later
    clock    its clock is an hour ahead, from the beginning
    version  its code is another version, from the beginning

A job may start again twice. After a host that dies it goes on on those left, after a cable or a pause it waits for the
host; a full disk may end it, with a line that names the host, and it is resumed once there is room; another version is
refused with such a line. Then every loss must be that of a run on one device that nobody disturbed, and no process,
no listening socket and no folder of a run be left on any host. Prints a line for each run, with what was said, and a
table of the kinds; exits with 1 where one is not so. With `--rows FILE` runs add up over calls: those in the file are
not done again, and the table is of all. For root, on Linux: elsewhere it says why it cannot.
"""

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "tests")]

import pytest  # noqa: E402
from hosts_desk import FLUSH, MODEL, Desk, config, desk_of  # noqa: E402
from network_hosts import Host, network_hosts  # noqa: E402
from runtime_jobs import plan_of  # noqa: E402

from scripts.bench.rounds import load  # noqa: E402
from scripts.bench.scratch import scratch  # noqa: E402
from sparsepipe.util.io.files import read_rows  # noqa: E402

_LONGEST = 40.0  # seconds without a cable, or of a pause
_ROOM = "64m"  # of the disk that becomes full
_HOSTED = "/run/home/.local"  # what a host keeps of runs
_AHEAD = "import time\n_now = time.time\ntime.time = lambda: _now() + 3600.0\n"
_PLAN = plan_of(MODEL, [[0], [1], [2]], **FLUSH)


@dataclass
class Hosts:
    """Three hosts and a desk that serve run after run, until one is lost or a run went wrong. Within `with`."""

    _stack: ExitStack = field(default_factory=ExitStack)
    _desk: Desk | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def desk(self) -> Desk:
        """Return the desk, of new hosts where there are none."""
        if self._desk is None:
            folder = self._stack.enter_context(scratch("fault-hosts"))
            self._desk = desk_of(self._stack.enter_context(network_hosts(3, folder)), folder)
        return self._desk

    def leave(self) -> None:
        self._stack.close()
        self._desk = None


@dataclass
class Fault:
    """One run, and what is done to one of its hosts."""

    desk: Desk
    name: str  # of the run
    host: Host
    draw: random.Random

    def dies(self) -> None:
        self.host.process.kill()

    def cable(self) -> None:
        self.desk.network.cut(self.host)
        time.sleep(self.draw.uniform(1, _LONGEST))
        self.desk.network.mend(self.host)

    def pauses(self) -> None:
        self._signal(signal.SIGSTOP)
        time.sleep(self.draw.uniform(1, _LONGEST))
        self._signal(signal.SIGCONT)

    def disk(self) -> None:
        self.host.run("sh", "-c", f"head -c 200000000 /dev/zero > {_HOSTED}/filler")

    def nothing(self) -> None:
        """What is wrong was so from the beginning."""

    def _signal(self, number: int) -> None:
        own = Path(f"/proc/{self.host.pid}/ns/net").readlink()
        for path in Path("/proc").iterdir():
            with suppress(OSError):
                if path.name.isdigit() and (path / "ns/net").readlink() == own and int(path.name) != self.host.pid:
                    os.kill(int(path.name), number)


DURING: Mapping[str, Callable[[Fault], None]] = {
    "dies": Fault.dies,
    "cable": Fault.cable,
    "pauses": Fault.pauses,
    "disk": Fault.disk,
    "clock": Fault.nothing,
    "version": Fault.nothing,
}
_WAITING = ("cable", "pauses")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=len(DURING), help="the kinds in turn")
    parser.add_argument("--kind", action="append", choices=DURING, help="default: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", type=Path, metavar="FILE", help="of runs that are not done again")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where to put the records of runs that went wrong")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="after which no other run is begun")
    options = parser.parse_args()
    kinds, until = options.kind or list(DURING), time.monotonic() + 60 * options.minutes
    rows = read_rows(options.rows) if options.rows and options.rows.exists() else []
    done = {(row["kind"], row["seed"]) for row in rows}
    with Hosts() as hosts:
        for number in range(options.runs):
            kind, seed = kinds[number % len(kinds)], options.seed + number
            if (kind, seed) in done:
                continue
            if time.monotonic() > until:
                break
            try:
                row = _timed(hosts, kind, seed, options.keep)
            except pytest.skip.Exception as refused:
                print(f"fault_hosts: {refused}", file=sys.stderr)
                return 2
            rows.append(row)
            if options.rows:
                with options.rows.open("a") as handle:
                    handle.write(json.dumps(row) + "\n")
            told = f"{row['seconds']:.0f} s: {'' if row['fine'] else 'NOT SO: '}{row['said']}"
            print(f"{number + 1}/{options.runs} seed {seed}: {kind}, {told}", flush=True)
    print(table(rows))
    return 0 if all(row["fine"] for row in rows) else 1


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a line for each kind of fault: how many runs there were, how many as they must be, and their seconds."""
    lines = ["kind".ljust(10) + "runs".rjust(6) + "fine".rjust(6) + "median s".rjust(10) + "longest".rjust(9)]
    for kind in DURING:
        own = [row for row in rows if row["kind"] == kind]
        took = [row["seconds"] for row in own] or [0.0]
        fine = sum(row["fine"] for row in own)
        lines.append(f"{kind:<10}{len(own):6d}{fine:6d}{statistics.median(took):10.0f}{max(took):9.0f}")
    return "\n".join(lines)


def _timed(hosts: Hosts, kind: str, seed: int, keep: Path | None) -> dict[str, Any]:
    """Do one run; return its row. `keep`: where the record of one that went wrong is put."""
    desk, start, before = hosts.desk(), time.monotonic(), round(load(), 2)
    draw, name = random.Random(seed), f"{kind}-{seed}"
    try:
        said, fine = one_run(kind, Fault(desk, name, draw.choice(desk.network.hosts), draw)), True
    except (AssertionError, ValueError, subprocess.SubprocessError) as error:  # no JSON, or no end in ten minutes
        said, fine = f"{type(error).__name__}: {error}", False
        if keep:
            shutil.copytree(desk.folder / name, keep / name, dirs_exist_ok=True, ignore=_no_files)
    seconds = round(time.monotonic() - start, 1)
    if kind == "dies" or not fine:
        hosts.leave()
    return {"kind": kind, "seed": seed, "seconds": seconds, "fine": fine, "said": said, "load": before}


def _no_files(folder: str, names: list[str]) -> list[str]:
    """Return what cannot be copied, such as the pipe that tells a run's processes of its end."""
    return [name for name in names if not (Path(folder) / name).is_file() and not (Path(folder) / name).is_dir()]


def one_run(kind: str, fault: Fault) -> str:
    """Do one run; return what was said. Raises AssertionError where anything was lost, or left, and ValueError or
    SubprocessError where the launch itself does not tell how it ended."""
    desk, host = fault.desk, fault.host
    facts = _prepared(kind, fault)
    more: dict[str, Any] = {"max_restarts": 2, "on_lost_host": "wait" if kind in _WAITING else "replan"}
    settings = config(stragglers="jitter:rank=1,p=1,seconds=0.6", timeout_seconds=20, **more)
    told = desk.told(fault.name, _PLAN, settings, *_with_last(desk.network.hosts, host), last=facts)
    with desk.launched(told) as process:
        time.sleep(fault.draw.uniform(0, 6))
        DURING[kind](fault)
        ended = json.loads(process.communicate(timeout=600)[0])
    said = _judged(kind, fault, told, ended)
    _check_nothing_is_left(desk, without=host if kind == "dies" else None)
    if kind == "disk":
        assert host.run("umount", _HOSTED).returncode == 0
    return f"{host.name}: {said}"


def _with_last(hosts: tuple[Host, ...], last: Host) -> list[Host]:
    """The hosts in order, but for the one that is to come last, of which a cluster file may say more."""
    return [*(host for host in hosts if host is not last), last]


def _prepared(kind: str, fault: Fault) -> dict[str, str]:
    """Make wrong what is so from the beginning; return what the cluster file says of the host."""
    home = fault.host.home
    if kind == "disk":
        (home / ".local").mkdir(exist_ok=True)
        done = fault.host.run("mount", "-t", "tmpfs", "-o", f"size={_ROOM}", "none", _HOSTED)
        assert done.returncode == 0, done.stderr
    elif kind == "clock":
        (home / "ahead").mkdir(exist_ok=True)
        (home / "ahead" / "sitecustomize.py").write_text(_AHEAD)
        return {"python_path": f"/run/home/ahead:{REPOSITORY}"}
    elif kind == "version":
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(REPOSITORY / "sparsepipe", home / "other" / "sparsepipe", ignore=ignored, dirs_exist_ok=True)
        changed = home / "other" / "sparsepipe" / "util" / "text" / "numbers.py"
        changed.write_text(changed.read_text() + "# another version")
        return {"python_path": "/run/home/other"}
    return {}


def _judged(kind: str, fault: Fault, told: dict[str, Any], ended: Any) -> str:
    """Hold how a run ended against what it should have done; return what it said."""
    desk, host = fault.desk, fault.host
    if kind == "version":
        assert ended[0] == "InputError" and host.name in ended[1] and "code" in ended[1], ended
        return ended[1]
    log = (desk.folder / fault.name / "logs" / "launcher.log").read_text()
    lines = [line for line in log.splitlines() if "last checkpoint" in line or " is back" in line]
    if ended != "finished" and kind == "disk":
        assert host.name in ended[1] and "\n" not in ended[1], ended
        lines.append(ended[1])
        fault.host.run("rm", f"{_HOSTED}/filler")
        (ended,) = desk.launch({**told, "resume": True})
    assert ended == "finished", ended
    assert desk.losses(fault.name) == desk.losses("one"), "losses differ from those of a run that nobody disturbed"
    return " | ".join(lines) or "finished as if nothing had been"


def _check_nothing_is_left(desk: Desk, *, without: Host | None) -> None:
    network = desk.network
    network.hosts = tuple(host for host in network.hosts if host is not without)
    desk.check_nothing_is_left()


if __name__ == "__main__":
    sys.exit(main())
