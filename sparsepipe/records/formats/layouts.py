"""Layouts of other runtimes, read as the stages of a network: which layers each stage has.

- `Et*3|(tt|)*29,m|L`: Megatron's --pipeline-model-parallel-layout.
- `[["tok_embeddings", "layers.0"], ["norm"]]`: torchtitan's module_fqns_per_model_part, or Megatron's lists of kinds.
- `{"layers.4": SplitPoint.BEGINNING}`: the split_spec of torch.distributed.pipelining.
- `{"layers": [["hidden_states"], ["hidden_states"]]}`: the _pp_plan of a transformers model, blocks spread evenly.
- `[0, 5, 9]`: DeepSpeed's parts, where stages begin, and the end.
- `[11, 6, 7]`: numbers of blocks, as FlagScale's hetero_pipeline_layer_split.

Each also as a file: text, JSON, a torchtitan job's TOML, a FlagScale job's YAML. Nothing of a file is run.
"""

import json
import re
import tomllib
from ast import literal_eval
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from pathlib import Path
from typing import TypeVar

from ...errors import InputError, one_line
from ...util.io.fields import MOST_DEVICES, read_yaml, shown
from ...util.io.files import expanded, read_text
from ...util.text.numbers import number_of
from ...values.graph import LayerGraph
from .blocks import Block, blocks_of, module_layers

KINDS: Mapping[str, str] = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}  # Megatron's names
MOST_LAYERS = 100_000  # of a layout, all repetitions written out
_SUFFIXES = (".json", ".toml", ".yaml", ".yml", ".txt")  # of files
_MOST_TEXT = 1_000_000  # characters of a layout
_FQNS = ("module_fqns_per_model_part", "pipeline_parallel_module_fqns_per_model_part")  # torchtitan's, by version
Item = TypeVar("Item")
_MESH = 5  # numbers of each process mesh of FlagScale: tensor, context, expert, data, pipeline


@dataclass(frozen=True)
class StageLayout:
    """The stages of a network as another runtime writes them.

    Attributes:
        form: "letters", "names", "splits", "modules", "parts" or "counts".
        names: Letters or names of each stage; of splits a name and its side each; of modules all in one tuple.
        numbers: Parts or counts.
        replicas: Replicas of each stage, if the layout says so.
    """

    form: str
    names: tuple[tuple[str, ...], ...] = ()
    numbers: tuple[int, ...] = ()
    replicas: tuple[int, ...] = ()


def read_layout(source: str | Path) -> StageLayout:
    """Read a layout, or the file that has it.

    Raises InputError in one line: no such file or form, unbalanced parentheses, more than `MOST_LAYERS` layers.
    """
    text = str(source)
    path = _file(text)
    if path is None:
        if text.endswith(_SUFFIXES):  # no layout ends so
            raise InputError("file.not_found", f"{shown(text)}: no such file; check the path")
        return _of_text(text)
    try:
        if path.suffix == ".toml":
            return _of_document(tomllib.loads(read_text(path, what="layout")))
        if path.suffix in (".yaml", ".yml"):
            return _of_document(read_yaml(path, what="layout"))
        return _of_text(read_text(path, what="layout"))
    except InputError as error:
        raise error if str(path) in str(error) else error.within(f"{path}: ") from None
    except (ValueError, RecursionError) as error:
        raise InputError("layout.malformed", f"{path}: not a TOML file ({one_line(error)})") from None


def _file(text: str) -> Path | None:
    """The file that a text names, None if it names none."""
    if "\n" in text or len(text) > 4096:
        return None
    try:
        path = expanded(text)
        return path if path.is_file() else None
    except (OSError, ValueError):
        return None


def _of_text(text: str) -> StageLayout:
    if len(text) > _MOST_TEXT:
        raise InputError("layout.too_large", f"a layout of {len(text):,} characters, expected {_MOST_TEXT:,} at most")
    text = text.strip().strip("'\"").strip()
    if text[:1] not in ("[", "{"):
        return StageLayout("letters", tuple(map(tuple, parse_letters(text))))
    plain = re.sub(r"<?(?:\w+\.)*SplitPoint\.(\w+)(?:: \d+>)?", r'"\1"', text)
    readers: tuple[Callable[[str], object], ...] = (json.loads, literal_eval)
    for parse in readers:
        try:
            return _of_document(parse(plain))
        except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
            if isinstance(error, InputError):
                raise
    raise InputError("layout.malformed", f"layout {shown(text)}: neither JSON nor a Python literal: check its brackets")


