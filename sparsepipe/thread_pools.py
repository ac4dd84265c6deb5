"""How the threads of an engine wait for each other: what a process's environment must say before torch comes in."""

import os
from importlib.util import find_spec

WAITING = "OMP_WAIT_POLICY"


def waiting(engine: str, threads: int) -> dict[str, str]:
    """Return the variables to add to the environment of a process that runs an engine (its name) on `threads` threads.

    MinkowskiEngine's OpenMP threads wait by spinning, and so take the processors from those of its BLAS library: where
    there are several they are told to sleep, unless the environment says already how they wait. "auto" is
    MinkowskiEngine where it is installed.
    """
    spins = engine == "minkowski" or (engine == "auto" and find_spec("MinkowskiEngine") is not None)
    said = {WAITING, "GOMP_SPINCOUNT"} & os.environ.keys()
    return {WAITING: "passive"} if threads > 1 and spins and not said else {}
