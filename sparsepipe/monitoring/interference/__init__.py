"""Interference: intruders on purpose, what the machine says while they compute, and what that costs each layer.

intruding.py    intruders alongside a job, of the kinds in intruding.py
measuring.py    victims × intruders → measurements.py, rows of a file: with what the machine says (host/metrics)
predictor.py    a forest that learned from them: forest.py, forest.py, measurements.py
predictor.py, colocation.py    rows that others measured, on which the forest is tested
"""

from ...util.host.machine_watch import MachineWatch
from .forest import Forest
from .intruding import KINDS, intruding
from .predictor import Predictor, learn

__all__ = ["KINDS", "Forest", "MachineWatch", "Predictor", "intruding", "learn"]
