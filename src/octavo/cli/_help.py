"""Help in groups: what is typed daily comes first, and no sentence is cut."""

from __future__ import annotations

import dataclasses
from typing import Any

from typer.core import TyperCommand, TyperGroup

from octavo.cli._flags import SAMPLING_HELP
from octavo.cli._network import NetworkFlags
from octavo.cli._observe import ObserveFlags
from octavo.cli._rounding import RoundingFlags, TextFlags

MOST_COLUMNS = 120
"""Of a wider terminal."""
DAILY = "Options"
_FEW = {
    "host", "port", "api_key", "api_key_file", "max_tokens", "temperature", "top_p", "top_k", "seed", "method"
}  # fmt: skip


def _fields(owner: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(owner) if field.name not in _FEW)


GROUPS: dict[str, tuple[str, ...]] = {
    "Drawing tokens": tuple(name for name in SAMPLING_HELP if name not in _FEW),
    "Model": (
        "tokenizer", "dtype", "quantization", "trust_remote_code", "speculative_config", "chat_template",
        "tool_call_parser", "reasoning_parser", "strict_fields",
    ),
    "Memory and scheduling": (
        "max_num_seqs", "max_num_batched_tokens", "page_size", "num_pages", "num_sliding_pages",
        "kv_cache_dtype", "gpu_memory_utilization", "enable_prefix_caching", "step_target_ms", "swap_space",
        "prefix_cache_dir", "prefix_cache_disk_space", "scheduling_policy", "max_waiting",
        "max_waiting_tokens", "max_concurrent_requests", "queue_timeout", "max_input_tokens",
    ),
    "Machine": (
        "device", "isa", "backend", "bit_exact", "round_activations", "enforce_eager", "tensor_parallel_size",
    ),
    "Speed of a machine": (
        "machine", "bandwidth", "flops", "measure", "planned_prompt", "planned_answer", "planned_batches",
        "tpot_limit",
    ),
    "Network": (*_fields(NetworkFlags), "max_body_bytes", "drain_timeout", "stall_timeout"),
    "Observing": _fields(ObserveFlags),
    "Rounding": (*_fields(RoundingFlags), *_fields(TextFlags)),
}  # fmt: skip
"""Names of parameters by the title that they stand under; what is in none stands first, under DAILY."""
_TITLES = {name: title for title, names in GROUPS.items() for name in names}


class GroupedCommand(TyperCommand):
    """A command whose options stand in groups."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        rows: dict[str, list[tuple[str, str]]] = {title: [] for title in ("Arguments", DAILY, *GROUPS)}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                is_argument = parameter.param_type_name == "argument"
                title = "Arguments" if is_argument else _TITLES.get(str(parameter.name), DAILY)
                rows[title].append(record)
        for title, records in rows.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


class Commands(TyperGroup):
    """A group that says of each command its whole first sentence."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        rows = [
            (name, (command.help or "").partition("\n\n")[0].replace("\n", " "))
            for name in self.list_commands(ctx)
            if (command := self.get_command(ctx, name)) is not None and not command.hidden
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)
