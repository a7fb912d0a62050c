"""Golden vectors of NF4, which bitsandbytes 0.50.2 made on its CPU backend.

bitsandbytes is not in our environments; to make them again, install its wheel into a folder and run
    PYTHONPATH=FOLDER:. .venv/bin/python -m tests.pipeline.weights.merging.nf4_golden
"""

from __future__ import annotations

import base64
import importlib
import json
from pathlib import Path

import numpy as np

from pipeline.weights.tensors import Array

GOLDEN = Path(__file__).with_name("nf4_golden.json")
SHAPE = (68, 256)  # 272 blocks of 64, more than the 256 that share a second constant


def golden_weights() -> Array:
    """The weights that were rounded, from integer arithmetic, so that they are the same everywhere."""
    state, values = 12345, []
    for _ in range(SHAPE[0] * SHAPE[1]):
        state = (1103515245 * state + 12345) % 2**31
        values.append((state >> 8) / 2**23 - 0.5)
    weights = np.array(values, dtype=np.float32).reshape(SHAPE)
    weights *= np.linspace(0.01, 0.2, SHAPE[0], dtype=np.float32)[:, None]
    weights[5] = 0  # blocks of zeros must not be divided by zero
    return weights


def _make() -> None:
    import torch

    bitsandbytes = importlib.import_module("bitsandbytes")  # not pinned: only this function needs it
    functional = importlib.import_module("bitsandbytes.functional")
    weights = torch.from_numpy(golden_weights())
    codes, single = functional.quantize_4bit(weights, blocksize=64, quant_type="nf4")
    _, state = functional.quantize_4bit(weights, blocksize=64, compress_statistics=True, quant_type="nf4")
    factors = functional.dequantize_blockwise(state.absmax, state.state2) + state.offset
    golden = {
        "made_with": f"bitsandbytes {bitsandbytes.__version__}, torch {torch.__version__}, CPU",
        "table": single.code.tolist(),
        "codes": base64.b64encode(codes.numpy().tobytes()).decode(),
        "maxima": base64.b64encode(single.absmax.numpy().tobytes()).decode(),
        "factors": base64.b64encode(factors.numpy().tobytes()).decode(),
        "double_first_row": functional.dequantize_4bit(codes, state)[0, :64].tolist(),
    }
    GOLDEN.write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    _make()
