"""Read foreign YAML files safely: no repeated keys, no aliases, bounded nesting."""

from pathlib import Path
from typing import Any

import yaml

from ...errors import InputError
from .fields import complaint, shown
from .files import read_text

_BASE = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # as safe, and ten times faster on a file of many entries
_MOST_DEPTH = 20


class _Loader(_BASE):  # type: ignore[misc,valid-type]
    """Refuses a key that is there twice: YAML lets the last one win without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"key {shown(key.value)} occurs twice", key.start_mark
                    )
                seen.add((key.tag, key.value))
        return dict(super().construct_mapping(node, deep=deep))


def read_yaml(path: Path, *, what: str) -> Any:
    """Read a YAML file a user named. Raises InputError in one line that names the file and, where known, the line."""
    text = read_text(path, what=what)
    try:
        _check_structure(path, text)
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None)
        raise InputError(
            "yaml.malformed", f"{path}{line}: not valid YAML ({complaint(ValueError(problem) if problem else error)})"
        ) from None
    except (ValueError, TypeError, OverflowError, AttributeError, LookupError) as error:  # a number or date of none
        raise InputError("yaml.malformed", f"{path}: cannot be read as YAML ({complaint(error)})") from None


def _check_structure(path: Path, text: str) -> None:
    """Raise InputError for aliases, with which a small file becomes any size, and for what is nested too deeply."""
    depth = 0
    for event in yaml.parse(text, Loader=_BASE):
        line = event.start_mark.line + 1 if event.start_mark else 1
        if isinstance(event, yaml.AliasEvent):
            raise InputError(
                "yaml.alias",
                f"{path}:{line}: the alias *{shown(event.anchor)[1:-1]} is not supported; write its value out",
            )
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > _MOST_DEPTH:
            raise InputError(
                "yaml.too_deep", f"{path}:{line}: nested more than {_MOST_DEPTH} levels deep; use less nesting"
            )