def _of_document(document: object) -> StageLayout:
    """Tell the forms apart by what a parsed layout is made of."""
    if isinstance(document, Mapping):
        return _of_mapping(document)
    if isinstance(document, list | tuple) and document:
        if all(isinstance(stage, list | tuple) and all(isinstance(n, str) for n in stage) for stage in document):
            return _of_lists(document)
        if all(type(number) is int and 0 <= number <= MOST_LAYERS for number in document):
            numbers = tuple(document)
            if numbers[0] == 0 and list(numbers) == sorted(set(numbers)) and len(numbers) > 1:
                return StageLayout("parts", numbers=numbers)
            if min(numbers) > 0:
                return StageLayout("counts", numbers=numbers)
    raise InputError(
        "layout.malformed",
        f"layout {shown(document)}: expected a list of names for each stage, split points by name, a _pp_plan, growing "
        'parts from 0, or numbers of blocks; or text such as "Et*3|t*4|tL"',
    )


def _of_mapping(document: Mapping[object, object]) -> StageLayout:
    for section in (document.get("parallelism"), document):
        for key in _FQNS:
            if isinstance(section, Mapping) and section.get(key) is not None:
                return _of_document(section[key])
    for path in (("system", "hetero"), ("train", "system", "hetero"), ("hetero",), ()):
        section = document
        for key in path:
            section = section.get(key, {}) if isinstance(section, Mapping) else {}
        if isinstance(section, Mapping) and "hetero_pipeline_layer_split" in section:
            return _of_flagscale(section)
    names = tuple(name for name in document if isinstance(name, str))
    values = list(document.values())
    sides = [side.lower() for side in values if isinstance(side, str)]
    if names and len(names) == len(sides) == len(values) and set(sides) <= {"beginning", "end"}:
        return StageLayout("splits", tuple(zip(names, sides, strict=True)))
    if names and len(names) == len(values) and all(isinstance(v, list | tuple) and len(v) == 2 for v in values):
        return StageLayout("modules", (names,))
    raise InputError(
        "layout.malformed",
        f"layout {shown(document)}: expected names with SplitPoint.BEGINNING or END, a _pp_plan, "
        f"{_FQNS[0]} in [parallelism], or hetero_pipeline_layer_split in system.hetero",
    )


def _of_lists(stages: Sequence[Sequence[str]]) -> StageLayout:
    if sum(map(len, stages)) > MOST_LAYERS or len(stages) > MOST_DEVICES:
        raise InputError("layout.too_large", f"a layout of more than {MOST_LAYERS:,} names: expected fewer")
    kinds = {name.strip().lower() for stage in stages for name in stage}
    if kinds <= KINDS.keys() and "decoder" in kinds:
        letters = (tuple(KINDS[name.strip().lower()] for name in stage) for stage in stages)
        return StageLayout("letters", tuple(letters))
    return StageLayout("names", tuple(map(tuple, stages)))


def _of_flagscale(hetero: Mapping[object, object]) -> StageLayout:
    counts = _of_document(hetero["hetero_pipeline_layer_split"])
    meshes = hetero.get("hetero_process_meshes") or []
    if counts.form != "counts" or not isinstance(meshes, list) or len(meshes) % _MESH:
        raise InputError(
            "layout.meshes_malformed",
            "hetero_pipeline_layer_split has a number of blocks for each stage, hetero_process_meshes five numbers for "
            "each mesh: tensor, context, expert, data and pipeline parallel sizes",
        )
    replicas: list[int] = []
    for k in range(0, len(meshes), _MESH):
        mesh = meshes[k : k + _MESH]
        if any(type(number) is not int or not 1 <= number <= MOST_DEVICES for number in mesh):
            raise InputError("layout.meshes_malformed", f"mesh {shown(mesh)}: expected five numbers, 1 or more each")
        tensor, context, _, data, pipeline = mesh
        if tensor * context > 1:
            raise InputError(
                "layout.tensor_parallel",
                f"mesh {mesh}: a replica of {tensor * context} devices; expected tensor and context parallel sizes of "
                "1: profile such a replica as one device",
            )
        replicas += [data] * min(pipeline, len(counts.numbers) + 1)
    if replicas and len(replicas) != len(counts.numbers):
        raise InputError(
            "layout.meshes_malformed",
            f"the meshes have {number_of(len(replicas), 'stage')}, hetero_pipeline_layer_split {len(counts.numbers)}",
        )
    return StageLayout("counts", numbers=counts.numbers, replicas=tuple(replicas))


# --- Megatron's letters -------------------------------------------------------------------------------------------

