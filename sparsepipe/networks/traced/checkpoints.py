"""torch.utils.checkpoint inside a network: its function runs once. Whether stages recompute is the plan's to say."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils import checkpoint


@contextmanager
def without_checkpoints() -> Iterator[None]:
    """Have torch.utils.checkpoint.checkpoint call its function and no more, under whatever name it was imported.

    What it runs again in the backward would find other weights in place than the forward had: the optimizer's.
    """
    function: Any = getattr(checkpoint.checkpoint, "__wrapped__", checkpoint.checkpoint)
    original = function.__code__
    function.__code__ = _once.__code__
    try:
        yield
    finally:
        function.__code__ = original


def _once(
    function: Callable[..., Any],
    *args: Any,
    use_reentrant: Any = None,
    context_fn: Any = None,
    determinism_check: Any = None,
    debug: Any = None,
    early_stop: Any = None,
    **kwargs: Any,
) -> Any:
    kwargs.pop("preserve_rng_state", None)
    return function(*args, **kwargs)
