"""Continuous batching, step by step: who is in the batch, who leaves, who enters at once.

Five requests share three rows. Each line is one step; `+7` is seven tokens of a prompt, a bare name is
one token of decoding. When a request ends, the next one enters in the following step: nobody waits for
the others of its batch.
"""

import argparse

from octavo.assembly import load
from octavo.config import EngineConfig
from octavo.engine.admission import Admission
from octavo.engine.core import EngineCore
from octavo.engine.step_plan import Executor, Handle, StepPlan
from octavo.params import SamplingParams

ROWS = 3
REQUESTS = {  # name: (prompt, share of --max-tokens)
    "A": ("The capital of France is", 1.0),
    "B": ("Two plus two makes", 0.25),
    "C": ("A printed sheet, folded three times, becomes", 0.75),
    "D": ("Once upon a time, there was", 0.5),
    "E": ("The sea is", 0.5),
}


class Printer:
    """An executor that prints each plan on its way to the real one."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._names: dict[int, str] = {}
        self.steps = 0

    def submit(self, plan: StepPlan) -> Handle:
        for new in plan.new_rows:
            self._names[new.row] = new.request_id
        if plan.steps:
            self.steps += 1
            cells = {s.row: self._names[s.row] + (f"+{s.count}" if s.count > 1 else "") for s in plan.steps}
            print(f"step {self.steps:>3}   " + "".join(f"{cells.get(row, '.'):<6}" for row in range(ROWS)))
        return self._executor.submit(plan)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--max-tokens", type=int, default=16)
    options = parser.parse_args()

    loaded = load(EngineConfig(model=options.model, max_num_seqs=ROWS))
    core = EngineCore(
        Admission(loaded.config, frozenset(loaded.tokenizer.stop_token_ids)), Printer(loaded.runner)
    )
    for name, (prompt, share) in REQUESTS.items():
        params = SamplingParams(temperature=0.0, max_tokens=max(1, int(share * options.max_tokens)))
        core.add_request(name, loaded.tokenizer.encode(prompt), params)

    answers: dict[str, list[int]] = {name: [] for name in REQUESTS}
    while core.has_unfinished():
        for update in core.step():
            answers[update.request_id] += [token.token_id for token in update.tokens]
            if update.finish_reason:
                print(f"           {update.request_id} ends: {update.finish_reason}")

    for name, (prompt, _) in REQUESTS.items():
        print(f"{name}: {prompt}{loaded.tokenizer.decode(answers[name])}")


if __name__ == "__main__":
    main()
