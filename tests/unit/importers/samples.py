"""One small file of every format that loadmaster reads without the package it comes from."""

from __future__ import annotations

import json
from pathlib import Path

from tests.unit.files.samples import GRAPH
from tests.unit.importers.benchmarks.test_tasks import DOPPLER, STG, WORKFLOW
from tests.unit.importers.hlo.test_hlo import DATA, SMALL
from tests.unit.importers.tensorflow import protos
from tests.unit.importers.tensorflow.test_graph_def import COSTS, TEXT
from tests.unit.importers.tensorflow.tflite_models import convnet

STABLEHLO = """module @jit_f {
  func.func public @main(%arg0: tensor<4x8xf32>, %arg1: tensor<8x2xf32>) -> tensor<4x2xf32> {
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x2xf32>) -> tensor<4x2xf32>
    %1 = stablehlo.tanh %0 : tensor<4x2xf32>
    return %1 : tensor<4x2xf32>
  }
}
"""  # noqa: E501
SAMPLES: dict[str, bytes] = {
    "graph.json": json.dumps(GRAPH).encode(),
    "step.hlo": SMALL.encode(),
    "module.mlir": STABLEHLO.encode(),
    "module.pb.xz": (DATA / "mlp.pb.xz").read_bytes(),
    "frozen.pb": protos.graph_def(protos.convnet()),
    "graph.pbtxt": TEXT.encode(),
    "costs.pbtxt": COSTS.encode(),
    "model.tflite": convnet(),
    "tasks.stg": STG.encode(),
    "doppler.txt": DOPPLER.encode(),
    "workflow.json": json.dumps(WORKFLOW).encode(),
}


def write(folder: Path, name: str, raw: bytes | None = None) -> Path:
    path = folder / name
    path.write_bytes(SAMPLES[name] if raw is None else raw)
    return path
