"""Ray's cluster yaml with the provider "local": hosts that are there already, a head and its workers.

    provider:
      type: local
      head_ip: 10.0.0.1
      worker_ips: [10.0.0.2, 10.0.0.3]
    auth:
      ssh_user: me

Each host has as many devices as a node type's `resources: {GPU: N}` says, one where none does. What Ray sets up on the
hosts (files, commands, docker) is no part of a cluster and is passed over.
Source: Ray's documentation, "Launching an on-premise cluster".
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...io.fields import MOST_DEVICES, integer, shown
from .hosts import Host

_KNOWN = {"type", "head_ip", "worker_ips", "external_head_ip"}


def hosts_of_ray(path: Path, document: Mapping[str, Any]) -> tuple[Host, ...]:
    """The head and the workers of Ray's document. Raises InputError that names the file and what is wrong in it."""
    try:
        return _hosts(document)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _hosts(document: Mapping[str, Any]) -> tuple[Host, ...]:
    provider = document.get("provider")
    if not isinstance(provider, Mapping):
        raise InputError(f"provider = {shown(provider)}: expected type: local, head_ip and worker_ips")
    if provider.get("type") != "local":
        raise InputError(
            f"provider type {shown(provider.get('type'))} makes its own machines: expected local, with head_ip and "
            "worker_ips"
        )
    if unknown := [key for key in provider if key not in _KNOWN]:
        raise InputError(f"provider has {shown(unknown[0])}: expected {', '.join(sorted(_KNOWN))}")
    workers = provider.get("worker_ips") or []
    if not isinstance(workers, list):
        raise InputError(f"worker_ips = {shown(workers)}: expected a list of hosts")
    names = [provider.get("head_ip"), *workers]
    if wrong := [name for name in names if not isinstance(name, str) or not name]:
        raise InputError(f"host {shown(wrong[0])}: expected a name or an address for head_ip and each of worker_ips")
    auth = document.get("auth") or {}
    user = auth.get("ssh_user") if isinstance(auth, Mapping) else None
    if user is not None and not isinstance(user, str):
        raise InputError(f"ssh_user = {shown(user)}: expected a name")
    count = _devices(document.get("available_node_types") or {})
    return tuple(Host(name, count, f"{user}@{name}" if user else "") for name in names)


def _devices(types: Any) -> int:
    """The GPUs of a host, which are the same for all: the local provider knows one type of node."""
    if not isinstance(types, Mapping):
        raise InputError(f"available_node_types = {shown(types)}: expected a table of types")
    counts = set()
    for name, kind in types.items():
        resources = (kind.get("resources") or {}) if isinstance(kind, Mapping) else None
        if not isinstance(resources, Mapping):
            raise InputError(f"available_node_types: {shown(name)} = {shown(kind)}: expected resources: {{GPU: N}}")
        counts.add(integer(resources.get("GPU", 1), f"{shown(name)}: GPU", least=1, most=MOST_DEVICES))
    if len(counts) > 1:
        raise InputError(
            f"node types of {', '.join(map(str, sorted(counts)))} GPUs: the hosts of a local cluster are alike"
        )
    return counts.pop() if counts else 1
