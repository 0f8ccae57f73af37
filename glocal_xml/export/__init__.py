"""Trained models for use elsewhere: with an int8 encoder, or as a program that needs nothing but torch."""

from .exported import exported
from .quantized import quantized

__all__ = ["exported", "quantized"]
