"""TensorFlow's files as graphs: GraphDef, SavedModel, CostGraphDef and TFLite, read without TensorFlow."""
