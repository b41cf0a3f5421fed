"""The flags that several commands share. Their names, types and defaults come from the config classes.

    EngineConfig.max_model_len: int | None = None   ->   --max-model-len INTEGER

What a user does not type is not passed on, so the defaults live in one place.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

import typer

from octavo.config import EngineConfig
from octavo.errors import InvalidRequestError
from octavo.kernels.select import backend_help
from octavo.params import SHAPING, SamplingParams
from octavo.params.declare import texts

DEFAULT_MODEL = "smollm2"

ENGINE_HELP = {
    "tokenizer": "Where to take the tokenizer from: an alias, file, folder or hub id.",
    "dtype": "auto (weights as stored), float32 (widened; activations exact), float16 or bfloat16.",
    "quantization": "What 16-bit weights become when loaded: int8, eetq, int4, nf4, fp8. Others say it.",
    "tensor_parallel_size": "GPUs that share the model; only 1 is supported yet.",
    "speculative_config": 'Draft tokens, and verify them, such as {"method": "ngram"}: the same answers.',
    "trust_remote_code": "Accepted without effect: Octavo never runs code of a repository.",
    "max_model_len": "Most tokens of a sequence, prompt and answer together; less needs less memory. 0: the "
    "model's own, which is the most.",
    "max_num_seqs": "Most sequences that are computed at once; others wait.",
    "max_num_batched_tokens": "Most tokens that one step computes; longer prompts take several steps.",
    "page_size": "Tokens whose keys and values one page holds.",
    "num_pages": "Pages of the KV cache, for all sequences and cached prefixes together.",
    "num_sliding_pages": "Pages for sliding-window layers, in models where other layers see all tokens.",
    "kv_cache_dtype": "Type of keys and values: auto, float32, float16, bfloat16, int16 or int8.",
    "gpu_memory_utilization": "CPU: share of free memory for KV pages. GPU: share of its memory for all.",
    "enable_prefix_caching": "Reuse keys and values of prompts that begin with the same tokens.",
    "step_target_ms": "Milliseconds that a step may take while answers are generated; 0: no limit.",
    "max_waiting": "Most requests that wait; the next one is refused (HTTP 429).",
    "swap_space": "GiB of memory for the KV pages of preempted requests; 0: compute them again.",
    "prefix_cache_dir": "A folder where cached prefixes are kept over a restart.",
    "prefix_cache_disk_space": "GiB that cached prefixes may take in that folder.  [default: 4]",
    "scheduling_policy": "Who runs first: fcfs (oldest), lpm (most cached), priority (as requests say).",
    "seed": "Requests without a seed of their own draw theirs from this one.",
    "threads": "CPU threads that compute.",
    "isa": "CPU instruction set: auto, or one that `octavo env` lists.",
    "backend": backend_help(),
    "device": "auto, cpu, cuda or cuda:N.",
    "bit_exact": "GPU: no bit of an answer depends on other requests; slower. On a CPU it is always so.",
    "round_activations": "GPU: round activations to int8 for quantized weights (W8A8, W4A8), as a CPU does.",
    "enforce_eager": "GPU: record no CUDA graphs.",
    "served_model_name": "A name for the model in the API; empty: its own. May be given several "
    "times: requests may use any of them, and answers have the first.",
    "chat_template": "A chat template in Jinja, or a file that holds one, instead of the model's own.",
}
_TEXTS = texts(SamplingParams)
SAMPLING_HELP = {
    name: _TEXTS[name] for name in ("max_tokens", *SHAPING, "seed", "stop", "ignore_eos", "watermark")
}
"""A number that shapes answers has a flag by being declared."""
MORE_NAMES = {
    "page_size": ("--block-size",),
    "quantization": ("--quantize",),
    "num_sliding_pages": ("--num-local-pages",),
    "tensor_parallel_size": ("--num-shard",),
    "max_model_len": ("--ctx-size", "--max-total-tokens", "-c"),
    "threads": ("-t",),
    "max_tokens": ("--n-predict", "-n"),
    "temperature": ("--temp",),
    "repetition_penalty": ("--repeat-penalty",),
}
"""Other names of the same flags: vLLM's, TGI's, llama.cpp's, and an older one of Octavo's own."""
SEVERAL = ("stop", "served_model_name")
"""Flags that may be given several times."""
NO_MATTER = ("seed", "served_model_name", "chat_template", "prefix_cache_dir", "prefix_cache_disk_space")
"""Engine flags that change neither what a model takes nor how fast it is."""


def flag_of(name: str) -> str | None:
    """The flag of a config field: max_model_len is --max-model-len."""
    known = name in ENGINE_HELP or name in SAMPLING_HELP
    return f"--{name.replace('_', '-')}" if known else None


def written(name: str, words: Iterable[str]) -> str | None:
    """The flag of a config field as it stands among these words, in another engine's name perhaps."""
    flag = flag_of(name)
    if flag is None:
        return None
    known = names_of(flag)
    return next((word for each in words if (word := each.partition("=")[0]) in known), flag)


