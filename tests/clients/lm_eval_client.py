"""lm-eval's local-completions on a small task: python lm_eval_client.py URL KEY MODEL. The server encodes.

The task is multiple choice, so the harness sends token-id prompts and reads echoed logprobs. What it must
find is what the model itself says: `expected` is computed from /v1/completions, one request a choice.
"""

import json
import os
import sys
import urllib.request
from pathlib import Path

HERE = Path(__file__).parent
QUESTIONS = [json.loads(line) for line in (HERE / "capitals.jsonl").read_text().splitlines()]


def post(url: str, key: str, body: dict) -> dict:
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)


def score(url: str, key: str, model: str, question: dict, choice: str) -> float:
    """Log-probability of a choice after its question, from the text interface."""
    prompt = f"Question: {question['question']}\nAnswer:"
    body = {"model": model, "prompt": f"{prompt} {choice}", "max_tokens": 1, "echo": True, "logprobs": 1}
    found = post(url, key, body)["choices"][0]["logprobs"]
    chosen = [
        logprob
        for start, logprob in zip(found["text_offset"], found["token_logprobs"], strict=True)
        if len(prompt) <= start < len(prompt) + 1 + len(choice)
    ]
    return sum(chosen)


def main(url: str, key: str, model: str) -> None:
    os.environ["OPENAI_API_KEY"] = key
    os.environ["HF_DATASETS_OFFLINE"] = os.environ["HF_HUB_OFFLINE"] = "1"
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    expected = 0
    for question in QUESTIONS:
        scores = [score(url, key, model, question, choice) for choice in question["choices"]]
        expected += scores.index(max(scores)) == question["answer"]
    arguments = {
        "model": model,
        "base_url": f"{url}/v1/completions",
        "auth_token": key,  # of what it asks beside: the tokenizer
        "tokenizer_backend": "remote",
        "num_concurrent": 4,
        "max_length": 1024,
    }
    results = simple_evaluate(
        model="local-completions",
        model_args=arguments,
        tasks=["octavo_capitals"],
        task_manager=TaskManager(include_path=str(HERE), include_defaults=False),
        bootstrap_iters=0,
    )
    accuracy = results["results"]["octavo_capitals"]["acc,none"]
    assert accuracy == expected / len(QUESTIONS), (accuracy, expected)
    assert accuracy >= 0.5, accuracy  # four choices: a quarter is chance
    print(f"lm-eval: {expected} of {len(QUESTIONS)} right, as computed from single requests")


if __name__ == "__main__":
    main(*sys.argv[1:])
