"""Trained models for use elsewhere: with an int8 encoder, as a program that needs nothing but torch, or as ONNX."""

from .exported import exported, onnx_program
from .quantized import quantized

__all__ = ["exported", "onnx_program", "quantized"]
