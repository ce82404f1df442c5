"""TensorFlow's files as graphs: GraphDef, SavedModel, CostGraphDef and TFLite, read without TensorFlow.

`load` finds out which it is; `nodes` and `textproto` read messages from bytes and text, `shapes` infers sizes, `graph`
makes the Graph, `costs` the one with costs of its own; `tflite` reads FlatBuffers (`flatbuffer`) and writes them in
another order.
"""
