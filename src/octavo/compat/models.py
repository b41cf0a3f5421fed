"""AutoModelForCausalLM and its like: an LLM with generate(input_ids, ...)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from octavo.checks import plain_number, positive
from octavo.compat.config import config_of
from octavo.compat.devices import Ids, as_ids, kind_of
from octavo.compat.quantization import method_of
from octavo.compat.tokenizers import HUB, refuse
from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.llm import LLM
from octavo.pipelines import limited, sampling_params
from octavo.plan import size_of

LOADER: dict[str, tuple[object, ...]] = {
    **HUB,
    "attn_implementation": (None, "sdpa", "flash_attention_2", "eager"),
    "disable_exllama": (None, True, False),
    "inject_fused_attention": (None, True, False),
    "max_memory": (None,),
    "max_new_tokens": (None,),
    "model_basename": (None,),
    "offload_folder": (None,),
    "quantize_config": (None,),
    "use_marlin": (None, False),
    "use_triton": (None, False),
}
"""Arguments of loaders, and the values that ask for what happens anyway; EngineArgs has others."""
DEFAULT_NEW_TOKENS = 20
"""transformers' max_length without a generation config."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """All of a model's weights, counted as one."""

    count: int
    bytes: int

    def numel(self) -> int:
        return self.count

    def element_size(self) -> float:
        return self.bytes / self.count


class CausalLM:
    """A loaded model by transformers' names.

    Attributes:
        llm: what it is.
        device: cpu or cuda:N, where its weights are.
        config: the model's numbers by transformers' names; generation_config: the same object.
    """

    def __init__(self, llm: LLM) -> None:
        self.llm = llm
        wanted = llm.engine_config.device
        on_gpu = bool(llm.device_memory)
        self.device = (wanted if ":" in wanted else "cuda:0") if on_gpu else "cpu"
        self.config = self.generation_config = config_of(llm)

    def __call__(self, *inputs: Any, **more: Any) -> None:
        """
        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError("a model is not called here, it gives no logits: generate(**inputs)")

    def generate(
        self,
        input_ids: Any = None,
        attention_mask: Any = None,
        max_new_tokens: int | None = None,
        max_length: int | None = None,
        do_sample: bool = False,
        **generation: Any,
    ) -> Ids:
        """Continue prompts: ids [prompts, length + new], the prompts' included.

        Args:
            input_ids: [prompts, length], or [length] of one.
            attention_mask: 0 where an id is padding.
            max_new_tokens, max_length: as transformers counts them; the first one where both are given, 20 in
                all where neither is.
            do_sample: False is greedy.
            generation: pad_token_id: what stands behind shorter answers; None: config's, which is the end of
                text. no_repeat_ngram_size: no so many tokens come in a row twice. The others as
                pipeline("text-generation") takes them.

        Raises:
            InvalidRequestError, UnsupportedError: an argument is wrong or not known.
        """
        if input_ids is None:
            raise InvalidRequestError("generate needs input_ids: tokenizer(text)", "input_ids")
        ids = np.atleast_2d(np.asarray(input_ids))
        if ids.dtype.kind not in "iu" or ids.ndim != 2:
            said = "input_ids must be token ids [prompts, length]: generate(**tokenizer(text, ...))"
            raise InvalidRequestError(said, "input_ids")
        mask = np.ones_like(ids) if attention_mask is None else np.atleast_2d(np.asarray(attention_mask))
        if mask.shape != ids.shape:
            said = f"attention_mask has the shape {mask.shape}, input_ids {ids.shape}"
            raise InvalidRequestError(said, "attention_mask")
        prompts = [row[kept != 0].tolist() for row, kept in zip(ids, mask, strict=True)]
        pad_token_id, ngram = (generation.pop(n, None) for n in ("pad_token_id", "no_repeat_ngram_size"))
        params = sampling_params({"do_sample": do_sample, **generation}, "generate")
        limit = _new(ids.shape[1], plain_number(max_new_tokens), plain_number(max_length))
        every = [limited(params, limit, one, ngram) for one in prompts]
        outputs = self.llm.generate([{"prompt_token_ids": one} for one in prompts], every, use_tqdm=False)
        pad = (self.config.pad_token_id if pad_token_id is None else pad_token_id) or 0
        rows = [
            [*row.tolist(), *completion.token_ids]
            for row, output in zip(ids, outputs, strict=True)
            for completion in output.outputs
        ]
        longest = max(map(len, rows))
        return as_ids([row + [pad] * (longest - len(row)) for row in rows])

    def parameters(self) -> Iterator[Parameter]:
        """All weights as one, for those who count them: nothing is loaded twice."""
        yield Parameter(size_of(self.llm, 1).weights, size_of(self.llm).weights)

    def num_parameters(self) -> int:
        return sum(each.numel() for each in self.parameters())

    def eval(self) -> CausalLM:
        """Itself: nothing here is trained."""
        return self

    def to(self, device: object) -> CausalLM:
        """Itself, where it is there already: the device is chosen when the model is loaded.

        Raises:
            InvalidRequestError: it is on another one.
        """
        if kind_of(device) != kind_of(self.device):
            said = (
                f"the model is on {self.device}: where else it shall be is said when it is loaded, by device="
            )
            raise InvalidRequestError(said, "device")
        return self

    def cpu(self) -> CausalLM:
        """to("cpu")."""
        return self.to("cpu")

    def cuda(self) -> CausalLM:
        """to("cuda")."""
        return self.to("cuda")

    def get_memory_footprint(self) -> int:
        """Bytes of the weights."""
        return size_of(self.llm).weights

    def half(self) -> CausalLM:
        """
        Raises:
            UnsupportedError: always, as bfloat16() and float() do.
        """
        raise UnsupportedError('the dtype is chosen when a model is loaded: dtype="float16"', "dtype")

    bfloat16 = float = half

    def save_pretrained(self, *folder: object, **options: Any) -> None:
        """
        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError("save_pretrained is not supported: octavo quantize MODEL OUT writes models")


def _new(length: int, new: int | None, total: int | None) -> int:
    if new is not None:
        positive("max_new_tokens", new)
        return new
    total = DEFAULT_NEW_TOKENS if total is None else total
    positive("max_length", total)
    if total <= length:
        raise InvalidRequestError(
            f"max_length {total} counts the prompt's {length} tokens: raise it, or give max_new_tokens",
            "max_length",
        )
    return total - length


class AutoModelForCausalLM:
    """Loads a model: LLM(name), by transformers' arguments."""

    @staticmethod
    def from_pretrained(name: str, **options: Any) -> CausalLM:
        """Load.

        Args:
            options: quantization_config, load_in_4bit, load_in_8bit (compat.quantization); torch_dtype or
                dtype, as a name or a torch.dtype; what LOADER lists; and LLM's own.

        Raises:
            OctavoError: the model or an option is wrong; what is not supported is named.
        """
        method = method_of(options)
        if method is None:
            return _load(name, options)
        if (other := options.pop("quantization", None)) not in (None, method):
            said = f"quantization={other!r} contradicts what else is asked for, which is {method!r}"
            raise InvalidRequestError(said, "quantization")
        return _load(name, {**options, "quantization": method})


class AutoGPTQForCausalLM:
    """Loads a GPTQ checkpoint."""

    @staticmethod
    def from_quantized(name: str, **options: Any) -> CausalLM:
        """LLM(name): its files say how they are quantized. Raises as AutoModelForCausalLM's."""
        return _load(name, options)


class AutoAWQForCausalLM:
    """Loads an AWQ checkpoint."""

    @staticmethod
    def from_quantized(name: str, **options: Any) -> CausalLM:
        """LLM(name): its files say how they are quantized. Raises as AutoModelForCausalLM's."""
        return _load(name, options)


def _load(name: str, options: Mapping[str, Any]) -> CausalLM:
    loader = {one: value for one, value in options.items() if one in LOADER}
    refuse(loader, LOADER, "a loader here")
    rest = {one: value for one, value in options.items() if one not in LOADER}
    return CausalLM(LLM(str(name), **rest))
