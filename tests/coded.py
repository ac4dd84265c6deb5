"""What tests ask of an error: its code, its fields, and what its line names. The wordings are in golden/errors.txt."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sparsepipe.errors import CodedError

_EDGE = r"(?:(?<!\d)|(?!\d))"  # not within a number


def mentions(text: object, /, *named: object) -> bool:
    """Whether a text has these in this order: numbers, files and settings, however it is worded."""
    pattern = ".*".join(_EDGE + re.escape(str(each)) + _EDGE for each in named)
    return re.search(pattern, str(text), re.DOTALL) is not None


@contextmanager
def raises(code: str, /, *named: object, **fields: object) -> Iterator[pytest.ExceptionInfo[CodedError]]:
    """As `pytest.raises`, for an error of a code, with these fields, whose line names these texts in this order."""
    with pytest.raises(CodedError) as caught:
        yield caught
    error = caught.value
    assert error.code == code, f"{error.code}: {error}"
    assert {name: str(error.fields.get(name)) for name in fields} == {name: str(fields[name]) for name in fields}
    assert mentions(error, *named), str(error)
