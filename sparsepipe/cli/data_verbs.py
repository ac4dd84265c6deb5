"""The verbs of the command line that list, fetch, make, inspect and check data sets."""

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .. import data
from ..data.examples import is_examples
from ..errors import InputError, one_line
from ..util.io.fields import json_object
from ..util.text.counting import number_of
from ..util.text.size_histogram import sizes_spread, spread_text
from .options import given
from .output import Answer, Progress, progress_line, table, warn
from .without_effect import of_other_data

_MOST_CLASSES = 30  # named in the text
_VOXEL_SIZE = 0.05  # where nobody says
_LEAST_SAMPLES, _MOST_SAMPLES, _READ_SECONDS = 8, 1000, 3.0  # whose voxels `data info` counts, and for how long


def data_list(options: argparse.Namespace) -> Answer:
    damaged: list[str] = []
    rows = [
        {
            "name": entry.name,
            "title": entry.title,
            "licence": entry.licence,
            "homepage": entry.homepage,
            "kind": entry.kind,
            "splits": dict(entry.splits),
            "fetchable": entry.verifiable,
        }
        for entry in data.list_datasets(damaged=damaged)
    ]
    for text in damaged:
        progress_line(f"warning: left out: {text}")
    columns = ("name", "kind", "title", "licence", "fetchable")
    return Answer(rows, table([columns, *([str(row[c]) for c in columns] for row in rows)]))


def data_fetch(options: argparse.Namespace) -> Answer:
    progress = Progress()

    def tell(name: str, done: int, total: int | None) -> None:
        progress.tell(f"{name}: {done / 1e6:.1f}{f' of {total / 1e6:.1f}' if total else ''} MB")

    try:
        folder = data.fetch(options.name, options.out, progress=tell)
    finally:
        progress.end()
    return Answer({"name": options.name, "folder": str(folder)}, f"{options.name} is in {folder}")


def data_make(options: argparse.Namespace) -> Answer:
    folder = data.make_shapes(options.out, num_train=options.train, num_test=options.test, seed=options.seed)
    found = data.info(folder)
    return Answer(found, f"{found['samples']} synthetic shapes of {len(found['classes'])} families are in {folder}")


def data_info(options: argparse.Namespace) -> Answer:
    found = data.info(options.path, **_options_of_examples(options))
    lines = [f"{found['name']}{' (synthetic)' if found['synthetic'] else ''}: {number_of(found['samples'], 'sample')}"]
    lines += [_counted("splits", found["splits"])]
    if "facts" in found:
        lines += _of_examples(found)
    else:
        lines += _of_clouds(found)
        voxel_size = options.voxel_size or _VOXEL_SIZE
        sizes = _sample_sizes(options.path, next(iter(found["splits"])), options.voxel_size)
        if options.voxel_size is not None:
            found |= {"voxel_size": voxel_size, "sample_voxels": sizes}
        if sizes:
            lines.append(f"{spread_text(sizes, 'voxels')} (voxel size {voxel_size:g}, {sizes['samples']} samples read)")
    lines += [f"missing: no sample of class {one['class']} in split {one['split']}" for one in found["missing"]]
    return Answer(found, "\n".join([*map(one_line, lines), *_left_out(found.get("left_out", ()))]))


def _sample_sizes(path: str, split: str, asked: float | None) -> dict[str, Any] | None:
    """How many voxels the samples of a split have, of those that can be read in a few seconds.

    None where one is faulty, unless a voxel size is `asked`: then that raises InputError.
    """
    began, counts = time.perf_counter(), list[int]()
    try:
        samples = data.load(path, split=split, voxel_size=asked or _VOXEL_SIZE, cache="off")
        step = max(1, len(samples) // _MOST_SAMPLES)
        for index in range(0, len(samples), step):
            counts.append(len(samples.sample(index)))
            if len(counts) >= _LEAST_SAMPLES and time.perf_counter() - began > _READ_SECONDS:
                break
    except InputError:
        if asked is not None:
            raise
        return None  # `data check` says what is wrong
    return sizes_spread(counts)


def _of_clouds(found: Mapping[str, Any]) -> list[str]:
    return [_counted("formats", found["formats"]), f"classes: {', '.join(found['classes'])}"]


def _of_examples(found: Mapping[str, Any]) -> list[str]:
    lines, names = [], found["classes"]
    if names:
        more = f", … ({len(names)})" if len(names) > _MOST_CLASSES else ""
        lines += [f"classes: {', '.join(names[:_MOST_CLASSES])}{more}"]
    if found["size_unit"] != "samples":
        lines += [
            f"{found['size_unit']} of a sample, {split}: {size['least']} to {size['most']}, median {size['median']:g}"
            for split, size in found["sizes"].items()
        ]
    return lines + [f"{name}: {value}" for name, value in {**found["facts"], **found["example"]}.items()]


def _counted(what: str, counts: Mapping[str, int]) -> str:
    return f"{what}: {', '.join(f'{name} {count}' for name, count in counts.items())}"


def _options_of_examples(options: argparse.Namespace) -> dict[str, Any]:
    given = json_object(options.data_args, "--data-args")
    if given and not is_examples(options.path):
        raise InputError(
            "option.of_examples", f"{options.path}: --data-args given, which point clouds do not have; leave it away"
        )
    return given


def data_check(options: argparse.Namespace) -> Answer:
    progress = Progress()
    asked = _options_of_examples(options)
    settings = given(options, ("task", "features", "num_points", "voxel_size", "engine"))
    warn(of_other_data(settings, options.path))
    if not is_examples(options.path):
        asked = {"voxel_size": _VOXEL_SIZE} | settings
    try:
        report = data.check(options.path, progress=progress.tell, **asked)
    finally:
        progress.end()
    document = report.to_json()
    text = "\n".join([str(report), *_left_out(document.get("left_out", ()))])
    return Answer(document, text, _stopping(options, report.faults))


def _stopping(options: argparse.Namespace, faults: Sequence[Any]) -> str:
    count = len(faults)
    return f"{options.path}: {number_of(count, 'fault')} would stop a run" if count else ""


def _many(files: int) -> str:
    return f" ({files} files)" if files > 1 else ""


def _left_out(entries: Sequence[Mapping[str, Any]], most: int = 30) -> list[str]:
    """A line for each thing that a data set's folder holds beside its samples."""
    lines = [one_line(f"left out: {one['path']}{_many(one['files'])}: {one['why']}") for one in entries[:most]]
    return [*lines, *([f"left out: {len(entries) - most} more, see --json"] if len(entries) > most else [])]


VERBS: Mapping[str, Callable[[argparse.Namespace], Answer]] = {
    "data list": data_list,
    "data fetch": data_fetch,
    "data make": data_make,
    "data info": data_info,
    "data check": data_check,
}
