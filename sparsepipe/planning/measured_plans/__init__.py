"""Predict what plans of others take that were measured, by the simulator, and as their own simulator does."""

from .prediction import Prediction, predict
from .published import published_prediction

__all__ = ["Prediction", "predict", "published_prediction"]
