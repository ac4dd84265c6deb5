"""A part of the work, for one case: what a process of its own does of it."""

import argparse
from pathlib import Path
from typing import Any

import torch

from sparsepipe.engines import engine
from sparsepipe.errors import InputError
from sparsepipe.util.host.cpu import waiting

from ..document import say
from .cases import Case, clouds
from .competitors import Peer, serve
from .rounds import memory_bytes, time_convolutions, time_steps


def do_part(options: argparse.Namespace) -> dict[str, Any]:
    """Do the part of the work that `--child` names, for one case."""
    torch.set_num_threads(options.threads[0])
    case = Case(options.model, options.clouds)
    result: dict[str, Any] = {"clouds": {}, "steps": {}, "convolutions": {}}
    try:
        batch, result["clouds"][case.clouds] = clouds(case.clouds, Path(options.scratch))
    except InputError as error:
        say(f"bench_engines: {case.name}: {error}")
        return result
    if options.child == "memory":
        chosen = engine(options.engine.removesuffix("-bf16"))
        return {"bytes": memory_bytes(case, batch, chosen, half=options.engine.endswith("-bf16"))}
    if options.child == "peer":
        serve(case, batch, engine(options.engine))
        return {}
    engines = {name: engine(name) for name in options.engines}
    if "steps" in options.parts:
        told = waiting("minkowski", options.threads[0]) if "minkowski" in engines else {}
        peers = {"minkowski-passive": Peer(options, case, "minkowski", told)} if told else {}
        result["steps"][case.name] = time_steps(case, batch, engines, peers, options.rounds)
        for peer in peers.values():
            peer.end()
    if "convolutions" in options.parts and case.clouds == "modelnet":
        result["convolutions"][case.name] = time_convolutions(case, batch, engines["native"], 3 * options.rounds)
    return result
