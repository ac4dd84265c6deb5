"""What a network's builder may ask of the data: values that are known, and some found out when they are first asked."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any


class LazyFacts(Mapping[str, Any]):
    """A mapping whose dear values are computed once, when they are asked for."""

    def __init__(self, known: Mapping[str, Any], dear: Mapping[str, Callable[[], Any]]) -> None:
        self._known = dict(known)
        self._dear = {name: compute for name, compute in dear.items() if name not in known}

    def __getitem__(self, name: str) -> Any:
        if name not in self._known and name in self._dear:
            self._known[name] = self._dear[name]()
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter({**self._known, **self._dear})

    def __len__(self) -> int:
        return len(self._known.keys() | self._dear.keys())
