"""CallableTokenizer: a tokenizer by the names that scripts for vLLM and transformers use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from octavo.errors import UnsupportedError

if TYPE_CHECKING:
    from octavo.tokenizer.chat import ChatTemplate
    from octavo.tokenizer.tokenizer import Tokenizer


class CallableTokenizer:
    """What LLM.get_tokenizer() gives: encode, decode, a call, and chats under the model's template.

    Whatever else octavo.tokenizer.Tokenizer has, this has too.
    """

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate) -> None:
        self._tokenizer, self._template = tokenizer, template

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # also what copy and pickle ask for before there is a tokenizer
            raise AttributeError(name)
        return getattr(self._tokenizer, name)

    def __len__(self) -> int:
        return self.vocab_size

    @property
    def vocab_size(self) -> int:
        """One more than the highest token id."""
        return self._tokenizer.vocab_size

    @property
    def chat_template(self) -> str | None:
        """The template's source: the model's own, or the one that the LLM was given."""
        return self._template.source

    @property
    def bos_token(self) -> str | None:
        return self._tokenizer.special_tokens.get("bos_token")

    @property
    def eos_token(self) -> str | None:
        return self._tokenizer.special_tokens.get("eos_token")

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids (Tokenizer.encode)."""
        return self._tokenizer.encode(text, add_special_tokens)

    def decode(self, ids: int | Sequence[int], skip_special_tokens: bool = False) -> str:
        """Text of the ids. Control tokens are written out unless they are to be skipped."""
        return self._tokenizer.decode([ids] if isinstance(ids, int) else ids, skip_special_tokens)

    def __call__(self, text: str | Sequence[str], add_special_tokens: bool = True) -> dict[str, Any]:
        """{"input_ids", "attention_mask"} of a text: lists of integers; of several texts lists of such."""
        if isinstance(text, str):
            ids = self.encode(text, add_special_tokens)
            return {"input_ids": ids, "attention_mask": [1] * len(ids)}
        every = [self.encode(each, add_special_tokens) for each in text]
        return {"input_ids": every, "attention_mask": [[1] * len(ids) for ids in every]}

    def apply_chat_template(
        self,
        conversation: Sequence[Any],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        tokenize: bool = True,
        add_generation_prompt: bool = False,
        **options: Any,
    ) -> Any:
        """A conversation under the chat template, or a list of conversations: token ids, or text.

        Args:
            tokenize: False: the text, which LLM.generate() takes.
            options: continue_final_message; return_dict: ids as a call of the tokenizer gives them; and
                further variables for the template.

        Raises:
            InvalidRequestError: the model has no template, or it refuses the messages.
            UnsupportedError: return_tensors; ids are lists here.
        """
        if options.pop("return_tensors", None) is not None:
            raise UnsupportedError("return_tensors is not supported: ids are lists", "return_tensors")
        as_dict = bool(options.pop("return_dict", False))
        several = bool(conversation) and not isinstance(conversation[0], Mapping)
        found = [
            self._template.render(messages, tools, add_generation_prompt, **options)
            for messages in (conversation if several else [conversation])
        ]
        texts = found if several else found[0]
        if not tokenize:
            return texts
        written = self(texts, add_special_tokens=False)
        return written if as_dict else written["input_ids"]
