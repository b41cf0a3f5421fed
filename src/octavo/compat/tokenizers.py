"""AutoTokenizer: a model's tokenizer, called as transformers' are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from octavo.assembly.tokenizer import tokenizer_and_template
from octavo.checkpoints import open_checkpoint
from octavo.checkpoints.sources import resolve
from octavo.config import EngineConfig
from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.tokenizer import Tokenizer
from octavo.tokenizer.chat import ChatTemplate

HARMLESS: dict[str, tuple[object, ...]] = {
    "use_fast": (None, True),
    "trust_remote_code": (None, True, False),
    "padding_side": (None, "left"),
    "revision": (None,),
}
"""Arguments of from_pretrained, and the values that ask for what happens anyway."""
TENSORS = (None, "np", "pt")


class Encoding(dict[str, Any]):
    """input_ids and attention_mask, by key and as attributes; to(device) is itself."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def to(self, device: object) -> Encoding:
        """Ids go to the engine, which is where the model is."""
        return self


class PlainTokenizer:
    """A tokenizer by transformers' names.

    Attributes:
        pad_token_id: what stands where a line of several is shorter: the end-of-text token.
    """

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate) -> None:
        self.plain, self._template = tokenizer, template
        self.eos_token_id, self.bos_token_id = tokenizer.eos_token_id, tokenizer.bos_token_id
        self.pad_token_id = self.eos_token_id

    def __call__(
        self,
        text: str | Sequence[str],
        return_tensors: str | None = None,
        padding: bool = False,
        truncation: bool = False,
        max_length: int | None = None,
        add_special_tokens: bool = True,
    ) -> Encoding:
        """Encode a text, or several.

        Args:
            return_tensors: None for lists; "np" for arrays [texts, length]; "pt" for the same, as there is no
                torch here.
            padding: fill shorter ones up, on the left. truncation: keep max_length tokens.

        Raises:
            InvalidRequestError: texts of several lengths cannot be an array without padding.
        """
        if return_tensors not in TENSORS:
            raise UnsupportedError(f"return_tensors={return_tensors!r} is not supported", "return_tensors")
        texts = [text] if isinstance(text, str) else list(text)
        ids = [list(self.plain.encode(one, add_special_tokens=add_special_tokens)) for one in texts]
        if truncation and max_length is not None:
            ids = [one[:max_length] for one in ids]
        longest = max(map(len, ids), default=0)
        missing = [longest - len(one) if padding else 0 for one in ids]
        masks = [[0] * empty + [1] * len(one) for one, empty in zip(ids, missing, strict=True)]
        ids = [[self.pad_token_id or 0] * empty + one for one, empty in zip(ids, missing, strict=True)]
        if return_tensors is None:
            single = isinstance(text, str)
            return Encoding(input_ids=ids[0] if single else ids, attention_mask=masks[0] if single else masks)
        if any(len(one) != len(ids[0]) for one in ids):
            raise InvalidRequestError("texts of several lengths need padding=True to be an array", "padding")
        return Encoding(input_ids=np.array(ids, np.int64), attention_mask=np.array(masks, np.int64))

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return list(self.plain.encode(text, add_special_tokens=add_special_tokens))

    def decode(self, token_ids: Any, skip_special_tokens: bool = False) -> str:
        """Text of ids: a list, or an array of one dimension."""
        return self.plain.decode([int(one) for one in token_ids], skip_special_tokens=skip_special_tokens)

    def batch_decode(self, sequences: Iterable[Any], skip_special_tokens: bool = False) -> list[str]:
        return [self.decode(one, skip_special_tokens) for one in sequences]

    def apply_chat_template(
        self, messages: Any, tokenize: bool = True, add_generation_prompt: bool = False, **options: Any
    ) -> Any:
        """Token ids of a conversation under the model's own template, or its text."""
        text = self._template.render(messages, add_generation_prompt=add_generation_prompt, **options)
        return self.encode(text, add_special_tokens=False) if tokenize else text

    def __len__(self) -> int:
        return self.plain.vocab_size


class AutoTokenizer:
    """Makes a PlainTokenizer; weights are neither pulled nor read."""

    @staticmethod
    def from_pretrained(name: str, **options: Any) -> PlainTokenizer:
        """Of a model, as LLM names it.

        Raises:
            OctavoError: there is no such model.
            UnsupportedError: an option asks for what does not happen.
        """
        refuse(options, HARMLESS, "AutoTokenizer.from_pretrained")
        user = EngineConfig(model=str(name), device="cpu")
        path = resolve(user.model, weights=False)
        checkpoint = open_checkpoint(path, headers=True)
        return PlainTokenizer(*tokenizer_and_template(user, checkpoint, path))


def refuse(options: dict[str, Any], harmless: dict[str, tuple[object, ...]], where: str) -> None:
    """Raise UnsupportedError for an option that asks for something that does not happen."""
    for name, value in options.items():
        if not any(
            value is one or (type(value) is type(one) and value == one) for one in harmless.get(name, ())
        ):
            raise UnsupportedError(f"{where} does not take {name}={value!r}"[:200], name)
