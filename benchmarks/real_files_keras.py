"""Writes frozen graphs of Keras models, without trained weights, for `real_files.py` to judge.

    python benchmarks/real_files_keras.py frozen       # in an environment with tensorflow-cpu

Each becomes a .pb; small ones a .pbtxt too, and a folder with their SavedModel. Those with TensorFlow 2 loops (LSTM,
GRU) and one training step are there to be refused.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from google.protobuf import text_format
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

APPLICATIONS = ("MobileNet", "MobileNetV2", "MobileNetV3Small", "DenseNet121", "EfficientNetB0", "EfficientNetV2B0",
                "NASNetMobile", "ResNet50", "ResNet50V2", "InceptionV3", "Xception", "VGG11")  # fmt: skip


def small() -> dict[str, Callable[[], Any]]:
    """Models that are quick to write down, by name."""
    layers = keras.layers

    def stack(shape: tuple[int, ...], *parts: Any) -> Any:
        return keras.Sequential([keras.Input(shape), *parts])

    def attention() -> Any:
        x = keras.Input((32, 64))
        y = layers.LayerNormalization()(x + layers.MultiHeadAttention(4, 16)(x, x))
        return keras.Model(x, layers.Dense(10)(layers.Dense(128, activation="gelu")(y)))

    return {
        "mlp": lambda: stack((32,), layers.Dense(128, activation="relu"), layers.Dense(10)),
        "convnet": lambda: stack((32, 32, 3), layers.Conv2D(16, 3), layers.MaxPool2D(), layers.Flatten(),
                                 layers.Dense(10, activation="softmax")),
        "conv1d": lambda: stack((64, 8), layers.Conv1D(16, 5, padding="same"), layers.GlobalAveragePooling1D()),
        "conv3d": lambda: stack((8, 16, 16, 3), layers.Conv3D(8, 3), layers.GlobalMaxPooling3D(), layers.Dense(4)),
        "transposed": lambda: stack((8, 8, 4), layers.Conv2DTranspose(8, 3, strides=2, padding="same")),
        "separable": lambda: stack((32, 32, 3), layers.SeparableConv2D(16, 3), layers.BatchNormalization()),
        "upsampling": lambda: stack((8, 8, 4), layers.UpSampling2D(interpolation="bilinear"), layers.Conv2D(4, 3)),
        "attention": attention,
        "lstm": lambda: stack((20, 16), layers.LSTM(32, return_sequences=True), layers.GRU(16), layers.Dense(4)),
        "lstm-unrolled": lambda: stack((5, 16), layers.LSTM(32, unroll=True), layers.Dense(4)),
    }  # fmt: skip


def frozen(model: Any) -> Any:
    """Its GraphDef with weights as constants, one example wide."""
    shapes = [tf.TensorSpec((1, *tensor.shape[1:]), tensor.dtype) for tensor in model.inputs]
    call = tf.function(lambda x: model(x, training=False)).get_concrete_function(shapes[0])
    return convert_variables_to_constants_v2(call, lower_control_flow=False).graph.as_graph_def()


def training_step() -> Any:
    """A step of gradient descent on a matrix, as TensorFlow 1 writes it."""
    with tf.Graph().as_default() as graph:
        v1 = tf.compat.v1
        x, w = v1.placeholder(tf.float32, (8, 32)), v1.get_variable("w", (32, 4), use_resource=False)
        v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean((x @ w) ** 2))
        return graph.as_graph_def()


def main() -> None:
    """Writes all of them into the folder that is named."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, make in small().items():
        model = make()
        (folder / f"{name}.pbtxt").write_text(text_format.MessageToString(frozen(model)))
        (folder / f"{name}.pb").write_bytes(frozen(model).SerializeToString())
        model.export(folder / f"{name}-saved", verbose=False)
    for name in APPLICATIONS:
        if make := getattr(keras.applications, name, None):
            (folder / f"{name}.pb").write_bytes(frozen(make(weights=None)).SerializeToString())
    (folder / "training.pb").write_bytes(training_step().SerializeToString())


if __name__ == "__main__":
    main()
