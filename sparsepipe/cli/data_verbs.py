"""The verbs of the command line that list, fetch, make, inspect and check data sets."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .. import data
from ..display.markup import one_line
from .output import Answer, Progress, progress_line, table


def data_list(options: argparse.Namespace) -> Answer:
    damaged: list[str] = []
    rows = [
        {
            "name": entry.name,
            "title": entry.title,
            "licence": entry.licence,
            "homepage": entry.homepage,
            "splits": dict(entry.splits),
            "fetchable": entry.verifiable,
        }
        for entry in data.list_datasets(damaged=damaged)
    ]
    for text in damaged:
        progress_line(f"warning: left out: {text}")
    columns = ("name", "title", "licence", "fetchable")
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
    found = data.info(data.find(options.path))
    lines = [f"{found['name']}{' (synthetic)' if found['synthetic'] else ''}: {found['samples']} samples"]
    lines += [f"{key}: {', '.join(f'{k} {n}' for k, n in found[key].items())}" for key in ("splits", "formats")]
    lines += [f"classes: {', '.join(found['classes'])}"]
    lines += [f"missing: no sample of class {one['class']} in split {one['split']}" for one in found["missing"]]
    return Answer(found, "\n".join([*lines, *_left_out(found["left_out"])]))


def data_check(options: argparse.Namespace) -> Answer:
    progress = Progress()
    settings = {"task": options.task, "features": options.features, "num_points": options.num_points}
    given = {name: value for name, value in settings.items() if value is not None}
    try:
        report = data.check(data.find(options.path), voxel_size=options.voxel_size, progress=progress.tell, **given)
    finally:
        progress.end()
    count = len(report.faults)
    fault = f"{options.path}: {count} {'faults' if count > 1 else 'fault'} would stop a run" if count else ""
    document = report.to_json()
    return Answer(document, "\n".join([str(report), *_left_out(document["left_out"])]), fault)


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
