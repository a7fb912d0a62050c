"""A Predictor with an engine that tests can slow down, break and inspect.

The real Cog server in tests/cog/test_server.py starts it. Tests communicate with it through files in the folder
CONTROL: each health check writes `stats.json`, and kills the engine if there is a file `kill`. While there is a file
`hold`, nothing is written for questions with that word.
"""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import asdict
from pathlib import Path

from predict import Predictor
from serving.engines.fake.engine import FakeEngine

CONTROL = Path(os.environ["CONTROL"])


class ControlledPredictor(Predictor):
    """A Predictor whose fake engine is replaced by one that repeats the question as a filter's value."""

    def setup(self) -> None:
        super().setup()
        if self.model.engine.name != "fake":
            return
        self.model.engine.close()
        self.model.engine = FakeEngine(
            self.model.tokenizer,
            answer=repeat_question,
            max_model_len=4096,
            max_num_seqs=int(os.environ["MAX_NUM_SEQS"]),
            step_seconds=float(os.environ["STEP_SECONDS"]),
        )

    async def healthcheck(self) -> bool:
        if (CONTROL / "kill").exists():
            self.model.engine.kill()
        partial = CONTROL / "stats.json.partial"
        partial.write_text(json.dumps(asdict(self.model.engine.stats())))
        partial.replace(CONTROL / "stats.json")
        return await super().healthcheck()


def repeat_question(prompt: str) -> str:
    """A query that contains the prompt's question, so that no other prompt has the same answer."""
    match = re.search(r"### Columns:\n\['(.*?)'.*### NLQ:\n\"(.*)\"\n", prompt, re.DOTALL)
    if match is None:
        return "health"
    column, question = match.groups()
    while "hold" in question and (CONTROL / "hold").exists():
        time.sleep(0.01)
    query = {
        "breakdowns": [column],
        "calculations": [{"op": "COUNT"}],
        "filters": [{"column": column, "op": "=", "value": question}],
        "orders": [{"op": "CONCURRENCY" if "mend" in question else "COUNT", "order": "descending"}],
        "limit": 10,
    }
    return json.dumps(query)
