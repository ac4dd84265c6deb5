"""What a host says of itself before anything is started there, so that unlike hosts are distinguished and refused.

Data that a host lacks and the launching host has are brought to the run's folder there, file by file, by hash.
A data set that a host has, by the path or the manifest's name that the settings say, is read where it is.
"""

import hashlib
import platform
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from ...errors import InputError
from ...util.host.ssh import interface_address
from ...util.io.functions import is_function

_ANY_PORT = 9
_ALIKE = {  # what all hosts must have alike → what to do where they do not
    "python": "run the same Python on all hosts (interpreter in the cluster file)",
    "torch": "install the same torch on all hosts",
    "sparsepipe": "install the same sparsepipe on all hosts",
    "code": "the package files differ: install the same sparsepipe on all hosts",
}


def facts_here() -> dict[str, str]:
    """Return the versions of this host, its name, and a digest of this package's code."""
    found = {"hostname": socket.gethostname(), "python": ".".join(platform.python_version_tuple()[:2])}
    for name in ("sparsepipe", "torch"):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return {**found, "code": _code_digest()}


def check_alike(where: str, there: Mapping[str, Any], here: Mapping[str, str]) -> None:
    """Raise InputError if a host cannot work with the others, `there` and `here` being what they say."""
    for name, remedy in _ALIKE.items():
        if there.get(name) != here.get(name):
            told = str(there.get(name))[:60], str(here.get(name))[:60]
            raise InputError(
                "hosts.unlike", f"{where}: {name} is {told[0]} on that host, but {told[1]} on this one; {remedy}"
            )


def interface_of(address: str, *, alone: bool = False) -> tuple[str, str]:
    """Return the network interface of this host that has an address, given as numbers or as a name, and the numbers.

    `alone`: there is no other host, to which the loopback would not lead. Raises InputError if none has it.
    """
    if ":" in address:
        raise InputError(
            "host.address_of_ipv6",
            f"its address {address!r} is an IPv6 address; give its IPv4 address",
        )
    try:
        numbers = socket.gethostbyname(address)
    except OSError as error:
        raise InputError(
            "host.address_unknown",
            f"its address {address!r} cannot be resolved there ({error}); give a numeric address, such as 10.0.0.2",
        ) from None
    if numbers.startswith("127.") and not alone:
        raise InputError(
            "host.address_is_loopback",
            f"its address {address!r} resolves to the loopback address {numbers} on that host; give its network "
            "address",
        )
    names = []
    for _, name in socket.if_nameindex():
        found = interface_address(name)
        if found == numbers:
            return name, numbers
        if found:
            names.append(f"{name} {found}")
    raise InputError(
        "host.address_not_its_own",
        f"the host has no network interface with address {address} (its addresses: {', '.join(names) or 'none'})",
    )


def check_ways(addresses: Mapping[str, str]) -> None:
    """Raise InputError if no network of this host leads to one of the addresses, which are by the names of hosts."""
    for name, address in addresses.items():
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.connect((address, _ANY_PORT))  # a datagram's: nothing is sent
        except OSError as error:
            raise InputError(
                "host.unreachable",
                f"cannot reach {name}'s address {address} from there ({error.strerror}); give all hosts addresses on "
                "one network",
            ) from None


def _code_digest() -> str:
    package = Path(__file__).resolve().parents[2]
    found = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        found.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()[:16]


class DataFile(NamedTuple):
    """A file of a data set here, and what it is called in the run's folder on a host."""

    path: Path
    name: str


def is_there(source: str) -> bool:
    """Return whether this host has a data set, or whoever reads it makes it."""
    from ...data.folder import place_of
    from ...data.manifests import get_manifest  # no run of a replay needs it

    if is_function(source) or Path(source).exists():
        return True
    with suppress(InputError):  # a path that is not there names no manifest
        manifest = get_manifest(source)
        return place_of(manifest) is not None or bool(manifest.generator)
    return False


def files_of(source: str) -> Iterator[DataFile]:
    """Yield the files of a data set on this host; none if it is not here."""
    from ...data.folder import find

    with suppress(InputError):
        place = find(source).resolve()
        paths = sorted(place.rglob("*")) if place.is_dir() else [place]
        for path in paths:
            if path.is_file():
                yield DataFile(path, f"{name_of(source)}/{path.relative_to(place).as_posix()}".removesuffix("/."))


def name_of(source: str) -> str:
    """Return what a data set that was brought is called in the run's folder on a host."""
    return f"data/{Path(source).resolve().name}"
