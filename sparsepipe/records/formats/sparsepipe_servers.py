"""SparsePipe's server files: the devices of each server, and the path of each device type's profile.

    Server0
        RTX 4 profiles/rtx/graph.txt
        tv 2 profiles/tv/graph.txt

A line that starts with "Server" names a server; every other line is NAME COUNT PATH. Blank lines, and comments that
start with #, are passed over. A path is looked for alongside the file first, then from the current folder.
"""

from dataclasses import dataclass
from pathlib import Path

from ...errors import InputError
from ...util.io.fields import MOST_DEVICES
from ...util.io.files import expanded, read_text, write_atomic
from ...values.cluster import Cluster, DeviceType, Link, Node
from ...values.profile import Profile


@dataclass(frozen=True)
class ServerFile:
    """Servers as ((device type, count), …), and one profile path a type."""

    servers: tuple[tuple[str, tuple[tuple[str, int], ...]], ...]
    profiles: tuple[tuple[str, str], ...]  # device type → path, in order of first appearance
    folder: Path = Path()

    @classmethod
    def load(cls, path: Path | str) -> "ServerFile":
        """Read a server file. Raises InputError with file and line for whatever does not follow the grammar."""
        servers: dict[str, dict[str, int]] = {}
        profiles: dict[str, str] = {}
        for number, line in enumerate(read_text(path, what="server file").splitlines(), start=1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            try:
                if words[0].startswith("Server"):
                    _add_server(words, servers)
                else:
                    _add_devices(words, servers, profiles)
            except InputError as error:
                raise error.within(f"{path}:{number}: ") from None
        if not servers:
            raise InputError(
                "servers.none",
                f"{path}: no line starts with 'Server', expected a server's name and its devices below",
            )
        if empty := [name for name, devices in servers.items() if not devices]:
            raise InputError(
                "servers.no_devices",
                f"{path}: server {empty[0]!r} has no devices; add a line 'NAME COUNT PATH' below it",
            )
        if (count := sum(sum(devices.values()) for devices in servers.values())) > MOST_DEVICES:
            raise InputError(
                "hostfile.too_many_devices",
                f"{path}: {count} devices, expected at most {MOST_DEVICES}: correct the device counts",
            )
        listed = tuple((name, tuple(devices.items())) for name, devices in servers.items())
        return cls(listed, tuple(profiles.items()), expanded(path).parent)

    def profile(self, instead: Profile | None = None) -> Profile:
        """Join the profiles of all types, in the order of the file; sizes are those of the first.

        `instead`: what stands in for the file's own profiles of its device types, and comes first. Raises InputError
        if it is of a type that no server has, or of another network than the others.
        """
        given = instead.device_types if instead is not None else ()
        types = [name for name, _ in self.profiles]
        if unknown := [name for name in given if name not in types]:
            raise InputError(
                "servers.device_type_unknown",
                f"a profile has device type {unknown[0]!r}, but the server file has {', '.join(types)}; rename one "
                "of them",
            )
        joined = instead
        for name, path in self.profiles:
            if name in given:
                continue
            path_found = self._find(path)
            one = Profile.load(path_found, device_type=name)
            try:
                joined = one if joined is None else joined | one
            except InputError as error:
                raise error.within(f"{path_found}: ") from None
        assert joined is not None
        return joined

    def _find(self, path: str) -> Path:
        beside = self.folder / path
        try:
            return beside if beside.exists() else expanded(path)
        except (OSError, ValueError):  # a name that no file can have: reading it will say so
            return beside

    def cluster(
        self, *, bandwidth: float = float("inf"), network: float = float("inf"), memory_bytes: float = float("inf")
    ) -> Cluster:
        """The servers as nodes; bytes/s between two devices of a server and between two servers."""
        nodes = (
            Node(
                name,
                tuple(DeviceType(kind, memory_bytes) for kind, count in devices for _ in range(count)),
                Link(bandwidth),
            )
            for name, devices in self.servers
        )
        return Cluster(tuple(nodes), Link(network))

    @classmethod
    def of(cls, cluster: Cluster, profiles: dict[str, str]) -> "ServerFile":
        """Describe `cluster`, with a profile path for each device type. Raises InputError if one lacks."""
        servers = []
        for k, node in enumerate(cluster.nodes):
            counts: dict[str, int] = {}
            for kind in node.device_types:
                counts[kind.name] = counts.get(kind.name, 0) + 1
            servers.append((node.name if node.name.startswith("Server") else f"Server{k}", tuple(counts.items())))
        if lacking := [kind.name for kind in cluster.device_types if kind.name not in profiles]:
            raise InputError(
                "servers.no_profile",
                f"device type {lacking[0]!r} has no profile path; add one",
            )
        return cls(tuple(servers), tuple((kind.name, profiles[kind.name]) for kind in cluster.device_types))

    def __str__(self) -> str:
        paths = dict(self.profiles)
        lines = []
        for name, devices in self.servers:
            lines += [name, *(f"    {kind} {count} {paths[kind]}" for kind, count in devices)]
        return "\n".join(lines) + "\n"

    def save(self, path: Path | str) -> Path:
        return write_atomic(path, str(self))


def _add_server(words: list[str], servers: dict[str, dict[str, int]]) -> None:
    if len(words) != 1:
        raise InputError(
            "servers.name_malformed",
            f"{len(words)} words follow 'Server', expected only the server's name",
        )
    if words[0] in servers:
        raise InputError("servers.twice", f"server {words[0]!r} is listed twice; rename one")
    servers[words[0]] = {}


def _add_devices(words: list[str], servers: dict[str, dict[str, int]], profiles: dict[str, str]) -> None:
    if len(words) != 3:
        raise InputError(
            "servers.line_malformed",
            f"the line has {len(words)} words, expected 'NAME COUNT PATH' without spaces in the path, or 'Server…'",
        )
    if not servers:
        raise InputError(
            "servers.device_before_server",
            f"device type {words[0]!r} occurs before any server, expected a line that starts with 'Server' above",
        )
    name, count, path = words
    if not (count.isascii() and count.isdigit() and int(count[:9]) >= 1 and len(count) < 7):
        raise InputError("servers.count_malformed", f"count {count!r} of {name!r}: expected a whole number, 1 or more")
    devices = servers[next(reversed(servers))]
    if name in devices:
        raise InputError(
            "servers.device_type_twice", f"device type {name!r} is listed twice in one server; add up the counts"
        )
    if profiles.setdefault(name, path) != path:
        raise InputError(
            "servers.profiles_differ",
            f"device type {name!r} has profile {path!r} here, but {profiles[name]!r} above; rename one of the two "
            "device types",
        )
    devices[name] = int(count)
