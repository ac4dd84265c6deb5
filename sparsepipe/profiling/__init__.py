"""The profiler: what every layer of a network costs on this device, measured within whole training steps."""

from .devices import device_name
from .measure import profile
from .of_model import profile_model

__all__ = ["device_name", "profile", "profile_model"]
