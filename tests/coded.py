"""What tests ask of an error: its code, its fields, and what its line names. The wordings are in golden/errors.txt."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sparsepipe.errors import CodedError

_EDGE = r"(?:(?<!\d)|(?!\d))"  # not within a number


@contextmanager
def raises(code: str, /, *named: object, **fields: object) -> Iterator[pytest.ExceptionInfo[CodedError]]:
    """As `pytest.raises`, for an error of a code, with these fields, whose line names these texts in this order."""
    with pytest.raises(CodedError) as caught:
        yield caught
    error = caught.value
    assert error.code == code, f"{error.code}: {error}"
    assert {name: str(error.fields.get(name)) for name in fields} == {name: str(fields[name]) for name in fields}
    assert re.search(".*".join(_EDGE + re.escape(str(text)) + _EDGE for text in named), str(error)), str(error)
