"""The output of matmuls that compute only the allowed columns of each row."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class MaskedProducts:
    """The output of `masked_products`, on the CPU."""

    counts: Tensor  # [n] int32; −1 for a row with more than max_columns columns
    columns: Tensor  # [n, max_columns] int32, the first counts[i] in ascending order
    products: Tensor  # [n, max_columns] float32; 0 in a row with one column, which is chosen whatever its product is

    @classmethod
    def empty(cls, rows: int, max_columns: int) -> MaskedProducts:
        """Uninitialized output for `rows` rows of up to `max_columns` columns."""
        return cls(
            torch.empty(rows, dtype=torch.int32),
            torch.empty(rows, max_columns, dtype=torch.int32),
            torch.empty(rows, max_columns),
        )