def names_of(flag: str) -> frozenset[str]:
    """A flag's own name and the other ones."""
    from octavo.cli._engines import Mapped, meanings

    own = {flag, *MORE_NAMES.get(flag[2:].replace("-", "_"), ())}
    mapped = (name for name, (_, each) in meanings().items() if isinstance(each, Mapped) and each.flag in own)
    return frozenset((*own, *mapped))


class Declared(Protocol):
    """An option as a room below declares it."""

    @property
    def name(self) -> str: ...

    @property
    def default(self) -> int | float: ...

    @property
    def help(self) -> str: ...


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """The model and the engine flags that were typed."""

    model: str
    options: Mapping[str, Any]


def engine_flags(
    *, leave_out: Iterable[str] = (), model_argument: bool = True
) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Give a command MODEL and all engine flags; it gets them as `engine: EngineChoice`.

    Args:
        model_argument: False: the command has arguments of its own, and --model alone names the model.
    """
    names = [name for name in ENGINE_HELP if name not in set(leave_out)]
    argument = typer.Argument(
        None,
        help=f"An alias, a .gguf file, a folder with config.json, or a hub id.  [default: {DEFAULT_MODEL}]",
        show_default=False,
    )
    option = typer.Option(None, "--model", "--model-id", "-m", help="The same as MODEL.", show_default=False)
    flags = [
        *([_keyword("model", argument, str | None)] if model_argument else []),
        *(_parameter(name, EngineConfig, ENGINE_HELP[name]) for name in names),
        _keyword("model_flag", option, str | None),
    ]

    def gather(given: dict[str, Any]) -> EngineChoice:
        model, flag = given.pop("model", None), given.pop("model_flag", None)
        if model is not None and flag is not None and model != flag:
            raise InvalidRequestError(f"MODEL {model!r} and --model {flag!r} differ: give one of them")
        if "speculative_config" in given:
            given["speculative_config"] = _json(given["speculative_config"], "speculative_config")
        if given.get("max_model_len") == 0:  # as llama.cpp's -c has it
            del given["max_model_len"]
        model = next((name for name in (model, flag) if name is not None), DEFAULT_MODEL)
        EngineConfig(model, **given)  # a wrong flag is an error now, not after the model is loaded
        return EngineChoice(model, given)

    return _with_flags("engine", flags, gather)


ToolCallParser = Annotated[
    str | None,
    typer.Option(
        "--tool-call-parser",
        help="How the model writes tool calls, such as hermes.  [default: found in its chat template]",
        show_default=False,
    ),
]
ReasoningParser = Annotated[
    str | None,
    typer.Option(
        "--reasoning-parser",
        help="How it writes reasoning, such as qwen3, or none.  [default: found in its chat template]",
        show_default=False,
    ),
]


def parsers(tool_call_parser: str | None, reasoning_parser: str | None) -> dict[str, str | None]:
    """Both, checked, as ServerSettings has them.

    Raises:
        InvalidRequestError: a name that nobody knows; the message has those that are known.
    """
    from octavo.server.tools import format_for
    from octavo.server.tools.reasoning import reasoning_for

    format_for(None, tool_call_parser)
    reasoning_for(None, reasoning_parser)
    return {"tool_call_parser": tool_call_parser, "reasoning_parser": reasoning_parser}


def sampling_flags(**own: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Give a command the sampling flags; it gets what was typed as `sampling: dict`.

    Args:
        own: what the help calls the default of a flag, where the command has one of its own.
    """
    flags = [_parameter(name, SamplingParams, text, own.get(name)) for name, text in SAMPLING_HELP.items()]
    return _with_flags("sampling", flags, dict)


