"""What changes while a job runs: how slow each device and link is now, and what to do about it.

factors.py      devices and links as they are now, beside what their profile and cluster say
"""

from .factors import Factors

__all__ = ["Factors"]
