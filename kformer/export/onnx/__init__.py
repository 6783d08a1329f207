"""The ONNX format: an encoder and a decoder step."""

from kformer.export.onnx.export import export_onnx

__all__ = ["export_onnx"]