def option_group(name: str, owner: type) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Give a command the options that the fields of a dataclass declare; it gets them as `name: owner`."""
    hints = typing.get_type_hints(owner, include_extras=True)
    fields = dataclasses.fields(owner)
    flags = [_keyword(field.name, field.default, hints[field.name]) for field in fields]
    return _with_flags(name, flags, lambda given: owner(**given))


def declared_flags(
    name: str, options: Callable[[], Sequence[Declared]]
) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Give a command the options that others declare; it gets what was typed of them as `name: Mapping`."""
    flags = []
    for each in options():
        flag, kind = f"--{each.name.replace('_', '-')}", type(each.default)
        text = f"{each.help}  [default: {each.default}]"
        flags.append(
            _keyword(each.name, typer.Option(None, flag, help=text, show_default=False), kind | None)
        )
    return _with_flags(name, flags, dict)


def _with_flags(
    name: str, flags: list[inspect.Parameter], gather: Callable[[dict[str, Any]], Any]
) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Replace a function's parameter `name` by flags, as typer sees them; gather makes its value."""

    def decorate(function: Callable[..., int]) -> Callable[..., int]:
        signature = inspect.signature(function, eval_str=True)
        own = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for parameter in signature.parameters.values()
            if parameter.name != name
        ]
        # Those of the sampling come last; others stand where the function has them.
        place = len(own) if name == "sampling" else list(signature.parameters).index(name)

        @functools.wraps(function)
        def command(**values: Any) -> int:
            given = {flag.name: values.pop(flag.name, None) for flag in flags}
            typed = {key: value for key, value in given.items() if value is not None and value != []}
            return function(**values, **{name: gather(typed)})

        parameters = [*own[:place], *flags, *own[place:]]
        # Typer shows parameters in the signature's order.
        command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # functions have none
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        del command.__wrapped__  # or typer would look there instead
        return command

    return decorate


def _parameter(name: str, owner: type, text: str, default: str | None = None) -> inspect.Parameter:
    """One flag of a dataclass's field; default: what its help says instead of the field's own."""
    field = next(each for each in dataclasses.fields(owner) if each.name == name)
    kind = _flag_type(typing.get_type_hints(owner)[name])
    shown = default or (field.default if isinstance(field.default, (int, float, str)) else None)
    flag = f"--{name.replace('_', '-')}"
    names = (flag, *MORE_NAMES.get(name, ()))
    if kind is bool:
        names = (f"{flag}/--no-{name.replace('_', '-')}",)
    if name == "watermark":  # (an object too, but not on a command line)
        kind = bool
    option = typer.Option(
        None,
        *names,
        help=text if shown is None else f"{text}  [default: {shown}]",
        show_default=False,
        metavar="JSON" if name == "speculative_config" else None,
    )
    annotation = list[str] | None if name in SEVERAL else kind | None
    return _keyword(name, option, annotation)


def _keyword(name: str, option: Any, annotation: Any) -> inspect.Parameter:
    """A parameter of a command, as typer reads it."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=annotation)


def _flag_type(hint: Any) -> type:
    """int of `int | None` and the like; text for what is none of int, float and bool."""
    members = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    simple = [member for member in members if member in (bool, int, float)]
    return simple[0] if simple else str


def _json(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"{flag_of(name)} is not valid JSON: {error}", name) from None
