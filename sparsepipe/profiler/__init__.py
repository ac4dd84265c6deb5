"""The profiler: what every layer of a network costs on this device, measured within whole training steps."""

from .measure import device_name, profile, profile_model

__all__ = ["device_name", "profile", "profile_model"]
