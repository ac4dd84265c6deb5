"""Sizes that torch.export took for granted: a minibatch of other ones would be another network without a word."""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...errors import InputError
from .values import features


@dataclass(frozen=True)
class Length:
    """How long an axis may be. Axes of one name are as long as one another."""

    name: str
    least: int
    most: int

    def __str__(self) -> str:
        if self.least == self.most:
            return str(self.least)
        if self.most == sys.maxsize:
            return f"at least {self.least}" if self.least else self.name
        return f"{self.least} to {self.most}"

    def agrees(self, length: int, lengths: dict[str, int]) -> bool:
        return self.least <= length <= self.most and lengths.setdefault(self.name, length) == length


@dataclass(frozen=True)
class Sizes:
    """Of each input, how long its axes may be; nothing if they may be anything."""

    owner: str
    axes: Mapping[str, tuple[Length, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, owner: str, recorded: Mapping[bool, Mapping[str, tuple[Length, ...]]]) -> "Sizes":
        """Take what all phases allow."""
        first, *others = recorded.values()
        axes = dict(first)
        for each in others:
            for name, lengths in each.items():
                axes[name] = tuple(
                    Length(one.name, max(one.least, two.least), min(one.most, two.most))
                    for one, two in zip(axes[name], lengths, strict=True)
                )
        return cls(owner, axes)

    def fixed(self, name: str, axis: int) -> bool:
        """Return whether an axis has to be as long as in the example."""
        return self.axes[name][axis].least == self.axes[name][axis].most

    def single(self, tensors: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield an example with one of its lengths cut down to 1, for each that may be so short."""
        for name in sorted({each.name for axes in self.axes.values() for each in axes if each.least <= 1 < each.most}):
            found = dict(tensors)
            for key, axes in self.axes.items():
                for axis, length in enumerate(axes):
                    if length.name == name:
                        found[key] = found[key].narrow(axis, 0, 1)
            yield found

    def check(self, tensors: Mapping[str, Any]) -> None:
        """Raises InputError for tensors of sizes that the network was not recorded for."""
        lengths: dict[str, int] = {}
        for name, tensor in tensors.items():
            shape, expected = features(tensor).shape, self.axes.get(name)
            if expected is None:
                continue
            same = len(shape) == len(expected)
            if not same or not all(e.agrees(n, lengths) for e, n in zip(expected, shape, strict=True)):
                raise InputError(
                    "example.size_differs",
                    f"{self.owner}: {name} has the sizes {list(shape)}, but the forward depends on its being "
                    f"[{', '.join(map(str, expected))}]: trace it with such an example",
                    name=name,
                )
