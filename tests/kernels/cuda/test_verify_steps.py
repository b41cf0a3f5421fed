"""Verify steps, recorded and replayed: at every node of a draft the token that plain decoding draws there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from octavo.kernels.forward_batch import ForwardBatch
from octavo.kernels.ops import Limits
from octavo.kernels.trees import masks_of
from octavo.params import SamplingParams
from octavo.params.drafts import Draft
from octavo.sampling import Sampler
from octavo.sampling.device import DrawMaker, read
from octavo.sampling.sampling_rows import SamplingRows
from support.cuda import interpreted
from support.recordings import VOCAB, Recordings, Tiny, steps_of
from support.walks import walked

LIMITS = Limits(64, 6, 40, 4)
WISHES = (
    SamplingParams(temperature=0),
    SamplingParams(temperature=1, top_k=7, top_p=0.8),
    SamplingParams(temperature=0.7),
)
TREE = (-1, -1, 0, 0, 2)
"""Two children of node 0, two of the first, one below."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """A device has no such warnings as the interpreter's NumPy."""
    with np.errstate(all="ignore"):
        yield


class Conversation:
    """Sequences of pages of their own, computed by steps on the device.

    Attributes:
        tokens: of each sequence; all but the last are in its pages.
    """

    def __init__(self, steps: Any, wishes: Sequence[SamplingParams], trees: bool) -> None:
        self._steps, self._maker, self._trees = steps, DrawMaker(), trees
        self._rows = SamplingRows(8, VOCAB)
        self.tokens = [[5 + r, 9, 7 + r] for r in range(len(wishes))]
        for row, wish in enumerate(wishes):
            self._rows.add(row, wish, 11 + row, 0, self.tokens[row], 3)
        who = list(range(len(wishes)))
        first = [t[:-1] for t in self.tokens]
        self._run(batch(first, [0] * len(who), None), who, [2] * len(who), None)

    def verify(self, drafts: Sequence[Draft]) -> list[list[Any]]:
        """What is drawn at each node; nothing is accepted."""
        counts = [1 + len(d.tokens) for d in drafts]
        given = [[t[-1], *d.tokens] for t, d in zip(self.tokens, drafts, strict=True)]
        parents = [[-1, *(p + 1 for p in d.parents)] for d in drafts]
        starts = [len(t) - 1 for t in self.tokens]
        step = batch(given, starts, parents if self._trees else None)
        owners = np.repeat(np.arange(len(drafts)), counts).tolist()
        ahead = [path for d in drafts for path in d.paths()]
        positions = [len(self.tokens[row]) + len(path) for row, path in zip(owners, ahead, strict=True)]
        drawn = self._run(step, owners, positions, ahead)
        return [drawn[end - n : end] for n, end in zip(counts, np.cumsum(counts), strict=True)]

    def accept(self, drafts: Sequence[Draft]) -> None:
        """A verify step whose emitted tokens become the sequences' own."""
        for row, (draft, drawn) in enumerate(zip(drafts, self.verify(drafts), strict=True)):
            emitted = [token.token_id for token in walked(draft, drawn).drawn]
            self.tokens[row] += emitted
            self._rows.append(row, emitted)

    def _run(self, step: ForwardBatch, owners: list[int], positions: list[int], ahead: Any) -> list[Any]:
        wanted = self._rows.batch(owners, positions, ahead)
        draws = self._maker.draws(wanted)
        nobody = [-1] * len(owners)
        sources = np.full(step.num_tokens, -1, np.int32)
        return read(self._steps.launch(step, sources, nobody, draws).draw(draws).result(), wanted)


