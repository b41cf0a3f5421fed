"""AutoTokenizer: a model's tokenizer, called as transformers' are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from octavo.assembly.tokenizer import tokenizer_and_template
from octavo.checkpoints import open_checkpoint
from octavo.checkpoints.sources import resolve
from octavo.checks import items, positive
from octavo.compat.devices import as_ids, check_ids_go
from octavo.config import EngineConfig
from octavo.errors import InvalidRequestError, UnsupportedError
from octavo.tokenizer import Tokenizer
from octavo.tokenizer.chat import ChatTemplate

HUB: dict[str, tuple[object, ...]] = {
    "cache_dir": (None,),
    "force_download": (None, False),
    "local_files_only": (None, False),
    "revision": (None, "main"),
    "token": (None,),
    "use_auth_token": (None, False),
}
"""What loaders say of the hub; of anything else than this HF_HOME, HF_TOKEN and HF_HUB_OFFLINE decide."""
HARMLESS: dict[str, tuple[object, ...]] = {
    **HUB,
    "use_fast": (None, True),
    "trust_remote_code": (None, True, False),
    "padding_side": (None, "left"),
}
"""Arguments of from_pretrained, and the values that ask for what happens anyway."""
TENSORS = (None, "np", "pt")


class Encoding(dict[str, Any]):
    """input_ids and attention_mask, by key and as attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def to(self, device: object) -> Encoding:
        """Itself: ids go to the engine, which is where the model is.

        Raises:
            InvalidRequestError: this machine has no such device.
        """
        check_ids_go(device)
        return self


@dataclass(frozen=True, slots=True)
class IdShape:
    """How ids come.

    Attributes:
        return_tensors: None for lists; "np" for arrays [texts, length]; "pt" for the same: there is no torch.
        padding: fill shorter ones up, on the left, to the longest; or to "max_length".
        truncation: keep max_length tokens.

    Raises:
        UnsupportedError: a value asks for something else. InvalidRequestError: max_length is missing.
    """

    return_tensors: str | None = None
    padding: bool | str | None = False
    truncation: bool | str | None = False
    max_length: int | None = None

    def __post_init__(self) -> None:
        _one_of("return_tensors", self.return_tensors, TENSORS)
        _one_of("padding", self.padding, (True, False, None, "longest", "do_not_pad", "max_length"))
        _one_of("truncation", self.truncation, (True, False, None, "longest_first", "do_not_truncate"))
        if self.max_length is not None:
            positive("max_length", self.max_length)
        elif self.padding == "max_length":
            raise InvalidRequestError("padding='max_length' needs max_length", "max_length")

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> IdShape:
        """
        Raises:
            UnsupportedError: a name that is none of these fields.
        """
        for name, value in options.items():
            if name not in cls.__slots__:
                raise UnsupportedError(f"the tokenizer does not take {name}={value!r}"[:200], name)
        return cls(**options)


