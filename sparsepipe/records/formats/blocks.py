"""The blocks of a network by the qualified names of its layers: embeddings, numbered blocks, head.

Other runtimes cut a network between its blocks: "layers.3" of "layers.3.attention.wq". What lies inside a block is not
known to them. A block here is one of those, or one of the modules before, between and behind them.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ...errors import InputError
from ...util.text.numbers import number_of
from ...values.graph import LayerGraph
from ...values.plan import Plan

_MTP = re.compile(r"mtp|nextn", re.IGNORECASE)  # a list of modules for multi-token prediction, by its name


@dataclass(frozen=True)
class Block:
    """Consecutive layers of one module. `letter`: what Megatron calls it: E, t, m or L."""

    name: str
    layers: tuple[str, ...]
    letter: str


def module_layers(graph: LayerGraph) -> frozenset[str]:
    """Return the layers that are calls of modules by their descriptions; the others are functions and parameters."""
    return frozenset(layer.id for layer in graph.layers if layer.description[:1].isupper())


def blocks_of(layers: Sequence[str], modules: Collection[str] | None = None) -> tuple[Block, ...]:
    """Return the blocks of layers in their order.

    Args:
        layers: Ids of the layers, qualified names of modules and of the functions between them.
        modules: Those that are modules. A layer at the root that is none belongs to the block before it. None: all.
    """
    lists = _numbered_lists(layers)
    list_of = {block: path for path, blocks in lists.items() for block in blocks}
    holders = {".".join(path.split(".")[:k]) for path in lists for k in range(1, path.count(".") + 2)}
    main = max(lists, key=lambda path: len(lists[path]), default=None)
    members: dict[str, list[str]] = {}
    waiting: list[str] = []  # functions before the first module
    last = ""
    for id in layers:
        name = _block_name(id, list_of, holders)
        if "." not in id and modules is not None and id not in modules:
            (members[last] if last else waiting).append(id)
        elif name in members:  # called again: part of what runs around it
            members[last].append(id)
        else:
            members[name], waiting, last = [*waiting, id], [], name
    if waiting:
        members[waiting[0]] = waiting
    numbered = [k for k, name in enumerate(members) if main is not None and list_of.get(name) == main]
    blocks = []
    for k, (name, ids) in enumerate(members.items()):
        if not numbered or numbered[0] <= k <= numbered[-1]:
            letter = "t"
        elif k < numbered[0]:
            letter = "E"
        else:
            letter = "m" if _MTP.search(name) else "L"
        blocks.append(Block(name, tuple(ids), letter))
    return tuple(blocks)


def _numbered_lists(layers: Sequence[str]) -> dict[str, dict[str, None]]:
    """Return the outermost lists of modules, "encoder.layer", with the blocks in each, "encoder.layer.0".

    If every layer of a list lies in one list of each of its blocks, as in a ResNet's stages, the blocks are those of
    the inner lists.
    """
    outer: dict[str, dict[str, None]] = {}
    inner: dict[str, dict[str, None]] = {}
    names_of_inner: dict[str, set[str]] = {}
    for id in layers:
        parts = id.split(".")
        depths = [k for k, part in enumerate(parts) if part.isdigit()]
        if not depths:
            continue
        path, depth = ".".join(parts[: depths[0]]), depths[0] + 1
        outer.setdefault(path, {})[".".join(parts[:depth])] = None
        second = depths[1] if len(depths) > 1 else depth
        names_of_inner.setdefault(path, set()).add(".".join(parts[depth:second]))
        inner.setdefault(path, {})[".".join(parts[: second + 1])] = None
    lists = {
        path: inner[path] if len(names_of_inner[path]) == 1 and names_of_inner[path] != {""} else blocks
        for path, blocks in outer.items()
    }
    return {path: blocks for path, blocks in lists.items() if len(blocks) > 1}


def _block_name(id: str, list_of: Mapping[str, str], holders: Collection[str]) -> str:
    """Return the numbered block that a layer is in, else the outermost module that holds no list of blocks."""
    parts = id.split(".")
    prefixes = [".".join(parts[:k]) for k in range(1, len(parts) + 1)]
    numbered = [prefix for prefix in prefixes if prefix in list_of]
    return numbered[-1] if numbered else next((prefix for prefix in prefixes if prefix not in holders), id)


def cut_at_blocks(plan: Plan, groups: Sequence[Sequence[Block]]) -> tuple[list[int], list[str]]:
    """Return how many of `groups`, runs of blocks that stay together, each stage of a plan gets, and a line for each
    cut that has moved.

    A cut inside of a group moves to its nearer end, counted in layers. Raises InputError if that leaves a stage empty.
    """
    ends, names = [0], []
    for group in groups:
        ends.append(ends[-1] + sum(len(block.layers) for block in group))
        names.append(group[0].name)
    position, bounds, notes = 0, [0], []
    for k, stage in enumerate(plan.stages[:-1]):
        position += len(stage.layers)
        nearest = min(range(len(ends)), key=lambda j: (abs(ends[j] - position), j))
        if ends[nearest] != position:
            there = f"before {names[nearest]}" if nearest < len(names) else f"behind {names[-1]}"
            notes.append(f"the cut before {plan.stages[k + 1].layers[0]} lies inside a block: moved to {there}")
        bounds.append(nearest)
    counts = [b - a for a, b in zip(bounds, [*bounds[1:], len(groups)], strict=True)]
    if min(counts) < 1:
        raise InputError(
            "export.block_split",
            f"stage {counts.index(min(counts))} has no whole block: the target cuts only between "
            f"{number_of(len(groups), 'block')}; plan fewer stages, or export --to torch",
        )
    return counts, notes
