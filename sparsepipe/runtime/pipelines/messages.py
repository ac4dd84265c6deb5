"""Messages between ranks and their coordinator: JSON objects, each checked before anything is done with it.

rank → coordinator    {"id": 7, "call": "take_minibatch", "wait": 5.0, "given": {"task": 0, "place": 12}}
coordinator → rank    {"id": 7, "answer": 31}     {"id": 7, "wait": true}     {"id": 7, "error": KIND, "message": …}
"""

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ...errors import InputError
from ...util.io.fields import Check, each, fields, integer, number, text
from ...values.replication.base import SERVER, Merge
from .base import Address, Holder, Kind, Task

MOST_WAIT = 60.0  # seconds for which a request stays unanswered
GIVEN_UP, INPUT, REFUSED = "given up", "input", "refused"  # kinds of errors
_MOST = 10**15


def _count(value: Any, what: str) -> int:
    return integer(value, what, most=_MOST)


def _positive(value: Any, what: str) -> int:
    return integer(value, what, least=1, most=_MOST)


def _pipeline(value: Any, what: str) -> int:
    return integer(value, what, least=SERVER)


def _object(value: Any, what: str) -> dict[str, Any]:
    return dict(fields({})(value, what))


def _holder(value: Any, what: str) -> Holder:
    told = fields({"pipeline": _pipeline, "rank": integer, "layers": each(text), "address": _object})(value, what)
    address = fields({"host": text, "port": integer, "secret": text})(told["address"], what)
    where = Address(address["host"], address["port"], address["secret"])
    return Holder(told["pipeline"], told["rank"], tuple(told["layers"]), where)


_MEASURED = {"stages": each(_object), "load": _object}
_COUNTED = {"trained": _count, "sent_bytes": number, "straggler_seconds": number}
_PART = fields({**_MEASURED, **_COUNTED, "run": fields({**_MEASURED, "engine": text})})
_GIVEN: Mapping[str, Mapping[str, Check]] = {
    "begin": {
        **dict.fromkeys(("whole", "epoch_minibatches", "total_minibatches"), _positive),
        "num_holders": _count,
        "data": text,
    },
    "register": {"holder": _holder},
    "holders": {"pipeline": _pipeline},
    "live": {},
    "leave": {},
    "next_task": {"number": _count},
    "take_minibatch": {"task": _count, "place": _count},
    "end_task": {"task": _count},
    "move": {},
    "done": {"task": _count, "place": _count, "row": _object},
    "measured": {"task": _count, "row": _PART},
    "closed": {"epoch": _count, "row": _object},
    "tell": {"event": text, "row": _object},
    "progress": {},
    "contribute": {"update": _count, "samples": _count},
    "pass_over": {"update": _count},
    "contribution": {"update": _count},
    "merge_of": {"contribution": _count},
    "merged": {"merge": _count, "facts": _object},
    "last_merge": {"update": partial(integer, least=-1)},
}
_REQUEST = fields({"id": _count, "call": text, "wait": number, "given": _object, "done": each(_object)})


def check_caller(pipeline: int, rank: int, attempt: int) -> None:
    """Raise InputError for a caller that is no rank and no launcher, whose rank is -1."""
    _pipeline(pipeline, "pipeline")
    integer(rank, "rank", least=-1)
    _count(attempt, "attempt")


def read_request(message: dict[str, Any]) -> dict[str, Any]:
    """Return a request as it was sent, its id, call and wait checked. Raises InputError."""
    told = _REQUEST(message, "request")
    return {name: told[name] for name in ("id", "call", "given", "done")} | {"wait": min(told["wait"], MOST_WAIT)}


def read_given(call: str, given: Any) -> dict[str, Any]:
    """Return what a call is given, all of it there and as the state takes it. Raises InputError."""
    if call not in _GIVEN:
        raise InputError("call.unknown", f"unknown call {call[:40]!r}")
    told = fields(_GIVEN[call])(given, call)
    for name in _GIVEN[call]:
        _ = told[name]  # a field that is missing raises
    return dict(told)


def encoded(message: Mapping[str, Any]) -> bytes:
    """Return a message as it is sent."""
    return _ENCODER.encode(message).encode()


def _plain(value: Any) -> Any:
    """Return as JSON has it what is neither a number, a text, a list nor an object: named tuples are lists."""
    if isinstance(value, Kind):
        return value.value
    if isinstance(value, Merge):
        return vars(value)
    if isinstance(value, Holder):
        return {**vars(value), "address": value.address._asdict()}
    raise TypeError(f"no message can have {type(value).__name__}")


def _read_task(answer: Any) -> Task:
    number, kind, epoch, most, update = answer
    return Task(number, Kind(kind), epoch, most, update)


def _read_merge(answer: Any) -> Merge:
    lists = {name: tuple(answer[name]) for name in ("members", "contributions", "weights")}
    return Merge(**{**answer, **lists})


def _read_holders(answer: Any) -> tuple[Holder, ...]:
    return tuple(_holder(holder, "holders") for holder in answer)


_ENCODER = json.JSONEncoder(default=_plain, separators=(",", ":"))
_ANSWERS: Mapping[str, Callable[[Any], Any]] = {
    "next_task": _read_task,
    "merge_of": _read_merge,
    "last_merge": _read_merge,
    "holders": _read_holders,
    "live": tuple,
}


def read_answer(call: str, answer: Any) -> Any:
    """Return an answer to a call as `Coordinator` has it."""
    return _ANSWERS[call](answer) if call in _ANSWERS else answer
