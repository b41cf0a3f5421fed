"""Speculative decoding in the shape of a lesson's class: a draft proposes k tokens, the target verifies them.

The answer is the target's own, to the bit, whatever is drafted. Where lessons accept a drafted token
with the chance p(target) / p(draft) and draw the next one from the residual, here the target draws at each
position with that position's noise, and keeps the draft as far as it has drawn the same.
"""

import argparse
import time
from typing import Any

from octavo import LLM, SamplingParams

PROMPT = "The library opens at nine in the morning and closes at six in the evening. The library opens at"


class SpeculativeDecoder:
    """A target and what drafts for it.

    Args:
        target: a model's name. draft: a smaller one's with the same tokenizer, or how many of the target's
            own first layers draft.
        k: tokens of a draft.
    """

    def __init__(self, target: str, draft: str | int, k: int = 5) -> None:
        how: dict[str, Any] = {"method": "self", "layers": draft}
        if isinstance(draft, str):
            how = {"method": "draft_model", "model": draft}
        config = {**how, "num_speculative_tokens": k, "policy": "fixed"}  # every draft is verified
        self.llm = LLM(target, max_num_seqs=4, max_model_len=1024, speculative_config=config)

    def generate(
        self, prompt: str, max_new_tokens: int = 100, temperature: float = 1.0, k: int | None = None
    ) -> Any:
        """The completion of a prompt. k: at most so many drafted tokens, 0: none."""
        params = SamplingParams(
            temperature=temperature, max_tokens=max_new_tokens, seed=1, ignore_eos=True, speculative={"k": k}
        )
        return self.llm.generate(prompt, params, use_tqdm=False)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--draft", default="smollm2", help="a model's name, or a number of layers")
    parser.add_argument("--k", type=int, default=5)
    parser.add_argument("--max-tokens", type=int, default=48)
    options = parser.parse_args()
    draft = int(options.draft) if options.draft.isdigit() else options.draft

    decoder = SpeculativeDecoder(options.model, draft, options.k)
    for temperature in (0.0, 0.7):
        answers, seconds = [], []
        for k in (0, None):
            begin = time.perf_counter()
            answers.append(decoder.generate(PROMPT, options.max_tokens, temperature, k))
            seconds.append(time.perf_counter() - begin)
        plain, drafted = (answer.outputs[0] for answer in answers)
        counts = answers[1].metrics
        accepted, rejected = counts.accepted_prediction_tokens, counts.rejected_prediction_tokens
        print(f"temperature {temperature}: {drafted.text!r}")
        print(f"  the same without drafts: {plain.token_ids == drafted.token_ids}")
        print(f"  {accepted} drafted tokens accepted, {rejected} rejected")
        print(f"  {seconds[0]:.2f} s without, {seconds[1]:.2f} s with")


if __name__ == "__main__":
    main()
