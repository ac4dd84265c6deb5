"""A kernel map's pairs in the order of its matrix products, and the positions of each output row's pairs."""

from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as functional
from torch import Tensor


@dataclass(frozen=True)
class Bags:
    """For each row of a result the rows it is made of: those of row r are `rows[starts[r]:starts[r + 1]]`."""

    rows: Tensor  # int32 [P]
    starts: Tensor  # int32 [R + 1]

    def sum(self, table: Tensor, weights: Tensor | None = None) -> Tensor:
        """Add up each result row's rows of `table` [T, C], each times its weight: [R, C], 0 if there is none.

        Always in the same order, whatever the number of threads; half precision is summed in single.
        """
        return torch.embedding_bag(table.contiguous(), self.rows, self.starts, False, 0, False, weights, True)[0]

    def max(self, table: Tensor) -> tuple[Tensor, Tensor]:
        """Take the maximum of each result row's rows, channel by channel, 0 if there is none, and who gave it.

        Of equals the first one gave it. Returns [R, C] and int32 [R, C].
        """
        maxima = torch.embedding_bag(table.contiguous(), self.rows, self.starts, False, 2, False, None, True)
        return maxima[0], maxima[3]


@dataclass(frozen=True)
class Pairs:
    """All pairs of a kernel map, grouped by kernel offset: `counts[k]` of them for offset k."""

    in_rows: Tensor  # int64 [P]
    out_rows: Tensor  # int64 [P]
    counts: tuple[int, ...]
    num_out: int

    @cached_property
    def ends(self) -> Tensor:
        """int32 [K]: where each offset's pairs end."""
        return torch.tensor(self.counts, device=self.in_rows.device).cumsum(0).int()

    @cached_property
    def bags(self) -> Bags:
        """The pairs of each output row, by offset, named by their place here."""
        return bags(self.out_rows, self.num_out)


def bags(out_rows: Tensor, num_out: int) -> Bags:
    """Return for each of `num_out` rows the positions at which it occurs in `out_rows` [P]."""
    order = torch.sort(out_rows.to(torch.int16 if num_out <= 2**15 else torch.int32), stable=True).indices
    starts = torch.bincount(out_rows, minlength=num_out).cumsum(0)
    return Bags(order.int(), functional.pad(starts, (1, 0)).int())


def summed_type(dtype: torch.dtype) -> torch.dtype:
    """Return the type in which to sum numbers of a type: half precision in single."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype
