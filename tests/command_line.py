"""The command `sparsepipe` in the process of a test: most of what it takes as a process of its own are imports."""

import io
import os
import warnings
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

from sparsepipe.cli.command import main


def sparsepipe(*words: object, folder: Path | str = ".") -> tuple[int, str, list[str]]:
    """Give the command these words, as from `folder`; return its exit code, its output, and its lines for people."""
    out, err = io.StringIO(), io.StringIO()
    with patch.dict(os.environ), chdir(folder), redirect_stdout(out), redirect_stderr(err), warnings.catch_warnings():
        warnings.simplefilter("default")  # they are told, not raised as in tests
        try:
            code = main([str(word) for word in words])
        except SystemExit as end:  # of the parser
            code = int(end.code or 0)
    return code, out.getvalue(), err.getvalue().strip().splitlines()
