"""What else the hosts of a run did meanwhile: each rank looks at its own, and all of them learn the worst."""

import hashlib
import math
import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, fields
from typing import Any

import torch

from ...util.host.background_load import BackgroundLoad, Usage, load_between, num_processors, worst
from ..processes.process import Process

_SHARES = [item.name for item in fields(BackgroundLoad)]


def shared_load(process: Process, start: Usage, end: Usage) -> dict[str, float | None]:
    """Return the largest of each share over all ranks, from one moment to another. Every rank must come here.

    What ranks of the same host use of its processors is no other load, and is taken together.
    """
    own = torch.zeros(process.world_size, 3, dtype=torch.float64)
    own[process.rank] = torch.tensor([_host(), end.own - start.own, torch.get_num_threads()], dtype=torch.float64)
    hosts, ran, threads = process.sum(own, what="end of an epoch").unbind(dim=1)
    here = hosts == hosts[process.rank]
    load = load_between(start, end, ours=float(ran[here].sum()))
    crowd = float(threads[here].sum()) / num_processors()
    shares = torch.zeros(process.world_size, len(_SHARES), dtype=torch.float64)
    known = [*astuple(load)[:-1], crowd]
    shares[process.rank] = torch.tensor([math.nan if share is None else share for share in known])
    return worst(map(_load, process.sum(shares, what="end of an epoch").tolist())).to_json()


def worst_load(rows: Iterable[Mapping[str, Any]]) -> dict[str, float | None]:
    """Return the largest of each share over the rows of several epochs; rows from before anybody looked know none."""
    return worst(BackgroundLoad.from_json(row.get("load")) for row in rows).to_json()


def _load(shares: Sequence[float]) -> BackgroundLoad:
    return BackgroundLoad(*(None if math.isnan(share) else round(share, 4) for share in shares))


def _host() -> float:
    """Return a number that is the same for ranks which may use the same processors of the same host; exact in 64
    bits.
    """
    told = repr((socket.gethostname(), sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else ()))
    return float(int.from_bytes(hashlib.sha256(told.encode()).digest()[:6]))
