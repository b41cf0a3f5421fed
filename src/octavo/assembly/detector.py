"""WatermarkDetector: whether a model's watermark is in a text. No weights are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from octavo.assembly.tokenizer import tokenizer_and_template
from octavo.checkpoints import open_checkpoint
from octavo.checkpoints.base import Checkpoint
from octavo.checkpoints.sources import resolve
from octavo.checks import is_int, need, token_ids
from octavo.config import EngineConfig
from octavo.errors import CheckpointError, InvalidRequestError
from octavo.kernels.select import WantedBackend, make_backend
from octavo.models.load import outline_model
from octavo.params.watermark import WatermarkParams
from octavo.sampling.watermark import Detection, GreenLists, detect
from octavo.tokenizer import Tokenizer


class WatermarkDetector:
    """Tests texts for the watermark that SamplingParams.watermark writes, and that TGI and transformers do.

    Args:
        model: what wrote the text, as LLM takes it: its tokenizer and the width of its logits matter.
        watermark: as SamplingParams has it. gamma and hashing_key must be those that wrote the text; delta
            does not matter here.
        tokenizer: where the model has none of its own, as LLM takes it.

    Attributes:
        watermark: what is looked for. lists: the green lists of the model's vocabulary.

    Raises:
        OctavoError: the model or a value is wrong, or the tokenizer's tokens are not the model's.
    """

    def __init__(self, model: str, watermark: Any = True, *, tokenizer: str | None = None) -> None:
        wanted = WatermarkParams.of(watermark)
        if wanted is None:
            raise InvalidRequestError("watermark must say what to look for, such as True", "watermark")
        user = EngineConfig(model=model, tokenizer=tokenizer, device="cpu")
        path = resolve(user.model)
        checkpoint = open_checkpoint(path, headers=True)
        self._tokenizer, _ = tokenizer_and_template(user, checkpoint, path)
        if tokenizer is not None:
            _check_same(self._tokenizer, user, checkpoint, path)
        backend = make_backend("auto", WantedBackend(1, "auto", user.dtype, planned=True))
        outlined, _ = outline_model(checkpoint, backend, user.dtype, context=None)
        self.watermark, self.lists = wanted, GreenLists(outlined.vocab_size)

    def detect(self, text: str | Sequence[int], *, repeated: bool = False) -> Detection:
        """Test a text, or the token ids of an answer, which are exact where a text may be cut otherwise.

        Args:
            text: the answer without its prompt.
            repeated: count equal pairs of neighbours each time.

        Raises:
            InvalidRequestError: it is too short, neither text nor ids, or an id is not in the vocabulary.
        """
        if isinstance(text, str):
            ids: Sequence[int] = self._tokenizer.encode(text, add_special_tokens=False)
        else:
            need(text is not None, "must be a text or token ids, not None", "text")
            ids = token_ids("text", text)
            need(all(map(is_int, ids)), "must be a text or token ids", "text")
        return detect(ids, self.lists, self.watermark, repeated=repeated)


def _check_same(given: Tokenizer, user: EngineConfig, checkpoint: Checkpoint, path: Path) -> None:
    """
    Raises:
        InvalidRequestError: the model has a tokenizer itself, and this one's ids mean other tokens.
    """
    try:
        own, _ = tokenizer_and_template(replace(user, tokenizer=None), checkpoint, path)
    except CheckpointError:  # the model has none
        return
    for each in range(min(own.vocab_size, given.vocab_size)):
        if own.token_bytes(each) != given.token_bytes(each):
            raise InvalidRequestError(
                f"the tokenizer {user.tokenizer} is another one than the model's: its token {each} is "
                f"{given.token_text(each)!r}, the model's {own.token_text(each)!r}; marks are made of these",
                "tokenizer",
            )
