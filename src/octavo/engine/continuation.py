"""Whether an answer can be gone on with that was begun elsewhere, or before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.engine.request import EngineRequest
from octavo.errors import InvalidRequestError

if TYPE_CHECKING:
    from octavo.engine.admission import Admission


def check_continuation(request: EngineRequest, bounds: Admission) -> None:
    """Whether an answer can be gone on with, or one of n be asked for alone.

    Raises:
        InvalidRequestError: as check(), of these alone; the params need not be compiled yet.
    """
    params, index, field = request.params, request.index, "generated_token_ids"
    for name in ("beam_search", "pooling", "prompt_logprobs"):
        if getattr(params, name) is not None:
            raise InvalidRequestError(f"{name} is for a request that begins: it cannot go on", name)
    if index is None and params.n > 1:  # which of the n answers was cut?
        raise InvalidRequestError(f"{params.n} completions go on one at a time: give index", "index")
    if index is not None and (type(index) is not int or not 0 <= index < params.n):
        why = f"index must be from 0 to {params.n - 1}, not {index!r}"
        if type(index) is int and index > 0:
            why += f": n is {params.n}, give the n that the answer was one of"
        raise InvalidRequestError(why, "index")
    ids = [token.token_id for token in request.generated]
    if not ids:  # an index alone: one of n completions from its beginning
        return
    if params.seed is None and not params.greedy:
        raise InvalidRequestError("an answer goes on with the seed that it began with: give seed", "seed")
    highest = max(ids) if bounds.vocab_size is None else bounds.vocab_size - 1
    for token in ids:
        if not 0 <= token <= highest:
            raise InvalidRequestError(f"token id {token} of {field} is not in the vocabulary", field)
    if params.allowed_token_ids is not None:  # could not have been drawn
        for token in set(ids).difference(params.allowed_token_ids):
            raise InvalidRequestError(f"{field} hold {token}, allowed_token_ids do not", field)
    start = len(request.prompt_token_ids)
    most = bounds.limit(start, params) - start
    if len(ids) >= most:  # the answer was complete already
        raise InvalidRequestError(
            f"{field} has {len(ids)} tokens, and the answer ends with {most} (max_tokens, max_model_len)",
            field,
        )
    ends = bounds.end_ids(params)
    for token in ids[params.min_tokens :]:
        if token in ends:
            raise InvalidRequestError(f"{field} hold {token}, which ends an answer", field)
