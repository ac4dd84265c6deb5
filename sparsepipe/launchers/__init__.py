"""Launchers: a plan becomes running processes, here or on a cluster."""

from .base import LAUNCHERS, Job, attach, launch

__all__ = ["LAUNCHERS", "Job", "attach", "launch"]
