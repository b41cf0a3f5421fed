"""ModelRunner: a Runner with all that models and requests may need: windows, tiers, scores, short steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from octavo.engine.step_plan import NewRow, RowStep, SampledToken, StepPlan, StepResult
from octavo.kernels.ops import F32, Backend, DecodeRows, Limits, Program, RowDecoder
from octavo.models.registry import Embedder, EncoderDecoder, Model
from octavo.runtime.apart import Apart
from octavo.runtime.hardware import usable_threads
from octavo.runtime.page_moves import PageMoves
from octavo.runtime.prompt_logprobs import ByRow, PromptLogprobs
from octavo.runtime.runner import Runner
from octavo.runtime.simple_batches import encoder_batch
from octavo.runtime.states import RequestStates, gather_batch
from octavo.runtime.vectors import PromptVectors, Vector, with_vectors
from octavo.sampling.native import ERRORS, NativeSampler, make_sampler
from octavo.sampling.sampler import RowError
from octavo.sampling.sampling_batch import SamplingBatch
from octavo.sampling.sampling_rows import SamplingRows


class ModelRunner(Runner):
    """A Runner that does more, where a model or a request needs it.

    1. and 2. Tables forget what windows have passed; pages are saved to disk, copied, loaded from disk; an
       encoder, if there is one, computes the new inputs, whole.
    3. Prompts whose logprobs or embeddings are wanted are computed by themselves before the batch
       (PromptLogprobs, PromptVectors). The masks of rows with grammars are computed beside the forward
       where it leaves a core idle: both leave the interpreter to others.
    3 and 4 are one call where every row decodes, but for what rows ask of the sampler alone (Decoding).
    """

    def __init__(
        self,
        model: Model,
        backend: Backend,
        moves: PageMoves,
        limits: Limits,
        states: RequestStates,
        eos_token_ids: Sequence[int] = (),
    ) -> None:
        # Masks are computed beside the forward, on half of the threads, if it leaves a core idle. Where it
        # has all of them, whoever works beside it holds it up: masks come before it, on all threads.
        cores = usable_threads()
        idle = cores > getattr(backend, "threads", 0)
        self._beside = ThreadPoolExecutor(1, "masks") if idle else None
        mask_threads = max(1, cores // 2) if idle else cores
        samplings = SamplingRows(limits.max_sequences, model.vocab_size, eos_token_ids, mask_threads)
        kv, sampler = moves.kv, make_sampler(backend, model.vocab_size)
        program = backend.capture(lambda ops, inputs: model.forward(ops, inputs, kv), limits)
        super().__init__(program, kv, states, samplings, sampler)
        self.green = samplings.green
        self._moves = moves
        self._decoding = self._native_decoding(backend)
        self._prompt_logprobs = PromptLogprobs(self._program, limits.max_sampled, states, sampler)

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
        decoder = backend.decoder(self._program, sampler.native, rows, ahead=True)
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

    def execute(self, plan: StepPlan) -> StepResult:
        steps, vectors = self._prepare(plan)
        result = self._draw(plan.step_id, steps)
        return with_vectors(result, vectors) if vectors else result

    def _prepare(self, plan: StepPlan) -> tuple[Sequence[RowStep], dict[int, Vector | RowError]]:
        """All that comes before the step's own batch: 1, 2, and of 3 the pooled prompts."""
        self._begin(plan)
        return self._vectors.run(plan.steps) if self._vectors.rows else (plan.steps, {})

    def _free(self, row: int) -> None:
        super()._free(row)
        self._prompt_logprobs.rows.pop(row, None)
        self._vectors.rows.pop(row, None)

    def _start(self, new: NewRow) -> None:
        super()._start(new)
        if new.params.prompt_logprobs is not None:
            self._prompt_logprobs.add(new)
        if new.params.pooling is not None:
            self._vectors.add(new)

    def _move(self, plan: StepPlan) -> None:
        if self._states.window is not None:  # rows forget pages that left the window
            for step in plan.steps:
                self._states.pass_window(step)
        if plan.moves_pages:  # copy-on-write, swap space, disk: before anything is computed
            self._moves.run(plan)
        if self._encoder is not None and plan.encodes:  # encoder inputs that no step has computed
            self._encoder.replay(encoder_batch(plan.encodes, self._states.page_size))

    def _prompts(self, steps: Sequence[RowStep]) -> tuple[Sequence[RowStep], ByRow]:
        """The steps without the prompts whose logprobs are asked for, which are computed here, and these."""
        return self._prompt_logprobs.run(steps) if self._prompt_logprobs.rows else (steps, {})

    def _draw(self, step_id: int, steps: Sequence[RowStep]) -> StepResult:
        steps, logprobs = self._prompts(steps)
        done = self._decoding.run(step_id, steps) if self._decoding is not None else None
        done = done or super()._draw(step_id, steps)
        return replace(done, prompt_logprobs=logprobs) if logprobs else done

    def _compute(
        self, steps: Sequence[RowStep], rows: list[int], positions: list[int]
    ) -> tuple[F32, SamplingBatch]:
        if self._beside is None or not self._samplings.constrained(rows):
            return super()._compute(steps, rows, positions)
        masks = self._beside.submit(self._samplings.batch, rows, positions)
        logits = self._program.replay(gather_batch(steps, self._states))
        return logits, masks.result()


class Decoding:
    """The step that most steps are, in one call of the backend: those of a replay and a sampler, to the bit.

    After the kernels have streamed a model's weights through the caches, whatever Python then touches comes
    from memory, and a step's bookkeeping costs six times what it costs when it is repeated alone. So a step
    in which every row computes its last token leaves the gathering of the batch to native code, which
    touches little, and with it the draws and the appending of all rows that draw by their own numbers
    (temperature and the like). Rows that ask for more are drawn apart (apart.py). Of a lone row that does
    not, workers begin with the next step while the engine is busy with this one's token (decision 45).

    Args:
        apart: the same decoder's steps in which some rows ask for more.
    """

    def __init__(self, decoder: RowDecoder, samplings: SamplingRows, apart: Apart) -> None:
        self.decoder, self._samplings, self._apart = decoder, samplings, apart

    def run(self, step_id: int, steps: Sequence[RowStep]) -> StepResult | None:
        """Compute, draw and append; None, and nothing done, where the step is another."""
        rows: list[int] = []
        starts: list[int] = []
        for step in steps:
            if step.count != 1 or not step.sample:  # a prompt, or a part of one: the runner computes it
                return None
            rows.append(step.row)
            starts.append(step.start)
        if not rows:
            return None
        asking = self._samplings.others(rows, starts)
        others: Mapping[int, SampledToken | RowError] = {}
        if asking is None:  # no row asks for more than its record says
            drawn = self.decoder.step(rows, starts)
        else:
            drawn, others = self._apart.step(rows, starts, asking)
        tokens: dict[int, tuple[SampledToken, ...]] = {}
        errors: dict[int, str] = {}
        for index, row in enumerate(rows):
            token, other = drawn[index], others.get(index)
            if other is None and token >= 0:  # drawn by the native decoder
                tokens[row] = (SampledToken(token),)
            elif isinstance(other, SampledToken):  # drawn with log-probabilities, penalties or a mask
                tokens[row] = (other,)
            else:
                errors[row] = ERRORS[token] if other is None else other.message
        return StepResult(step_id, tokens, errors)
