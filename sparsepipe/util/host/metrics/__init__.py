"""What the machine says of itself, of one process and of a GPU: see machine_watch.py."""

from .machine_watch import MachineWatch

__all__ = ["MachineWatch"]
