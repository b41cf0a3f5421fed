"""What loads ask: lengths, beginnings, times; and files that are wrong, by their line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from octavo.bench.serving.apis import api_of
from octavo.bench.serving.arrivals import of_trace
from octavo.bench.serving.datasets import WantedPrompts, calls_of, data_set, find
from octavo.bench.serving.exchange import Asked, LoadRequest
from octavo.bench.serving.figures import read_slo
from octavo.errors import InvalidRequestError


def asked(
    name: str, count: int = 8, path: Path | None = None, ids: bool = True, **options: Any
) -> list[LoadRequest]:
    data = data_set(name)
    own = {option.name: option.default for option in data.options} | options
    return calls_of(data, WantedPrompts(count, path, own.pop("seed", 0), ids, own))


def test_options_and_names_are_of_one_data_set_each() -> None:
    names = [option.name for data in find() for option in data.options]
    assert len(names) == len(set(names))
    assert {name for data in find() for name in data.names} >= {"random", "sharegpt", "custom", "trace"}


def test_random_lengths() -> None:
    calls = asked("random", 200, random_input_len=100, random_output_len=10, random_range_ratio=0.5)
    lengths = {len(call.prompt) for call in calls}
    assert (min(lengths) >= 50, max(lengths) <= 150, len(lengths) > 40) == (True, True, True)
    assert {call.output_tokens for call in calls} <= set(range(5, 16))
    assert asked("random", seed=1) == asked("random", seed=1) != asked("random", seed=2)
    texts = asked("random", 3, ids=False, random_input_len=20)
    assert [len(str(call.prompt).split()) for call in texts] == [20, 20, 20]


@pytest.mark.parametrize("ids", [True, False])
def test_beginnings_are_shared(ids: bool) -> None:
    def parts(call: LoadRequest) -> list[Any]:
        return str(call.prompt).split() if isinstance(call.prompt, str) else list(call.prompt)

    calls = asked("random", 6, ids=ids, random_prefix_len=40, random_input_len=9)
    assert len({tuple(parts(call)[:40]) for call in calls}) == 1
    assert len({tuple(parts(call)) for call in calls}) == 6
    few = {"prefix_repetition_prefix_len": 30, "prefix_repetition_num_prefixes": 3}
    calls = asked("prefix_repetition", 12, ids=ids, **few)
    heads = [tuple(parts(call)[:30]) for call in calls]
    assert sorted(heads.count(head) for head in set(heads)) == [4, 4, 4]


def test_which_part_of_prompts_is_to_be_shared() -> None:
    def part(name: str, **options: Any) -> float:
        data = data_set(name)
        return data.shared({option.name: option.default for option in data.options} | options)

    assert part("random") == part("sharegpt") == part("custom") == 0.0
    assert part("random", random_prefix_len=30, random_input_len=20, random_range_ratio=0.5) == 0.75
    assert part("random", random_input_len=0) == part("random", random_prefix_len=0) == 0.0
    assert part("prefix_repetition", prefix_repetition_prefix_len=30, prefix_repetition_suffix_len=10) == 0.75
    assert part("trace") == 1.0, "as much as it says"


def test_a_trace_shares_within_a_seed_and_not_beyond_it(tmp_path: Path) -> None:
    row = {"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [3, 4]}
    (tmp_path / "t.jsonl").write_text(f"{json.dumps(row)}\n" * 2)
    one, two = (
        [list(call.prompt) for call in asked("trace", 2, tmp_path / "t.jsonl", seed=seed)] for seed in (0, 1)
    )
    assert one[0] == one[1] != two[0] == two[1]
    assert one[0][:16] != two[0][:16]


def test_lines_of_ones_own(tmp_path: Path) -> None:
    rows = [
        {"prompt": "a"},
        {"prompt": [5, 6], "output_tokens": 3},
        {"question_id": 81, "turns": ["first", "second"]},
        {"messages": [{"role": "user", "content": "b"}]},
    ]
    path = tmp_path / "own.jsonl"
    path.write_text("\n\n".join(map(json.dumps, rows)))
    calls = asked("custom", path=path, custom_output_len=20)
    assert [call.prompt for call in calls] == ["a", [5, 6], "first", rows[3]["messages"]]
    assert [call.output_tokens for call in calls] == [20, 3, 20, 20]
    assert len(asked("mt_bench", 2, path)) == 2


def test_conversations(tmp_path: Path) -> None:
    talk = {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "x" * 40}]}
    chat = {"conversation": [{"role": "user", "content": "yo"}, {"role": "assistant", "content": "y" * 8}]}
    alone = {"conversations": [{"from": "human", "value": "alone"}]}
    path = tmp_path / "talks"
    for text in (json.dumps([talk, alone, chat]), "\n".join(map(json.dumps, (talk, alone, chat)))):
        path.write_text(text)
        calls = asked("sharegpt", path=path)
        assert sorted((call.prompt, call.output_tokens) for call in calls) == [("hi", 10), ("yo", 2)]
        assert {call.output_tokens for call in asked("sharegpt", path=path, sharegpt_output_len=9)} == {9}


def test_a_trace_is_replayed(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    rows = [(1000, 600, 5, [1, 2]), (3000, 700, 6, [1, 3]), (9000, 40, 7, [])]
    names = ("timestamp", "input_length", "output_length", "hash_ids")
    path.write_text("\n".join(json.dumps(dict(zip(names, row, strict=True))) for row in rows))
    calls = asked("trace", path=path)
    assert [len(call.prompt) for call in calls] == [600, 700, 40]
    assert [call.output_tokens for call in calls] == [5, 6, 7]
    assert calls[0].prompt[:512] == calls[1].prompt[:512]
    assert calls[0].prompt[512:600] != calls[1].prompt[512:600]
    assert of_trace(calls, speed=2.0) == [0.0, 1.0, 4.0]
    assert [len(call.prompt) for call in asked("trace", path=path, trace_input_max=50)] == [50, 50, 40]
    with pytest.raises(InvalidRequestError, match="no times of arrival"):
        of_trace(asked("random"))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("custom", "", "holds nothing to ask"),
        ("custom", '{"prompt": "a"}\n{', "line 2 is no JSON"),
        ("custom", "[]", "line 1 is no JSON object"),
        ("custom", '{"text": "a"}', "line 1: it has no prompt"),
        ("custom", '{"prompt": [1, "a"]}', "line 1: it has no prompt"),
        ("custom", '{"prompt": "a", "output_tokens": 0}', "line 1: output_tokens is at least 1"),
        ("custom", '{"prompt": "a", "output_tokens": NaN}', "line 1: "),
        ("sharegpt", "[]", "holds nothing to ask"),
        ("sharegpt", "[{]", "is no JSON"),
        ("sharegpt", '[{"conversations": [{"value": 5}, {}]}]', "conversation 1: a turn's value is a text"),
        ("sharegpt", '[{"conversations": [{}, {}]}]', "conversation 1: 'content' is missing"),
        ("trace", '{"timestamp": NaN}', "line 1"),
        ("trace", "", "holds no requests"),
    ],
)
def test_files_that_are_wrong(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    with pytest.raises(InvalidRequestError, match=message):
        asked(name, path=path)


def test_nothing_is_named() -> None:
    with pytest.raises(InvalidRequestError, match="needs --dataset-path"):
        asked("sharegpt")
    with pytest.raises(InvalidRequestError, match=r"--dataset-name knows .*random.*, and not 'sonnet'"):
        data_set("sonnet")
    with pytest.raises(InvalidRequestError, match=r"--backend knows .*tgi"):
        api_of("triton")


def test_limits() -> None:
    assert read_slo(["ttft:500,tpot:50", "e2el:2e3"]) == {"ttft": 500.0, "tpot": 50.0, "e2el": 2000.0}
    for word in ("ttft", "itl:5", "ttft:nan", "ttft:-1", "ttft:0", "x:5"):
        with pytest.raises(InvalidRequestError, match="--goodput takes milliseconds"):
            read_slo([word])


def test_bodies() -> None:
    sampling = Asked("m", True, {"temperature": 0.5}, {"min_p": 0.1})
    body = api_of("openai").body(LoadRequest([1, 2], 9), sampling)
    assert body["prompt"] == [1, 2]
    assert {"ignore_eos": True, "temperature": 0.5, "min_p": 0.1, "max_tokens": 9}.items() <= body.items()
    assert "ignore_eos" not in api_of("openai").body(LoadRequest("x", 9), Asked("m"))
    greedy, drawn = (
        api_of("tgi").body(LoadRequest("x", 9), Asked("", sampling={"temperature": t})) for t in (0.0, 0.7)
    )
    assert greedy["parameters"]["do_sample"] is False
    assert "temperature" not in greedy["parameters"]
    assert drawn["parameters"]["temperature"] == 0.7
    for name, prompt, message in (
        ("openai", [{"role": "user"}], "messages are for chats"),
        ("openai-chat", [1, 2], "token ids are for completions"),
    ):
        with pytest.raises(InvalidRequestError, match=message):
            api_of(name).body(LoadRequest(prompt, 1), Asked("m"))
    with pytest.raises(InvalidRequestError, match="no --ignore-eos"):
        api_of("tgi").body(LoadRequest("x", 1), sampling)
