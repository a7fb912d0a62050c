"""The rows of the check, in their order."""

from __future__ import annotations

from typing import Final

from pipeline.gpu_check.finding import CheckRow
from pipeline.gpu_check.gpu_tests import gpu_tests
from pipeline.gpu_check.graphs_checked import graphs_checked
from pipeline.gpu_check.image_pieces import image_pieces
from pipeline.gpu_check.kernel_errors import kernel_errors
from pipeline.gpu_check.machine_rates import machine_rates
from pipeline.gpu_check.passes_timed import passes_timed, prefill_timed
from pipeline.gpu_check.queries import beside_vllm, queries
from pipeline.gpu_check.row_bits import row_bits

ROWS: Final = (
    CheckRow("kernels", "kernels against float64", kernel_errors),
    CheckRow("bits", "a row alone and among others", row_bits),
    CheckRow("tests", "tests marked gpu", gpu_tests),
    CheckRow("rates", "rates of the machine", machine_rates),
    CheckRow("passes", "a pass of M rows", passes_timed),
    CheckRow("graphs", "CUDA graphs", graphs_checked),
    CheckRow("prefill", "prefill", prefill_timed),
    CheckRow("queries", "queries end to end", queries),
    CheckRow("vllm", "beside vLLM", beside_vllm),
    CheckRow("image", "pieces of the image", image_pieces),
)
