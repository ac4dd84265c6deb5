"""The runtime: worker processes that obey a plan's action lists. The one part of the library that has effects."""

from .config import (
    CheckpointConfig,
    DataConfig,
    EvaluationConfig,
    NumericsConfig,
    OptimizerConfig,
    ProcessConfig,
    RunConfig,
)

__all__ = [
    "CheckpointConfig",
    "DataConfig",
    "EvaluationConfig",
    "NumericsConfig",
    "OptimizerConfig",
    "ProcessConfig",
    "RunConfig",
]
