"""The verbs of the command line that list, fetch, make, inspect and check data sets."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .. import data
from ..data.examples import is_examples
from ..display.markup import one_line
from ..errors import InputError
from ..fields import json_object
from .output import Answer, Progress, progress_line, table

_MOST_CLASSES = 30  # named in the text


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
    if is_examples(options.path):
        return _examples_info(options)
    _refuse_options_of_examples(options)
    found = data.info(data.find(options.path))
    lines = [f"{found['name']}{' (synthetic)' if found['synthetic'] else ''}: {found['samples']} samples"]
    lines += [f"{key}: {', '.join(f'{k} {n}' for k, n in found[key].items())}" for key in ("splits", "formats")]
    lines += [f"classes: {', '.join(found['classes'])}"]
    lines += [f"missing: no sample of class {one['class']} in split {one['split']}" for one in found["missing"]]
    return Answer(found, "\n".join([*lines, *_left_out(found["left_out"])]))


def _examples_info(options: argparse.Namespace) -> Answer:
    from ..data.examples import inspection  # here: it waits for torch

    found = inspection.info(options.path, **json_object(options.data_args, "--data-args"))
    lines = [f"{found['name']}{' (synthetic)' if found['synthetic'] else ''}: {found['samples']} samples"]
    lines += [f"splits: {', '.join(f'{split} {count}' for split, count in found['splits'].items())}"]
    if found["classes"]:
        more = f", … ({len(found['classes'])})" if len(found["classes"]) > _MOST_CLASSES else ""
        lines += [f"classes: {', '.join(found['classes'][:_MOST_CLASSES])}{more}"]
    if found["size_unit"] != "samples":
        lines += [
            f"{found['size_unit']} of a sample, {split}: {size['least']} to {size['most']}, median {size['median']:g}"
            for split, size in found["sizes"].items()
        ]
    lines += [f"{name}: {value}" for name, value in {**found["facts"], **found["example"]}.items()]
    lines += [f"missing: no sample of class {one['class']} in split {one['split']}" for one in found["missing"]]
    return Answer(found, "\n".join(map(one_line, lines)))


def _refuse_options_of_examples(options: argparse.Namespace) -> None:
    if options.data_args:
        raise InputError(f"{options.path}: --data-args given, which point clouds do not have; leave it away")


def data_check(options: argparse.Namespace) -> Answer:
    if is_examples(options.path):
        return _examples_check(options)
    _refuse_options_of_examples(options)
    progress = Progress()
    settings = {"task": options.task, "features": options.features, "num_points": options.num_points}
    given = {name: value for name, value in settings.items() if value is not None}
    try:
        report = data.check(data.find(options.path), voxel_size=options.voxel_size, progress=progress.tell, **given)
    finally:
        progress.end()
    document = report.to_json()
    return Answer(
        document, "\n".join([str(report), *_left_out(document["left_out"])]), _stopping(options, report.faults)
    )


def _examples_check(options: argparse.Namespace) -> Answer:
    from ..data.examples import inspection  # here: it waits for torch

    progress = Progress()
    try:
        given = json_object(options.data_args, "--data-args")
        report = inspection.check(options.path, progress=progress.tell, **given)
    finally:
        progress.end()
    return Answer(report.to_json(), str(report), _stopping(options, report.faults))


def _stopping(options: argparse.Namespace, faults: Sequence[Any]) -> str:
    count = len(faults)
    return f"{options.path}: {count} {'faults' if count > 1 else 'fault'} would stop a run" if count else ""


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
