"""ModelRunner: StepPlan in, StepResult out."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from octavo.engine.step_plan import Handle, RowStep, SampledToken, StepPlan, StepResult
from octavo.kernels.ops import Backend, DecodeRows, Inputs, KVCache, Limits, Ops, Program, Tensor
from octavo.models.registry import Embedder, EncoderDecoder, Model
from octavo.runtime.apart import Apart
from octavo.runtime.decoding import Decoding
from octavo.runtime.hardware import usable_threads
from octavo.runtime.page_moves import PageMoves
from octavo.runtime.prompt_logprobs import ByRow, PromptLogprobs
from octavo.runtime.states import RequestStates, encoder_batch, gather_batch
from octavo.runtime.vectors import END, PromptVectors, Vector
from octavo.sampling.native import NativeSampler, make_sampler
from octavo.sampling.sampler import RowError
from octavo.sampling.sampling_rows import SamplingRows


@dataclass(slots=True)
class Done:
    """The handle of a step that was executed when it was submitted."""

    step: StepResult

    def result(self) -> StepResult:
        return self.step


class ModelRunner:
    """Owns the rows' states, the pages and the Program of one model. An engine.step_plan.Executor.

    A step, in order:
    1. Freed rows forget, new rows start.
    2. Page tables grow; pages are saved to disk, copied, loaded from disk; an encoder, if there is one,
       computes the new inputs, whole.
    3. Prompts whose logprobs or embeddings are wanted are computed by themselves (PromptLogprobs,
       PromptVectors).
    4. The batch is gathered and the Program replayed: logits [R, vocab]. The masks of rows with
       grammars are computed beside it where it leaves a core idle: both leave the interpreter to others.
    5. The sampler draws a token for every row that asked; each is appended to its row.
    4 and 5 are one call where every row decodes, but for what rows ask of the sampler alone (Decoding).

    A row whose logits are not finite fails alone (StepResult.errors).

    Attributes:
        steps_in_flight: how many steps are worth submitting before the first result.
    """

    steps_in_flight = 1

    def __init__(
        self,
        model: Model,
        backend: Backend,
        moves: PageMoves,
        limits: Limits,
        states: RequestStates,
        eos_token_ids: Sequence[int] = (),
    ) -> None:
        self._states, self._moves = states, moves
        kv: KVCache = moves.kv
        # Masks are computed beside the forward, on half of the threads, if it leaves a core idle. Where it
        # has all of them, whoever works beside it holds it up: masks come before it, on all threads.
        cores = usable_threads()
        idle = cores > getattr(backend, "threads", 0)
        self._beside = ThreadPoolExecutor(1, "masks") if idle else None
        mask_threads = max(1, cores // 2) if idle else cores
        self._samplings = SamplingRows(limits.max_sequences, model.vocab_size, eos_token_ids, mask_threads)
        self._sampler = make_sampler(backend, model.vocab_size)

        def forward(ops: Ops, inputs: Inputs) -> Tensor:
            return model.forward(ops, inputs, kv)

        self._program = backend.capture(forward, limits)
        self._decoding = self._native_decoding(backend)
        self._prompt_logprobs = PromptLogprobs(self._program, limits.max_sampled, states, self._sampler)

        def capture_hidden() -> Program:
            assert isinstance(model, Embedder), "LLM and AsyncLLM refuse embeddings of other models"
            return backend.capture(
                lambda ops, inputs: model.hidden(ops, inputs, kv),
                replace(limits, max_sampled=limits.max_tokens),
            )

        self._vectors = PromptVectors(capture_hidden, states)
        self._encoder: Program | None = None
        if isinstance(model, EncoderDecoder):
            encode = model.encode
            self._encoder = backend.capture(lambda ops, inputs: encode(ops, inputs, kv), limits)

    def _native_decoding(self, backend: Backend) -> Decoding | None:
        """The short way through steps of decoding, where the backend has one."""
        states, sampler = self._states, self._sampler
        if states.has_encoder or not isinstance(sampler, NativeSampler):
            return None
        rows = DecodeRows(
            states.tokens, states.length, states.pages, states.page_size, self._samplings.records,
            states.sliding_pages,
        )  # fmt: skip
        decoder = backend.decoder(self._program, sampler.native, rows)
        if decoder is None:
            return None
        apart = Apart(decoder, sampler, self._samplings, states, self._beside)
        return Decoding(decoder, self._samplings, apart)

    @property
    def activation_bytes(self) -> int:
        """Of the program's buffers; 0 where the backend allocates as it goes."""
        return int(getattr(self._program, "nbytes", 0))

    @property
    def state_bytes(self) -> int:
        """Of the rows' tokens and page tables."""
        return self._states.nbytes

    def prepare(self) -> bool:
        """Do what the first step would have to wait for. False: there is nothing of the kind."""
        return False

    def submit(self, plan: StepPlan) -> Handle:
        return Done(self.execute(plan))

    def execute(self, plan: StepPlan) -> StepResult:
        steps, vectors = self._prepare(plan)
        result = self._draw(plan.step_id, steps)
        return with_vectors(result, vectors) if vectors else result

    def _prepare(self, plan: StepPlan) -> tuple[Sequence[RowStep], dict[int, Vector | RowError]]:
        """All that comes before the step's own batch: 1, 2, and of 3 the pooled prompts."""
        for row in plan.freed_rows:  # their requests have ended
            self._samplings.remove(row)
            self._prompt_logprobs.rows.pop(row, None)
            self._vectors.rows.pop(row, None)
        for new in plan.new_rows:  # requests that enter
            self._states.start(new)
            if new.params.prompt_logprobs is not None:
                self._prompt_logprobs.add(new)
            if new.params.pooling is not None:
                self._vectors.add(new)
            self._samplings.add(
                new.row, new.params, new.seed, new.sample_index, new.token_ids, new.num_prompt_tokens
            )
        for step in plan.steps:
            if step.pages or step.copied_page is not None:  # its page table has grown
                self._states.grow(step)
        if self._states.window is not None:  # rows forget pages that left the window
            for step in plan.steps:
                self._states.pass_window(step)
        if plan.moves_pages:  # copy-on-write, swap space, disk: before anything is computed
            self._moves.run(plan)
        if self._encoder is not None and plan.encodes:  # encoder inputs that no step has computed
            self._encoder.replay(encoder_batch(plan.encodes, self._states.page_size))
        return self._vectors.run(plan.steps) if self._vectors.rows else (plan.steps, {})

    def _prompts(self, steps: Sequence[RowStep]) -> tuple[Sequence[RowStep], ByRow]:
        """The steps without the prompts whose logprobs are asked for, which are computed here, and these."""
        return self._prompt_logprobs.run(steps) if self._prompt_logprobs.rows else (steps, {})

    def _draw(self, step_id: int, steps: Sequence[RowStep]) -> StepResult:
        """Compute the steps and sample."""
        steps, logprobs = self._prompts(steps)
        done = self._decoding.run(step_id, steps) if self._decoding is not None else None
        if done is not None:
            return replace(done, prompt_logprobs=logprobs) if logprobs else done
        rows = [s.row for s in steps if s.sample]
        positions = [s.start + s.count for s in steps if s.sample]
        if not steps:
            return StepResult(step_id, {}, {}, prompt_logprobs=logprobs)
        batch = gather_batch(steps, self._states)
        if rows and self._beside is not None and self._samplings.constrained(rows):
            masks = self._beside.submit(self._samplings.batch, rows, positions)
            logits = self._program.replay(batch)
            wanted = masks.result()
        else:
            logits = self._program.replay(batch)
            if not rows:
                return StepResult(step_id, {}, {}, prompt_logprobs=logprobs)
            wanted = self._samplings.batch(rows, positions)
        result = self._keep(step_id, rows, self._sampler.sample(logits, wanted))
        return replace(result, prompt_logprobs=logprobs) if logprobs else result

    def _keep(self, step_id: int, rows: list[int], drawn: Sequence[SampledToken | RowError]) -> StepResult:
        tokens: dict[int, tuple[SampledToken, ...]] = {}
        errors: dict[int, str] = {}
        for row, token in zip(rows, drawn, strict=True):
            if isinstance(token, RowError):
                errors[row] = token.message
            else:
                tokens[row] = (token,)
                self._states.append(row, token.token_id)
                self._samplings.append(row, (token.token_id,))
        return StepResult(step_id, tokens, errors)


def with_vectors(result: StepResult, vectors: dict[int, Vector | RowError]) -> StepResult:
    """The result with the prompts that have been pooled."""
    errors = {row: found.message for row, found in vectors.items() if isinstance(found, RowError)}
    done = {row: found for row, found in vectors.items() if not isinstance(found, RowError)}
    return replace(
        result,
        tokens=result.tokens | dict.fromkeys(done, (END,)),
        errors=result.errors | errors,
        vectors=done,
    )
