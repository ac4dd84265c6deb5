"""Read the operations of a real training job from the parquet table that its own profiler wrote.

One row for each operation of each rank, as ByteDance published them for three jobs (github.com/ByteDance-Seed/
StragglerAnalysis; "Understanding Stragglers in Large Model Training Using What-if Analysis", 2025): `dp_rank` and
`stage` place a rank in the data-parallel and the pipeline direction, `step` and `optype` say what it did, `start_ts`
and `duration` when (seconds), `mb_id` for which microbatch, `gmc` in which stage of the whole pipeline where a rank has
several. What becomes of them is the rows of a trace:

    forward-compute, backward-compute       forward, backward     "2F17": stage 2, minibatch 17 of the whole trace
    forward-send, backward-send             send                  as what was sent, to the rank it went to
    forward-recv, backward-recv             wait                  as what was waited for, for the rank it came from
    optimizer                               update
    …-all-reduce, …-scatter, …-gather, clip average               ranks that meet have one name
    everything else                         load                  time of the host
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ...errors import InputError, missing_extra
from .fields import complaint, shown
from .files import open_regular

COLUMNS = ("dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration", "seq_id", "mb_id", "gmc")
COMPUTE = {"forward-compute": ("forward", "F"), "backward-compute": ("backward", "B")}
# What sends and receives: (its letter, how many stages on the other rank is).
_SENDS = {"forward-send": ("F", 1), "backward-send": ("B", -1)}
_RECEIVES = {"forward-recv": ("F", -1), "backward-recv": ("B", 1)}
# Which ranks meet in a collective operation.
_MEETINGS = {
    "params-all-gather": "stage",
    "grads-reduce-scatter": "stage",
    "separate-grads-all-reduce": "stage",
    "embedding-grads-all-reduce": "replica",
    "optimizer-clip-main-grad": "job",
    "layernorm-grads-all-reduce": "rank",
}
_UPDATE = "optimizer"
_OTHERS = {"update": _UPDATE, "forward transfer": "forward-pp-comm", "backward transfer": "backward-pp-comm"}
_MOST_FILE_BYTES = 2**28
_MOST_BYTES = 2**30  # of the columns that are read
_MOST_ROWS = 4_000_000
_MOST_NUMBER = 2**31
_MOST_SECONDS = 1e9


class Row(NamedTuple):
    """The fields of a span, in their order."""

    rank: int
    name: str
    start: float
    end: float
    kind: str
    stage: int
    minibatch: int
    peer: int


def read_operations(path: Path) -> tuple[list[Row], dict[str, Any]]:
    """Return rows of spans in the order of time, and what to know of them as a trace's facts.

    Steps that the table dates from their own beginnings are laid one after the other. Facts: `steps` with [its number,
    its first minibatch, that of the next] each, `operations` with the job's own name for each kind of work, and
    `rendezvous`, true: a transfer needs both ranks at once. Raises InputError if the file is no such table.
    """
    table = _checked(_read(path), path)
    steps = table["step"].drop_duplicates().sort_values().to_list()
    num_microbatches, num_replicas = int(table["mb_id"].max()) + 1, int(table["dp_rank"].max()) + 1
    place = table["step"].map({step: k for k, step in enumerate(steps)})
    first = table["step"].map(table.groupby("step")["start_ts"].min())
    end = table["start_ts"] + table["duration"]
    spans = (end - first).groupby(place).max().sort_index()
    begins = first.groupby(place).min().sort_index()
    if len(steps) > 1 and not (begins.to_numpy()[1:] >= (begins + spans).to_numpy()[:-1]).all():
        begins = spans.cumsum() - spans
    shift = place.map(begins - begins.iloc[0]) - first
    table = table.assign(start=table["start_ts"] + shift, end=end + shift, place=place)
    rows = sorted(_rows(table, num_microbatches, num_replicas, path), key=lambda row: (row.start, row.rank, row.end))
    size = num_microbatches * num_replicas
    facts = {
        "steps": [[int(step), k * size, (k + 1) * size] for k, step in enumerate(steps)],
        "operations": {kind: name for name, (kind, _) in COMPUTE.items()} | _OTHERS,
        "rendezvous": True,
    }
    return rows, facts


def _read(path: Path) -> Any:
    """The table as a data frame, its size bounded before a value of it is looked at."""
    try:
        import pyarrow.parquet
        from pyarrow import types
    except ImportError as error:
        raise missing_extra(error) or error from None
    try:
        with open_regular(path) as handle, pyarrow.parquet.ParquetFile(handle, read_dictionary=["optype"]) as file:
            if os.fstat(handle.fileno()).st_size > _MOST_FILE_BYTES:
                raise InputError(
                    "operations.too_large",
                    f"{path}: larger than {_MOST_FILE_BYTES >> 20} MiB; split it into files of fewer steps",
                )
            num_rows, names = file.metadata.num_rows, set(file.schema_arrow.names)
            if missing := [name for name in COLUMNS if name not in names]:
                raise InputError(
                    "operations.column_missing",
                    f"{path}: has no column {', '.join(missing)}; expected the columns {', '.join(COLUMNS)}",
                )
            if not 0 < num_rows <= _MOST_ROWS:
                raise InputError("operations.row_count", f"{path}: has {num_rows} rows, expected 1 to {_MOST_ROWS}")
            for name in COLUMNS:
                kind = file.schema_arrow.field(name).type
                is_number = any(check(kind) for check in (types.is_integer, types.is_floating, types.is_boolean))
                if types.is_nested(kind) or (name != "optype" and not is_number):
                    raise InputError(
                        "operations.not_numbers", f"{path}: column {name} has values that are not numbers", name=name
                    )
            return _in_parts(file, path)
    except InputError:
        raise
    except (ValueError, OSError, TypeError, KeyError, NotImplementedError, ArithmeticError, MemoryError) as error:
        raise InputError("operations.unreadable", f"{path}: cannot be read as parquet ({complaint(error)})") from None


def _in_parts(file: Any, path: Path) -> Any:
    """Read the columns part by part: a small file can hold one word of any length, packed, a million times."""
    import pyarrow

    groups = [file.metadata.row_group(k) for k in range(file.metadata.num_row_groups)]
    chunks = [group.column(k) for group in groups for k in range(group.num_columns)]
    claimed = sum(chunk.total_uncompressed_size for chunk in chunks if chunk.path_in_schema in COLUMNS)
    parts, num_bytes = [], 0
    for part in file.iter_batches(columns=[*COLUMNS]) if claimed <= _MOST_BYTES else ():
        num_bytes += part.nbytes
        if num_bytes > _MOST_BYTES:
            break
        parts.append(part)
    if max(claimed, num_bytes) > _MOST_BYTES:
        raise InputError(
            "operations.too_large",
            f"{path}: unpacked larger than {_MOST_BYTES >> 20} MiB; split it into files of fewer steps",
        )
    return pyarrow.Table.from_batches(parts).unify_dictionaries().to_pandas(ignore_metadata=True)


def _checked(table: Any, path: Path) -> Any:
    """The table with columns of known types, all values within bounds. Raises InputError for the first that is not."""
    import pandas

    known = {}
    for name in COLUMNS:
        column = table[name]
        if name == "optype":
            known[name] = column.astype(str)
            continue
        if not pandas.api.types.is_numeric_dtype(column) or column.isna().any():
            raise InputError(
                "operations.not_numbers", f"{path}: column {name} has values that are not numbers", name=name
            )
        if name in ("start_ts", "duration"):
            least, most = (0.0 if name == "duration" else -_MOST_SECONDS), _MOST_SECONDS
            known[name] = column.astype("float64")
        else:
            least, most = (-1 if name in ("mb_id", "gmc", "seq_id") else 0), _MOST_NUMBER
            known[name] = column.astype("float64")
            if not (known[name] == known[name].round()).all():
                raise InputError("operations.not_whole", f"{path}: column {name} has fractions, expected whole numbers")
        if not known[name].between(least, most).all():
            wrong = known[name][~known[name].between(least, most)].iloc[0]
            raise InputError(
                "operations.out_of_range", f"{path}: column {name} has {wrong:g}, expected {least:g} to {most:g}"
            )
        if name not in ("start_ts", "duration"):
            known[name] = known[name].astype("int64")
    checked = pandas.DataFrame(known)
    compute = checked["optype"].isin(list(COMPUTE))
    if not compute.any():
        raise InputError(
            "operations.no_compute",
            f"{path}: has no operation {' or '.join(COMPUTE)}; expected the operations of a training job",
        )
    if (checked.loc[compute, "mb_id"] < 0).any():
        raise InputError(
            "operations.no_microbatch", f"{path}: an operation {' or '.join(COMPUTE)} has no microbatch (mb_id)"
        )
    places = checked[["rank", "dp_rank", "stage"]].drop_duplicates()
    if places["rank"].duplicated().any() or places.duplicated(["dp_rank", "stage"]).any():
        raise InputError(
            "operations.rank_twice",
            f"{path}: a rank has two positions, expected one pair of dp_rank and stage per rank",
        )
    if int(checked["mb_id"].max() + 1) * int(checked["dp_rank"].max() + 1) > _MOST_ROWS:
        raise InputError("operations.number_too_large", f"{path}: microbatch or dp_rank numbers are out of range")
    return checked


def _rows(table: object, num_microbatches: int, num_replicas: int, path: Path) -> Iterator[Row]:
    rank_at = {(replica, stage): rank for replica, stage, rank in set(_tuples(table, "dp_rank", "stage", "rank"))}
    which = _microbatches_sent(table)
    first_of_step = num_microbatches * num_replicas
    for rank, replica, stage, step, place, kind_of, start, end, number, microbatch, chunk in _tuples(
        table, "rank", "dp_rank", "stage", "step", "place", "optype", "start", "end", "seq_id", "mb_id", "gmc"
    ):
        base = place * first_of_step + replica
        own = base + microbatch * num_replicas
        last = base + (num_microbatches - 1) * num_replicas
        if kind_of in COMPUTE:
            kind, letter = COMPUTE[kind_of]
            at = chunk if chunk >= 0 else stage
            yield Row(rank, f"{at}{letter}{own}", start, end, kind, at, own, -1)
        elif kind_of in _SENDS or kind_of in _RECEIVES:
            kind = "send" if kind_of in _SENDS else "wait"
            letter, away = (_SENDS | _RECEIVES)[kind_of]
            peer = rank_at.get((replica, stage + away), -1)
            carried = which.get((rank, step, kind_of), {}).get(number)
            if carried is None:  # which one it carried is not told
                yield Row(rank, kind_of, start, end, kind, stage, last, peer)
            else:
                own = base + carried * num_replicas
                yield Row(rank, f"{stage}{letter}{own}", start, end, kind, stage, own, peer)
        elif kind_of in _MEETINGS:
            met = {"stage": f"stage {stage} ", "replica": f"replica {replica} ", "rank": f"rank {rank} ", "job": ""}
            name = f"{kind_of} {met[_MEETINGS[kind_of]]}step {step}" + (f" no. {number}" if number > 0 else "")
            yield Row(rank, name, start, end, "average", stage, last, -1)
        elif kind_of == _UPDATE:
            yield Row(rank, f"{stage}U{place}", start, end, "update", stage, last, -1)
        elif len(kind_of) <= 60 and kind_of.isprintable() and kind_of.strip():
            yield Row(rank, kind_of, start, end, "load", stage, last, -1)
        else:
            raise InputError(
                "operations.type_malformed",
                f"{path}: optype {shown(kind_of)} is not valid, expected a word such as forward-compute",
            )


def _microbatches_sent(table: Any) -> dict[tuple[int, int, str], dict[int, int]]:
    """(rank, step, kind of transfer) → its number → the microbatch it carries.

    The table counts transfers and does not name their microbatches: if there are as many as there were computations
    they follow these one by one. Ranks with several stages say too little for that.
    """
    if table["gmc"].max() > table["stage"].max():
        return {}
    computed: dict[tuple[int, int, str], list[tuple[float, int]]] = {}
    counted: dict[tuple[int, int, str], list[tuple[float, int]]] = {}
    for rank, step, kind, start, number, microbatch in _tuples(
        table, "rank", "step", "optype", "start", "seq_id", "mb_id"
    ):
        if kind in COMPUTE:
            computed.setdefault((rank, step, COMPUTE[kind][1]), []).append((start, microbatch))
        elif kind in _SENDS or kind in _RECEIVES:
            counted.setdefault((rank, step, kind), []).append((start, number))
    found = {}
    for (rank, step, kind), numbers in counted.items():
        work = sorted(computed.get((rank, step, (_SENDS | _RECEIVES)[kind][0]), []))
        if len(work) == len(numbers):
            pairs = zip(sorted(numbers), work, strict=True)
            found[rank, step, kind] = {number: microbatch for (_, number), (_, microbatch) in pairs}
    return found


def _tuples(table: Any, *columns: str) -> Iterator[tuple[Any, ...]]:
    return zip(*(table[column].tolist() for column in columns), strict=True)