_GROUP = re.compile(r"\(([^()]*)\)\*(\d+)|([EtmL|])(?:\*(\d+))?")


def parse_letters(text: str) -> tuple[str, ...]:
    """Return the letters of each stage: "Et*2|(t|)*2,L" is ("Ett", "t", "t", "L").

    E, t, m and L are the embeddings, a block, a block of multi-token prediction, and the loss with what is before it.
    Raises InputError for other letters, unbalanced or nested parentheses, and more than `MOST_LAYERS` letters.
    """
    return tuple(_expanded(text.replace(",", ""), MOST_LAYERS, text).split("|"))


def _expanded(text: str, most: int, whole: str) -> str:
    parts: list[str] = []
    at = 0
    while at < len(text):
        group = _GROUP.match(text, at)
        if group is None:
            raise InputError(
                "layout.letters",
                f"layout {shown(whole)}: {shown(text[at : at + 12])} is none of E, t, m, L, |, x*N and (…)*N with a "
                "closing parenthesis and no others inside",
            )
        inside, times, letter, letter_times = group.groups()
        unit = letter if inside is None else _expanded(inside, most, whole)
        digits = (times if inside is not None else letter_times) or "1"
        count = int(digits) if len(digits) < 10 else most + 1
        if len(unit) * count > most:
            raise InputError(
                "layout.too_large",
                f"layout {shown(whole)}: repeats {shown(unit)} {digits[:20]} times, expected {MOST_LAYERS:,} layers at "
                "most",
            )
        parts.append(unit * count)
        most -= len(unit) * count
        at = group.end()
    return "".join(parts)


def letters_text(stages: Sequence[str]) -> str:
    """Return a layout as short as Megatron's documents write it: ("Ettt", "tt", "tt", "tt", "L") is "Et*3|(tt|)*3L".

    `parse_letters` reads the same stages from it.
    """
    text, done = "", 0
    for stage, run in groupby(stages):
        count = len(list(run))
        done += count
        last = done == len(stages)
        letters = "".join(
            letter * times if times < 3 else f"{letter}*{times}"
            for letter, times in ((letter, len(list(same))) for letter, same in groupby(stage))
        )
        repeated = count - last
        text += f"({letters}|)*{repeated}," if repeated > 1 and letters else f"{letters}|" * repeated
        if last:
            text += letters
    return text.rstrip(",") if not text.endswith("|") else text


# --- stages of a network ------------------------------------------------------------------------------------------


def stages_of(layout: StageLayout, graph: LayerGraph, *, num_devices: int) -> tuple[list[list[int]], list[str]]:
    """Return the layers of each stage by their places in the graph, and a line for each name that counts once alone.

    Args:
        layout: StageLayout as `read_layout` returns it.
        graph: Layer graph of a profile; ids of its layers are qualified names of modules.
        num_devices: Number of stages of a `_pp_plan`, which says none.

    Raises:
        InputError: Names or numbers of layers that the graph does not have, layers in no stage, empty stages.
    """
    ids = [layer.id for k, layer in enumerate(graph.layers) if k not in graph.input_layers]
    if layout.form == "names":
        stages, notes = _by_names(layout.names, ids, module_layers(graph))
    elif layout.form == "splits":
        stages, notes = _parts(ids, _split_positions([(name, side) for name, side in layout.names], ids)), []
    else:
        groups = _groups(layout, blocks_of(ids, module_layers(graph)), num_devices)
        stages, notes = [[id for block in group for id in block.layers] for group in groups], []
    if empty := [k for k, stage in enumerate(stages) if not stage]:
        raise InputError("layout.stage_empty", f"stage {empty[0]} has no layers: expected one at least; leave it out")
    return [[graph.index[id] for id in stage] for stage in stages], notes


def _groups(layout: StageLayout, blocks: Sequence[Block], num_devices: int) -> list[list[Block]]:
    if layout.form == "letters":
        return _by_letters(["".join(letters) for letters in layout.names], blocks)
    middle = [k for k, block in enumerate(blocks) if block.letter == "t"]
    numbers = layout.numbers
    if layout.form == "modules":
        _check_modules(layout.names[0], blocks)
        numbers = _even(len(middle), num_devices)
    bounds = list(numbers) if layout.form == "parts" else [0, *accumulate(numbers)]
    if layout.form == "parts" and bounds[-1] == len(blocks):
        return _parts(blocks, bounds[1:-1])
    if bounds[-1] == len(middle):  # embeddings go to the first stage, the head to the last
        return _parts(blocks, [middle[bound] for bound in bounds[1:-1]])
    if bounds[-1] == len(blocks):
        return _parts(blocks, bounds[1:-1])
    layers = [Block(id, (id,), "t") for block in blocks for id in block.layers]
    if bounds[-1] == len(layers):
        return _parts(layers, bounds[1:-1])
    raise InputError(
        "layout.count",
        f"layout {shown(list(numbers))} has {bounds[-1]:,} layers, the network {number_of(len(middle), 'block')} "
        f"({len(blocks)} with embeddings and head) and {number_of(len(layers), 'layer')}",
    )


