"""What is left out of an import is there for everybody else."""

import subprocess
import sys

import pytest

from sparsepipe.util.host.imports import left_out


def test_a_module_is_missing_within_and_there_after() -> None:
    sys.modules.pop("this", None)
    with left_out("this"), pytest.raises(ImportError):
        import this  # noqa: F401
    assert "this" not in sys.modules
    with pytest.raises(KeyError), left_out("this"):
        raise KeyError
    assert "this" not in sys.modules


def test_a_module_that_is_there_stays() -> None:
    import json

    with left_out("json"):
        import json as again
    assert again is json is sys.modules["json"]


def test_figures_bring_no_grammar() -> None:
    """jsonschema's, by nbformat, by plotly's renderers: it took half of the time that figures took to be imported."""
    code = "import sparsepipe.views.plots, sys; print({'nbformat', 'rfc3987_syntax'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() in ("{'nbformat'}", "set()")