class PlainTokenizer:
    """A tokenizer by transformers' names.

    Attributes:
        plain: the tokenizer below.
        pad_token_id: what stands where a line of several is shorter: the end-of-text token, unless it or
            pad_token is set.
    """

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate) -> None:
        self.plain, self._template = tokenizer, template
        self.eos_token_id, self.bos_token_id = tokenizer.eos_token_id, tokenizer.bos_token_id
        self.pad_token_id = self.eos_token_id

    def __call__(
        self,
        text: str | Sequence[str],
        text_pair: None = None,
        add_special_tokens: bool = True,
        **shape: Any,
    ) -> Encoding:
        """Encode a text, or several.

        Args:
            shape: IdShape's fields.

        Raises:
            InvalidRequestError: texts of several lengths cannot be an array without padding.
            UnsupportedError: text_pair, and other values than these.
        """
        if text_pair is not None:
            raise UnsupportedError(
                "text_pair is not supported: give one text, or a list of texts", "text_pair"
            )
        texts = [text] if text is None else items("text", "texts", text)
        if not all(isinstance(one, str) for one in texts):
            raise InvalidRequestError("text must be a text, or a list of texts", "text")
        ids = [self.plain.encode(one, add_special_tokens=add_special_tokens) for one in texts]
        return self._encoding(ids, isinstance(text, str), IdShape.of(shape))

    def _encoding(self, ids: list[list[int]], single: bool, shape: IdShape) -> Encoding:
        most = shape.max_length
        if shape.truncation not in (False, None, "do_not_truncate") and most is not None:
            ids = [one[:most] for one in ids]
        longest = max(map(len, ids), default=0)
        if shape.padding == "max_length" and most is not None:
            longest = max(longest, most)
        filled = shape.padding not in (False, None, "do_not_pad")
        missing = [longest - len(one) if filled else 0 for one in ids]
        masks = [[0] * empty + [1] * len(one) for one, empty in zip(ids, missing, strict=True)]
        ids = [[self.pad_token_id or 0] * empty + one for one, empty in zip(ids, missing, strict=True)]
        if shape.return_tensors is None:
            return Encoding(input_ids=ids[0] if single else ids, attention_mask=masks[0] if single else masks)
        if any(len(one) != len(ids[0]) for one in ids):
            raise InvalidRequestError("texts of several lengths need padding=True to be an array", "padding")
        return Encoding(input_ids=as_ids(ids), attention_mask=as_ids(masks))

    def encode(self, text: str, text_pair: None = None, **options: Any) -> Any:
        """The input_ids of a call, for one text; with return_tensors [1, length]. Raises as it does."""
        return self(text, text_pair, **options)["input_ids"]

    def decode(self, token_ids: Any, skip_special_tokens: bool = False) -> str:
        """Text of ids: an id, a list, or an array of one dimension.

        Raises:
            InvalidRequestError: there is no such token.
        """
        if not all(isinstance(one, (int, np.integer)) for one in np.atleast_1d(token_ids)):
            raise InvalidRequestError("token_ids must be a token id, or a list of them", "token_ids")
        ids = [int(one) for one in np.atleast_1d(token_ids)]
        for each in ids:
            self._check(each)
        return self.plain.decode(ids, skip_special_tokens=skip_special_tokens)

    def batch_decode(self, sequences: Iterable[Any], skip_special_tokens: bool = False) -> list[str]:
        return [self.decode(one, skip_special_tokens) for one in sequences]

    def tokenize(self, text: str, add_special_tokens: bool = False) -> list[str]:
        """The tokens' texts as the vocabulary has them."""
        ids = self.plain.encode(text, add_special_tokens=add_special_tokens)
        found: list[str] = self.convert_ids_to_tokens(ids)
        return found

    def convert_ids_to_tokens(self, ids: Any) -> Any:
        """A token's text as the vocabulary has it, or of several ids a list.

        Raises:
            InvalidRequestError: there is no such token.
        """
        if np.ndim(ids):
            return [self.convert_ids_to_tokens(one) for one in ids]
        self._check(int(ids))
        return self.plain.backend.id_to_token(int(ids))

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        """The id of a token as the vocabulary writes it, None where it has none; of several a list."""
        if isinstance(tokens, str):
            return self.plain.backend.token_to_id(tokens)
        return [self.plain.backend.token_to_id(one) for one in tokens]

    def apply_chat_template(
        self,
        messages: Any,
        tools: Any = None,
        *,
        tokenize: bool = True,
        add_generation_prompt: bool = False,
        return_dict: bool = False,
        **options: Any,
    ) -> Any:
        """Token ids of a conversation, or of a list of them, under the model's own template; or text.

        Args:
            tokenize: False: the text, without any of what says how ids come.
            return_dict: what a call gives, in place of the ids alone.
            options: continue_final_message; IdShape's fields; variables of the template, such as
                enable_thinking.

        Raises:
            InvalidRequestError: the template refuses the messages.
            UnsupportedError: a variable that the template does not read; it is named.
        """
        shape = IdShape.of({name: options.pop(name) for name in IdShape.__slots__ if name in options})
        going_on = options.pop("continue_final_message", False)
        for name in options:
            if re.search(rf"\b{re.escape(name)}\b", self._template.source or "") is None:
                raise UnsupportedError(f"{name}: the model's chat template does not read it", name)
        several = bool(messages) and not isinstance(messages[0], Mapping)
        texts = [
            self._template.render(each, tools, add_generation_prompt, going_on, **options)
            for each in (messages if several else [messages])
        ]
        if not tokenize:
            if shape != IdShape() or return_dict:
                raise InvalidRequestError("how ids come needs tokenize=True", "tokenize")
            return texts if several else texts[0]
        ids = [self.plain.encode(text, add_special_tokens=False) for text in texts]
        found = self._encoding(ids, not several, shape)
        return found if return_dict else found["input_ids"]

    @property
    def vocab_size(self) -> int:
        """One more than the highest token id."""
        return self.plain.vocab_size

    def __len__(self) -> int:
        return self.plain.vocab_size

    @property
    def chat_template(self) -> str | None:
        return self._template.source

    @property
    def bos_token(self) -> str | None:
        return self._text(self.bos_token_id)

    @property
    def eos_token(self) -> str | None:
        return self._text(self.eos_token_id)

    @property
    def pad_token(self) -> str | None:
        """The text of pad_token_id; setting it sets that.

        Raises:
            InvalidRequestError: the vocabulary has no such token: none can be added.
        """
        return self._text(self.pad_token_id)

    @pad_token.setter
    def pad_token(self, token: str | None) -> None:
        found = None if token is None else self.convert_tokens_to_ids(token)
        if token is not None and found is None:
            raise InvalidRequestError(f"there is no token {token[:60]!r}, and none can be added", "pad_token")
        self.pad_token_id = found

    @property
    def padding_side(self) -> str:
        """left. Raises UnsupportedError where something else is set."""
        return "left"

    @padding_side.setter
    def padding_side(self, side: str) -> None:
        _one_of("padding_side", side, ("left",))

    def add_special_tokens(self, tokens: object) -> int:
        """
        Raises:
            UnsupportedError: always: the vocabulary is the model's.
        """
        raise UnsupportedError("add_special_tokens is not supported: the vocabulary is the model's")

    def _text(self, token_id: int | None) -> str | None:
        return None if token_id is None else self.plain.backend.id_to_token(token_id)

    def _check(self, token_id: int) -> None:
        if not 0 <= token_id < self.plain.vocab_size:
            raise InvalidRequestError(f"there is no token {token_id}; the model has {self.plain.vocab_size}")


def _one_of(name: str, value: object, known: Sequence[object]) -> None:
    if not any(value is one or (isinstance(one, str) and value == one) for one in known):
        raise UnsupportedError(f"{name}={value!r} is not supported"[:200], name)


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
