"""The state of a run of several pipelines as JSON, all of it, and the state again.

What JSON lacks is an object with one key "": what it is. Objects are written once, by the fields that they have, and
referred to where they come again. Only classes of this folder and of the rules are written, and made again.
"""

import importlib
import json
import random
from collections import Counter, deque
from enum import Enum
from typing import Any

_FOLDERS = ("sparsepipe.runtime.pipelines.", "sparsepipe.replication.")
_CONTAINERS: dict[str, type] = {one.__name__: one for one in (tuple, set, deque)}
_MAPPINGS: dict[str, type] = {one.__name__: one for one in (dict, Counter)}


def to_json(state: Any) -> Any:
    """Return a state as JSON has it. Raises TypeError for what no state is made of."""
    return _Writer().written(state)


def from_json(document: Any) -> Any:
    """Return the state that `to_json` gave. Raises ValueError for what it does not give."""
    return _Reader().read(document)


class _Writer:
    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}  # by the identity of objects, which the state keeps alive

    def written(self, value: Any) -> Any:
        kind = type(value)
        if value is None or kind in (bool, int, float, str):
            return value
        if kind is list:
            return [self.written(item) for item in value]
        if kind in _CONTAINERS.values():
            items = [self.written(item) for item in value]
            return {"": kind.__name__, "items": sorted(items, key=json.dumps) if kind is set else items}
        if kind in _MAPPINGS.values():
            return {
                "": kind.__name__,
                "items": [[self.written(key), self.written(item)] for key, item in value.items()],
            }
        if kind is random.Random:
            return {"": "Random", "state": self.written(value.getstate())}
        name = f"{kind.__module__}:{kind.__qualname__}"
        if not name.startswith(_FOLDERS):
            raise TypeError(f"a state has {name}")
        if isinstance(value, Enum):
            return {"": "value", "class": name, "value": self.written(value.value)}
        if isinstance(value, tuple):
            return {"": "value", "class": name, "items": [self.written(item) for item in value]}
        if id(value) in self._numbers:
            return {"": "again", "number": self._numbers[id(value)]}
        self._numbers[id(value)] = len(self._numbers)
        return {"": "object", "class": name, "fields": {key: self.written(item) for key, item in vars(value).items()}}


class _Reader:
    def __init__(self) -> None:
        self._objects: list[Any] = []

    def read(self, document: Any) -> Any:
        if isinstance(document, list):
            return [self.read(item) for item in document]
        if not isinstance(document, dict):
            return document
        kind = document[""]
        if kind in _CONTAINERS:
            return _CONTAINERS[kind](self.read(item) for item in document["items"])
        if kind in _MAPPINGS:
            return _MAPPINGS[kind]({self.read(key): self.read(item) for key, item in document["items"]})
        if kind == "Random":
            made = random.Random()
            made.setstate(self.read(document["state"]))
            return made
        if kind == "again":
            return self._objects[document["number"]]
        found = _class(document["class"])
        if kind == "value":
            return found(*self.read(document["items"])) if "items" in document else found(self.read(document["value"]))
        made = object.__new__(found)
        self._objects.append(made)
        for key, item in document["fields"].items():
            object.__setattr__(made, key, self.read(item))  # frozen ones, too
        return made


def _class(name: str) -> Any:
    if not name.startswith(_FOLDERS):
        raise ValueError(f"a state has {name[:100]!r}")
    module, _, path = name.partition(":")
    return getattr(importlib.import_module(module), path)
