"""Of which type the device of each rank is, if they differ: what the launching process leaves for Ray's driver."""

import json
from collections.abc import Sequence
from pathlib import Path

from ...util.io.fields import texts
from ...util.io.files import read_json, write_atomic
from ...values.cluster import Cluster, DeviceType

_TYPES = Path("control") / "device_types.json"


def write_types(run_dir: Path, ranks: Sequence[int], cluster: Cluster | None) -> None:
    """Write the types of a job's ranks by `cluster`; none if they are identical, for any node will do."""
    types = [cluster.devices[rank].type.name for rank in ranks] if cluster else []
    write_atomic(run_dir / _TYPES, json.dumps(types if len(set(types)) > 1 else []) + "\n")


def read_types(run_dir: Path, num_ranks: int) -> tuple[str | None, ...]:
    """Return the type of each rank's device, None for any. Raises InputError if the file is damaged."""
    found = texts(read_json(run_dir / _TYPES), str(_TYPES))
    return tuple(found) if found else (None,) * num_ranks


def devices_of(types: Sequence[str | None], known: Cluster) -> list[DeviceType]:
    """Return the device of each rank, given its type, None if all are identical, and a cluster that has such
    devices.
    """
    by_name = {device.type.name: device.type for device in known.devices}
    alike = known.devices[0].type
    return [alike if kind is None else by_name.get(kind, DeviceType(kind)) for kind in types]