def _by_letters(stages: Sequence[str], blocks: Sequence[Block]) -> list[list[Block]]:
    written = "".join(stages)
    there = {letter: [block for block in blocks if block.letter == letter] for letter in "EtmL"}
    for letter, name in (("E", "embeddings"), ("t", "block"), ("m", "block of multi-token prediction"), ("L", "head")):
        count = written.count(letter)
        expected = len(there[letter]) if letter in "tm" else min(1, len(there[letter]))
        if count != expected and not (letter in "EL" and count == 1):
            raise InputError(
                "layout.count",
                f"layout {shown(letters_text(stages))} has {count} {letter} ({name}), expected {expected}: the network "
                f"has {number_of(len(there['t']), 'block')}",
            )
    if not re.fullmatch("E?t*m*L?", written):
        raise InputError(
            "layout.order", f"layout {shown(letters_text(stages))}: expected E first, then t, then m, and L last"
        )
    waiting = {letter: iter(there[letter]) for letter in "tm"}
    groups: list[list[Block]] = []
    for stage in stages:
        group: list[Block] = []
        for letter in stage:
            group += there[letter] if letter in "EL" else [next(waiting[letter])]
        groups.append(group)
    return groups


def _even(count: int, stages: int) -> tuple[int, ...]:
    """Spread blocks evenly; the rest goes to the last stages but one, as vLLM does for a `_pp_plan`."""
    if stages > count:
        raise InputError(
            "layout.more_stages", f"{number_of(stages, 'stage')} for {number_of(count, 'block')}: give fewer --devices"
        )
    sizes = [count // stages] * stages
    for k in range(count % stages):
        sizes[-2 - k] += 1
    return tuple(sizes)


def _check_modules(names: Iterable[str], blocks: Sequence[Block]) -> None:
    paths = [f".{block.name}." for block in blocks]
    for name in names:
        if not any(f".{name}." in path for path in paths):
            raise InputError("layout.name_unknown", f"_pp_plan names {shown(name)}, no layer of the profile is in it")


def _split_positions(points: Sequence[tuple[str, str]], ids: Sequence[str]) -> list[int]:
    positions = []
    for name, side in points:
        inside = [k for k, id in enumerate(ids) if id == name or id.startswith(f"{name}.")]
        if not inside:
            raise _unknown(name)
        positions.append(inside[0] if side == "beginning" else inside[-1] + 1)
    return sorted(positions)


def _by_names(
    stages: Sequence[Sequence[str]], ids: Sequence[str], modules: Iterable[str]
) -> tuple[list[list[str]], list[str]]:
    stage_of: dict[str, int] = {}
    twice = []
    for k, names in enumerate(stages):
        for name in names:
            if name in stage_of:
                twice.append(f"layout: {name} is in stages {stage_of[name]} and {k}: it counts in the first")
            stage_of.setdefault(name, k)
    used, layers, waiting = set(), [list[str]() for _ in stages], list[str]()
    known, last = frozenset(modules), -1
    for id in ids:
        parts = id.split(".")
        prefixes = (".".join(parts[:k]) for k in range(len(parts), 0, -1))
        holder = next((prefix for prefix in prefixes if prefix in stage_of), None)
        if holder is not None:
            used.add(holder)
            last = stage_of[holder]
            layers[last] += [*waiting, id]
            waiting = []
        elif id in known:
            raise InputError("layout.layer_missing", f"layer {id} is in no stage: add it, or its module, to one")
        elif last < 0:
            waiting.append(id)
        else:
            layers[last].append(id)  # a function goes with what runs before it
    if unused := [name for name in stage_of if name not in used]:
        raise _unknown(unused[0])
    return layers, twice


def _unknown(name: str) -> InputError:
    return InputError(
        "layout.name_unknown", f"{shown(name)}: no layer of the profile has this name, or lies in a module of it"
    )


def _parts(items: Sequence[Item], cuts: Sequence[int]) -> list[list[Item]]:
    return [list(items[a:b]) for a, b in zip([0, *cuts], [*cuts, len(items)], strict=True)]
