"""The ONNX format: an encoder, a decoder step and a whole search."""

from kformer.export.onnx.export import export_onnx

__all__ = ["export_onnx"]
