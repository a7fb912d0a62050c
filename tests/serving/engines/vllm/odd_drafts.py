"""A proposer for tests: for requests whose ids say so, it drafts known answers, damaged answers, or noise.

Ids are KIND-KEY; `additional_config["answers"]` names a JSON file with the tokens of the answer to each KEY.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from serving.engines.vllm.draft_worker import DraftProposer

PROPOSER = f"{__name__}.OddDrafts"


class OddDrafts(DraftProposer):
    """Like `DraftProposer`, except for ids that begin with good, adversarial or random."""

    def __init__(self, vllm_config: Any) -> None:
        super().__init__(vllm_config)
        self._answers = json.loads(Path(vllm_config.additional_config["answers"]).read_text("utf-8"))
        self._vocab_size = vllm_config.model_config.get_vocab_size()
        self._chance = random.Random(0)
        self._last: dict[str, list[int]] = {}  # by request

    def begin_step(self, scheduler_output: Any) -> None:
        """See `DraftProposer`. An error here ends the engine, and with it every test."""
        for request_id, drafts in scheduler_output.scheduled_spec_decode_tokens.items():
            assert drafts == self._last[request_id][: len(drafts)], "vLLM verifies our drafts and no others"
        super().begin_step(scheduler_output)

    def propose(
        self, sampled_token_ids: list[list[int]], num_tokens_no_spec: Any, token_ids_cpu: Any, slot_mappings: Any = None
    ) -> list[list[int]]:
        """See `DraftProposer`."""
        drafts = super().propose(sampled_token_ids, num_tokens_no_spec, token_ids_cpu, slot_mappings)
        assert self._off is None, self._off
        for place, sampled in enumerate(sampled_token_ids):
            request_id = self._runner.input_batch.req_ids[place]
            row = self._row(request_id, sampled, int(num_tokens_no_spec[place]))
            kind, key = request_id.split("-")[:2]
            if row is not None and kind != "ours":
                drafts[place] = self._odd(kind, self._answers[key][len(row.output_token_ids) :], max(0, row.max_drafts))
            self._last[request_id] = list(drafts[place])
        return drafts

    def _odd(self, kind: str, rest: list[int], limit: int) -> list[int]:
        if kind == "random":
            return [self._chance.randrange(self._vocab_size) for _ in range(limit)]
        drafts = rest[:limit]
        if kind == "adversarial" and drafts:  # right up to anywhere, then wrong, then right again
            drafts[self._chance.randrange(len(drafts))] = self._chance.randrange(self._vocab_size)
        return drafts
