"""Runs stages one after the other and writes what they find to a JSON file after each: the worker of `one_shot`.

python -m lab.gpu.stages OUT.json SECONDS STAGE…
"""

from __future__ import annotations

import faulthandler
import gc
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from lab.gpu.gpu_report import Run, StageReport

# Seconds that a stage may take, if so many are left.
LIMITS: Final = {
    **{"machine": 15, "compile": 50, "kernels": 35, "bits": 30, "model": 30},
    **{"graphs": 30, "passes": 60, "baselines": 20, "sweep": 60, "ncu": 40},
}
FURTHER: Final = {"queries": 900, "vllm": 1800, "image": 900}  # these need more than torch, and built weights
REQUIRES_GPU: Final = "GPU_CHECK_REQUIRES_GPU"  # environment variable
NO_GPU_CODE: Final = 3  # exit code: torch sees no GPU, and one is required
NEW_PROCESS_CODE: Final = 4  # exit code: the GPU takes no more work of this process
INTERPRETED: Final = "no GPU: Triton's interpreter on the CPU, tiny shapes"
_GRACE: Final = 15  # seconds after which a stage that should have ended is ended


def main(out: Path, seconds: float, names: list[str]) -> int:
    """Run stages, as far as the time goes; returns the exit code."""
    deadline = time.monotonic() + seconds
    import torch

    has_gpu = torch.cuda.is_available()
    if not has_gpu:
        if os.environ.get(REQUIRES_GPU):
            return NO_GPU_CODE
        os.environ["TRITON_INTERPRET"] = "1"  # counts when triton is imported, which follows
    from lab.gpu.place import Place

    where = torch.cuda.get_device_name() if has_gpu else INTERPRETED
    run = Run.read(out) if out.exists() else Run({})
    run.about |= {"is_gpu": has_gpu, "machine": f"{where}; torch {torch.__version__}, Python {sys.version.split()[0]}"}
    functions = _functions(names)
    for name in names:
        begun = time.monotonic()
        limit = min({**LIMITS, **FURTHER}[name] * (1 if has_gpu else 5), deadline - begun)
        report = StageReport(name, where)
        run.stages.append(report)
        if limit < 3:
            report.status = "done"
            report.not_run.append("no time was left")
            continue
        run.write(out)
        print(f"{name} … ({deadline - begun:.0f} s are left)", file=sys.stderr, flush=True)
        faulthandler.dump_traceback_later(min(limit + _GRACE, deadline - begun + 5), exit=True)
        report.fill(partial(functions[name], Place(has_gpu, begun + limit)))
        if has_gpu and not _still_works():
            report.wrong.append("afterwards the GPU took no more work of this process")
            run.write(out)
            return NEW_PROCESS_CODE
        run.write(out)
        faulthandler.cancel_dump_traceback_later()
    run.write(out)
    return 0


def _still_works() -> bool:
    import torch

    gc.collect()
    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    except RuntimeError:  # an illegal access, for example, ends all work of a process
        return False
    return True


def _functions(names: list[str]) -> dict[str, Callable[[Any, StageReport], None]]:
    """The stages by name. They are imported here, because they read TRITON_INTERPRET."""
    from lab.gpu.compile_ahead import compile_variants
    from lab.gpu.gpu_machine import describe_gpu
    from lab.gpu.kernel_checks import check_bits, check_errors
    from lab.gpu.matmul_rates import measure_baselines, read_counters, sweep_tiles
    from lab.gpu.model_checks import check_graphs, check_model
    from lab.gpu.passes_timed import time_passes

    found: dict[str, Callable[[Any, StageReport], None]] = {
        **{"machine": describe_gpu, "compile": compile_variants, "kernels": check_errors, "bits": check_bits},
        **{"model": check_model, "graphs": check_graphs, "passes": time_passes},
        **{"baselines": measure_baselines, "sweep": sweep_tiles, "ncu": read_counters},
    }
    if set(names) & FURTHER.keys():
        from lab.gpu.image_pieces import image_pieces
        from lab.gpu.queries import beside_vllm, queries

        found |= {"queries": queries, "vllm": beside_vllm, "image": image_pieces}
    return found


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]))
