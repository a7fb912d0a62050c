"""A proposer for tests: for requests whose ids say so, it drafts known answers, damaged answers, or noise.

Ids are KIND-KEY; `additional_config["answers"]` names a JSON file with the tokens of the answer to each KEY.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from serving.engines.vllm.batch_drafts import BatchDrafts, DraftRow
from serving.engines.vllm.draft_worker import DraftProposer

PROPOSER = f"{__name__}.OddDrafts"


class OddDrafts(DraftProposer):
    """Like `DraftProposer`, except for ids that begin with good, adversarial or random."""

    def __init__(self, vllm_config: Any) -> None:
        super().__init__(vllm_config)
        self._answers = json.loads(Path(vllm_config.additional_config["answers"]).read_text("utf-8"))
        self._vocab_size = vllm_config.model_config.get_vocab_size()
        self._last: dict[str, list[int]] = {}  # by request

    def attach(self, runner: Any) -> None:
        """See `DraftProposer`."""
        super().attach(runner)
        self._batch = runner.input_batch

    def load_drafts(self) -> BatchDrafts:
        """See `DraftProposer`."""
        self._odd = OddBatchDrafts(super().load_drafts(), self._answers, self._vocab_size)
        return self._odd  # type: ignore[return-value]

    def begin_step(self, scheduler_output: Any) -> None:
        """See `DraftProposer`. An error here ends the engine, and with it every test."""
        for request_id, drafts in scheduler_output.scheduled_spec_decode_tokens.items():
            assert drafts == self._last[request_id][: len(drafts)], "vLLM verifies our drafts and no others"
        super().begin_step(scheduler_output)

    def propose(
        self, sampled_token_ids: list[list[int]], num_tokens_no_spec: Any, token_ids_cpu: Any, slot_mappings: Any = None
    ) -> list[list[int]]:
        """See `DraftProposer`."""
        num_steps = self._odd.num_steps
        drafts = super().propose(sampled_token_ids, num_tokens_no_spec, token_ids_cpu, slot_mappings)
        assert self._odd.num_steps == num_steps + 1, "the drafter has failed; the log says how"
        self._last |= {self._batch.req_ids[place]: list(one) for place, one in enumerate(drafts)}
        return drafts


class OddBatchDrafts:
    """Puts odd drafts in the place of those that `drafts` has found."""

    def __init__(self, drafts: BatchDrafts, answers: dict[str, list[int]], vocab_size: int) -> None:
        self.num_steps = 0
        self._drafts, self._answers, self._vocab_size = drafts, answers, vocab_size
        self._chance = random.Random(0)

    def add_step(self, *, rows: int, seconds: float) -> None:
        """See `BatchDrafts`."""
        self._drafts.add_step(rows=rows, seconds=seconds)

    def propose(self, rows: Sequence[DraftRow | None], **state: Any) -> list[list[int]]:
        """See `BatchDrafts`."""
        drafts = self._drafts.propose(rows, **state)
        for place, row in enumerate(rows):
            if row is not None and not row.request_id.startswith("ours-"):
                drafts[place] = self._odd(row)
        self.num_steps += 1
        return drafts

    def _odd(self, row: DraftRow) -> list[int]:
        kind, key = row.request_id.split("-")[:2]
        limit = max(0, row.max_drafts)
        if kind == "random":
            return [self._chance.randrange(self._vocab_size) for _ in range(limit)]
        drafts = self._answers[key][len(row.output_token_ids) :][:limit]
        if kind == "adversarial" and drafts:  # right up to anywhere, then wrong, then right again
            drafts[self._chance.randrange(len(drafts))] = self._chance.randrange(self._vocab_size)
        return drafts
