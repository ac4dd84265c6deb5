"""The local launcher: workers on this machine, under a supervisor that dies with whoever started it."""

from .launch_local import attach, launch

__all__ = ["attach", "launch"]
