"""A library that answers as NVIDIA's NVML does, for machines without one, and a GPU at work as it tells of it."""

from ctypes import CFUNCTYPE, c_char_p, c_int, c_uint, c_ulonglong, c_void_p
from types import SimpleNamespace


def answering(answers):
    """A library that is called as NVML is: by C's rules, and answers through pointers, in the layouts of nvml.h.

    `answers` has them by (function, what it is asked); all else is not supported.
    """
    not_supported = 3
    asked_and_answered = {
        "nvmlDeviceGetHandleByIndex_v2": ((c_uint,), c_void_p * 1),
        "nvmlDeviceGetHandleByUUID": ((c_char_p,), c_void_p * 1),
        "nvmlDeviceGetUtilizationRates": ((c_void_p,), c_uint * 2),
        "nvmlDeviceGetMemoryInfo": ((c_void_p,), c_ulonglong * 3),
        "nvmlDeviceGetPowerUsage": ((c_void_p,), c_uint * 1),
        "nvmlDeviceGetClockInfo": ((c_void_p, c_int), c_uint * 1),
        "nvmlDeviceGetPcieThroughput": ((c_void_p, c_int), c_uint * 1),
    }

    def function(name, asked, numbers):
        def call(*given):
            answer = answers.get((name, *given[:-1]))
            if answer is None:
                return not_supported
            numbers.from_address(given[-1])[:] = answer if isinstance(answer, tuple) else (answer,)
            return 0

        return CFUNCTYPE(c_int, *asked, c_void_p)(call)

    return SimpleNamespace(**{name: function(name, *types) for name, types in asked_and_answered.items()})


FIRST, SECOND = 0x1000, 0x2000  # handles
UUID = "0f2a9c1e-5d5b-4c39-8d0f-6a7b8c9d0e1f"
BUSY = {
    ("nvmlDeviceGetHandleByIndex_v2", 0): FIRST,
    ("nvmlDeviceGetHandleByUUID", f"GPU-{UUID}".encode()): SECOND,
    ("nvmlDeviceGetUtilizationRates", SECOND): (87, 41),  # percent
    ("nvmlDeviceGetMemoryInfo", SECOND): (80 * 2**30, 60 * 2**30, 20 * 2**30),  # total, free, used
    ("nvmlDeviceGetPowerUsage", SECOND): 412_345,  # milliwatts
    ("nvmlDeviceGetClockInfo", SECOND, 0): 1980,
    ("nvmlDeviceGetClockInfo", SECOND, 1): 1965,
    ("nvmlDeviceGetClockInfo", SECOND, 2): 2619,
    ("nvmlDeviceGetPcieThroughput", SECOND, 0): 1250,
    ("nvmlDeviceGetPcieThroughput", SECOND, 1): 3500,
    ("nvmlDeviceGetUtilizationRates", FIRST): (0, 0),
}
