"""Predict what plans of others take that were measured, by the simulator, and as their own simulator does."""

from .prediction import Prediction, predict, published_prediction

__all__ = ["Prediction", "predict", "published_prediction"]
