"""A batch of prompts, with vLLM's names: only the import differs."""

import argparse

from octavo import LLM, SamplingParams

PROMPTS = ["The capital of France is", "A printed sheet, folded three times, becomes", "Once upon a time,"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--max-tokens", type=int, default=32)
    options = parser.parse_args()

    llm = LLM(model=options.model, trust_remote_code=True)
    params = SamplingParams(temperature=0.7, top_p=0.9, max_tokens=options.max_tokens)
    for output in llm.generate(PROMPTS, params):
        completion = output.outputs[0]
        print(f"{output.prompt!r} -> {completion.text!r}")
        print(f"  {len(completion.token_ids)} tokens, {completion.finish_reason}, seed {output.seed}")

    # The seed that an output carries gives the same answer again, alone or in a batch.
    again = llm.generate(PROMPTS[0], params.replace(seed=7))[0].outputs[0]
    among = llm.generate([*PROMPTS, PROMPTS[0]], params.replace(seed=7))[-1].outputs[0]
    print("the same alone and in a batch:", again.token_ids == among.token_ids)


if __name__ == "__main__":
    main()
