"""A chat package's Predictor whose fake engine repeats the user's last message; Cog runs it."""

from __future__ import annotations

from serving.engines.fake.engine import FakeEngine
from tasks.chat.predict import Predictor as ChatPredictor


class Predictor(ChatPredictor):
    """The answer is the last message, as far as a grammar allows it; ten milliseconds for each token."""

    def setup(self) -> None:
        super().setup()
        self.model.engine.close()
        self.model.engine = FakeEngine(
            self.model.tokenizer, answer=last_message, max_model_len=2048, max_num_seqs=16, step_seconds=0.01
        )


def last_message(prompt: str) -> str:
    """What stands behind the last `user` in the prompt of SmolLM2's template."""
    return prompt.rpartition("user\n")[2].partition("\nassistant\n")[0]
