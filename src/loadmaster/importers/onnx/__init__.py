"""ONNX models as graphs.

`model` loads a file or a ModelProto, `shapes` finds the size of every tensor, `walk` goes through the ops, `flops`
counts their arithmetic; `reorder` writes a model again in the order of a plan.
"""
