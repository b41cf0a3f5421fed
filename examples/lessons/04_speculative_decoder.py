"""Lesson on inference optimization, 4.2, lines 284-409: SpeculativeDecoder(target, draft, tokenizer,
num_speculative_tokens).

What differs: the lesson draws the token after a rejection from the target's distribution, at the last
place, which makes answers that the target alone would not give; it has no bonus token, no KV cache, may
overshoot max_new_tokens, and divides by a temperature of 0. Here the target draws at each place with that
place's noise and keeps the draft as far as it has drawn the same: the answer is its own, to the bit. Models
are names.
"""

import argparse
from typing import Any

from octavo import LLM, SamplingParams
from octavo.compat import AutoTokenizer


class SpeculativeDecoder:
    """A target, and a smaller model of the same tokenizer that drafts."""

    def __init__(self, target_model: str, draft_model: str, tokenizer: Any, num_speculative_tokens: int = 5):
        self.tokenizer = tokenizer
        self.k = num_speculative_tokens
        config = {"model": draft_model, "num_speculative_tokens": self.k, "policy": "fixed"}
        # The policy without a word here rests where drafts do not pay, as those of an equally large model do.
        self.target = LLM(target_model, max_num_seqs=2, max_model_len=512, speculative_config=config)

    def generate(self, input_ids: Any, max_new_tokens: int = 100, temperature: float = 1.0) -> list[int]:
        """The prompt's ids and the answer's."""
        prompt = [int(one) for one in input_ids[0]]
        params = SamplingParams(temperature=temperature, max_tokens=max_new_tokens, seed=1)
        (output,) = self.target.generate({"prompt_token_ids": prompt}, params)
        return prompt + list(output.outputs[0].token_ids)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--draft", default="smollm2", help="the same model by default: every draft is right")
    parser.add_argument("--max-tokens", type=int, default=8)
    options = parser.parse_args()

    tokenizer = AutoTokenizer.from_pretrained(options.model)
    decoder = SpeculativeDecoder(options.model, options.draft, tokenizer, num_speculative_tokens=5)
    input_ids = tokenizer("The library opens at", return_tensors="pt")["input_ids"]
    print(tokenizer.decode(decoder.generate(input_ids, max_new_tokens=options.max_tokens, temperature=1.0)))
    print(f"drafted and accepted: {decoder.target.get_metrics().drafts.accepted_tokens}")


if __name__ == "__main__":
    main()
