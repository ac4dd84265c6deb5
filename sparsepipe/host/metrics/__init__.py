"""What the machine says of itself and of one process: machine_watch.py, of pressure.py, scheduler.py, cache_counters.py
and, of a GPU, nvml.py."""

from .machine_watch import MachineWatch

__all__ = ["MachineWatch"]
