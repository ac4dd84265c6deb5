"""How many inputs a fuzz test draws: each time it runs others, and with SPARSEPIPE_FUZZ=10 ten times as many."""

import os
from pathlib import Path

from hypothesis import HealthCheck, settings

_TIMES = int(os.environ.get("SPARSEPIPE_FUZZ", "1"))


def fuzzed(examples: int) -> settings:
    """Hypothesis's settings for so many inputs, written one after the other into a folder of the test."""
    return settings(max_examples=_TIMES * examples, suppress_health_check=[HealthCheck.function_scoped_fixture])


def put(path: Path, content: bytes) -> Path:
    """Write a file anew: one that is cut to nothing and written over, ext4 brings to disk before it is closed."""
    path.unlink(missing_ok=True)
    path.write_bytes(content)
    return path
