"""Python processes that import this project: what their environment must say."""

import os
from pathlib import Path


def python_path() -> str:
    """Return a PYTHONPATH that finds this very package first, then what this process's names."""
    own = str(Path(__file__).resolve().parent.parent)
    return os.pathsep.join([own, *filter(None, [os.environ.get("PYTHONPATH")])])
