"""The kernel's counters of out-of-memory kills, which explain a SIGKILL that none of our processes sent."""

from dataclasses import dataclass
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class MemoryKills:
    """Out-of-memory kills so far: in this process's control group, and on the whole machine; None if unknown."""

    group: int | None
    machine: int | None

    @classmethod
    def now(cls) -> "MemoryKills":
        return cls(_of_group(), _counted(Path("/proc/vmstat")))

    def since(self, before: "MemoryKills") -> str | None:
        """Return a clause on kills since `before`; None if there were none, or none are counted."""
        if _more(self.group, before.group):
            return "by the kernel, because memory ran out (oom_kill of its control group rose)"
        if _more(self.machine, before.machine):
            return "perhaps by the kernel, because memory ran out (oom_kill of this machine rose)"
        return None


def _more(now: int | None, before: int | None) -> bool:
    return now is not None and before is not None and now > before


def _of_group() -> int | None:
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        number, names, path = line.split(":", 2)
        if number == "0" and not names:
            found = _counted(_GROUPS / path.lstrip("/") / "memory.events")
        elif "memory" in names.split(","):
            found = _counted(_GROUPS / "memory" / path.lstrip("/") / "memory.oom_control")
        else:
            continue
        if found is not None:
            return found
    return None


def _counted(path: Path) -> int | None:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)