def batch(tokens: Sequence[Sequence[int]], starts: Sequence[int], parents: Any) -> ForwardBatch:
    """Tokens after starts, four pages a sequence. All are sampled, but of a prompt. parents: of trees."""
    counts = np.array([len(t) for t in tokens], np.int32)
    start = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    owners = np.repeat(np.arange(len(tokens), dtype=np.int32), counts)
    stored = np.concatenate(
        [np.arange(s, s + n, dtype=np.int32) for s, n in zip(starts, counts, strict=True)]
    )
    tables = np.arange(4 * len(tokens), dtype=np.int32).reshape(-1, 4)
    slots = tables[owners, stored // 16] * 16 + stored % 16
    ids = np.concatenate([np.array(t, np.int32) for t in tokens])
    prompt = not any(starts)
    sampled = start[1:] - np.int32(1) if prompt else np.arange(len(ids), dtype=np.int32)
    made = ForwardBatch(
        ids, stored, slots, start, (np.array(starts) + counts).astype(np.int32), tables, sampled
    )
    if parents is None:
        return made
    masks = np.concatenate([masks_of(p, 1) for p in parents])
    depths = np.bitwise_count(masks[:, 0]).astype(np.int32) - 1
    positions = np.repeat(np.array(starts, np.int32), counts) + depths
    return replace(made, positions=positions.astype(np.int32), tree_masks=masks)


def plainly(wishes: Sequence[SamplingParams], count: int) -> list[list[int]]:
    """Tokens of plain decoding, logits and draws on the host."""
    tiny, rows = Tiny(), SamplingRows(8, VOCAB)
    program = tiny.backend.capture(tiny, LIMITS)
    tokens = [[5 + r, 9, 7 + r] for r in range(len(wishes))]
    for row, wish in enumerate(wishes):
        rows.add(row, wish, 11 + row, 0, tokens[row], 3)
    who = list(range(len(wishes)))
    starts = [0] * len(who)
    for _ in range(count):
        logits = program.replay(batch([t[s:] for t, s in zip(tokens, starts, strict=True)], starts, None))
        starts = [len(t) for t in tokens]
        for row, token in enumerate(Sampler().sample(logits, rows.batch(who, [len(t) for t in tokens]))):
            tokens[row].append(token.token_id)  # type: ignore[union-attr]
            rows.append(row, [token.token_id])  # type: ignore[union-attr]
    return tokens


def drafts_of(rng: np.random.Generator, truth: list[int], known: int, good: int) -> Draft:
    """A chain of up to four tokens of which the first `good` are what plain decoding says."""
    wrong = [int(t) for t in rng.integers(0, VOCAB, 4)]
    right = truth[known : known + good]
    return Draft.chain([*right, *wrong[len(right) :]])


@pytest.mark.parametrize(("captured", "who"), [(False, (0, 2)), (True, (0,)), (True, (1, 2))])
def test_chains_say_what_plain_decoding_says(captured: bool, who: tuple[int, ...]) -> None:
    """Accepted or not, of several lengths at once: recorded once for a form, replayed from then on."""
    wishes, record, rng = [WISHES[i] for i in who], Recordings(), np.random.default_rng(0)
    truth = plainly(wishes, 15)
    steps = steps_of(record if captured else None, LIMITS)
    talk = Conversation(steps, wishes, trees=False)
    for step in range(3):
        goods = [(step + row) % 4 for row in range(len(wishes))]
        known = [len(t) for t in talk.tokens]
        talk.accept([drafts_of(rng, t, k, g) for t, k, g in zip(truth, known, goods, strict=True)])
        assert all(len(t) > k + g for t, k, g in zip(talk.tokens, known, goods, strict=True))
    assert [t[: len(mine)] for t, mine in zip(truth, talk.tokens, strict=True)] == talk.tokens
    assert (record.made, steps.replays) == ((1, 2) if captured else (0, 0))


@pytest.mark.parametrize("who", [(0,), (2, 0)])
def test_trees_recorded_equal_trees_run_eagerly(who: tuple[int, ...]) -> None:
    """Masks, depths and padding come anew for each replay: other trees, fewer sequences, fewer tokens."""
    wishes, rng = [WISHES[i] for i in who], np.random.default_rng(1)
    record = Recordings()
    recorded, eager = steps_of(record, LIMITS), steps_of(None, LIMITS)
    replays = 0
    for parents in (TREE, (-1, -1, -1, 1, 3), TREE[:4]):
        drafts = [Draft(tuple(rng.permutation(VOCAB)[: len(parents)].tolist()), parents) for _ in wishes]
        mine, its = (Conversation(s, wishes, trees=True).verify(drafts) for s in (recorded, eager))
        assert mine == its
        replays += 1
    assert record.made < replays  # forms are met again
    assert recorded.replays == replays - record.made
    assert eager.replays == 0


def test_a_tree_says_what_plain_decoding_says_on_each_path() -> None:
    """The path that plain decoding takes, hidden among siblings, is accepted to its end."""
    wishes = WISHES[::2]
    truth = plainly(wishes, 4)
    record = Recordings()
    steps = steps_of(record, LIMITS)
    for _ in range(2):
        talk = Conversation(steps, wishes, trees=True)
        drafts = []
        for t in truth:
            a, b, c = t[3:6]
            drafts.append(Draft(((a + 1) % VOCAB, a, (b + 1) % VOCAB, b, c), (-1, -1, 1, 1, 3)))
        said = talk.verify(drafts)
        for draft, drawn, t in zip(drafts, said, truth, strict=True):
            assert [token.token_id for token in walked(draft, drawn).drawn] == t[3:7]
    assert (record.made, steps.replays) == (1, 1)


def test_a_stale_mask_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: the masks of the step that was recorded stay for the ones that follow."""
    from octavo.kernels.cuda import buckets

    pad, first = buckets.pad, {}

    def stale(given: Any, host: Any, form: Any) -> None:
        pad(given, host, form)
        if given is not None and form.words:
            host["trees"][...] = first.setdefault(form, host["trees"].copy())

    def said(broken: bool) -> list[Any]:
        steps, drafts, wish = steps_of(Recordings(), LIMITS), [], SamplingParams(temperature=2)
        with monkeypatch.context() as patch:
            if broken:
                patch.setattr(buckets, "pad", stale)
            for parents in ((-1, 0, 1), (-1, -1, -1)):
                draft = Draft((3, 4, 5), parents)
                drafts.append(Conversation(steps, [wish], trees=True).verify([draft]))
        return drafts

    assert said(True) != said(False)


def test_which_steps_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    from octavo.kernels.cuda import buckets
    from octavo.kernels.cuda.buckets import Form, Forms

    forms = Forms(Limits(300, 6, 200, 8))
    prompt = batch([[1, 2, 3]], [0], None)
    assert forms.of(prompt) is None
    chain = batch([[1, 2, 3], [1], [4, 5]], [3, 7, 9], None)
    assert forms.of(chain) == Form(4, 8, 4)
    assert str(Form(4, 8, 4)) == "verify 8 of 4, 4 each"
    tree = batch([[1, 2, 3, 4]], [3], [[-1, 0, 0, 1]])
    assert forms.of(tree) == Form(1, 4, 4, 1)
    most = replace(batch([list(range(64))], [0], None), sampled=np.arange(64, dtype=np.int32))
    assert forms.of(most) == Form(1, 64, 64)
    twice = replace(most, query_start=np.int32([0, 32, 64]), context_lens=np.int32([32, 32]))
    assert forms.of(twice) == Form(2, 64, 32)
    monkeypatch.setattr(buckets, "MAX_QUERY", 63)
    assert forms.of(most) is None


def test_no_more_graphs_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond that, forms that are met for the first time run eagerly; those that are known go on."""
    interpreted()
    from octavo.kernels.cuda import steps as module

    monkeypatch.setattr(module, "MAX_GRAPHS", 2)
    record = Recordings()
    steps = steps_of(record, LIMITS)
    draft = Draft((3, 4, 5), (-1, 0, 1))
    found = [Conversation(steps, WISHES[:1], trees=False).verify([draft]) for _ in range(3)]
    assert found[0] == found[1] == found[2]
    made, replays = record.made, steps.replays
    Conversation(steps, WISHES[::2], trees=False).verify([Draft.chain([3]), Draft.chain([4, 5])])
    Conversation(steps, WISHES[:1], trees=True).verify([Draft.chain([3])])
    assert len(steps._places) == 2
    Conversation(steps, WISHES[:1], trees=False).verify([draft])
    assert (record.made, steps.replays) == (made + 1, replays + 1)
