"""Numbers of things in words: 1 device, 2 devices, 0 minibatches."""

from collections.abc import Callable, Iterable


def number_of(count: float, word: str, shown: str | Callable[[float], str] = "") -> str:
    """Return the count with its word, in the plural unless it is one; `shown` is how, as "," or `numbers.as_given`."""
    text = f"{count:{shown}}" if isinstance(shown, str) else shown(count)
    return f"{text} {word if count == 1 else plural(word)}"


def plural(word: str) -> str:
    """Return the plural of a regular word: "minibatches" of "minibatch", "boundaries" of "boundary", and "epochs"."""
    if word.endswith("epoch"):  # in which "ch" is a "k"
        return f"{word}s"
    if word.endswith(("s", "x", "ch", "sh")):
        return f"{word}es"
    if word.endswith("y") and word[-2] not in "aeiou":
        return f"{word[:-1]}ies"
    return f"{word}s"


def counted(names: Iterable[str]) -> str:
    """Return things by kind, as people write them: "2 × RTX + tv"; a kind's name may begin with a digit."""
    every = list(names)
    each = ((name, every.count(name)) for name in dict.fromkeys(every))
    return " + ".join(name if count == 1 else f"{count} × {name}" for name, count in each)


def listed(numbers: Iterable[int]) -> str:
    """ "0, 2 and 4"."""
    *most, last = map(str, numbers)
    return f"{', '.join(most)} and {last}" if most else last
