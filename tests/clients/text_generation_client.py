"""text-generation 0.7.0, as its own environment has it: URL KEY."""

from __future__ import annotations

import asyncio
import sys

from text_generation import AsyncClient, Client
from text_generation.errors import ValidationError
from text_generation.types import FinishReason, GrammarType

URL, KEY = sys.argv[1:]
HEADERS = {"Authorization": f"Bearer {KEY}"}
PROMPT = "The capital of France is"


async def streamed() -> str:
    client = AsyncClient(URL, headers=HEADERS)
    text = ""
    async for each in client.generate_stream(PROMPT, max_new_tokens=8):
        if not each.token.special:
            text += each.token.text
    return text


client = Client(URL, headers=HEADERS)
answer = client.generate(PROMPT, max_new_tokens=8, decoder_input_details=True, top_n_tokens=2)
assert "Paris" in answer.generated_text
assert answer.details.finish_reason is FinishReason.Length
assert "".join(token.text for token in answer.details.tokens) == answer.generated_text
assert "".join(token.text for token in answer.details.prefill) == PROMPT
assert all(len(each) == 2 for each in answer.details.top_tokens)

events = list(client.generate_stream(PROMPT, max_new_tokens=8))
assert [each.token.id for each in events] == [token.id for token in answer.details.tokens]
assert [each.token.logprob for each in events] == [token.logprob for token in answer.details.tokens]
assert events[-1].generated_text == answer.generated_text
assert events[-1].details.generated_tokens == 8
assert asyncio.run(streamed()) == answer.generated_text

stopped = client.generate(PROMPT, max_new_tokens=8, stop_sequences=["Par"])
assert stopped.generated_text.endswith("Par")
assert stopped.details.finish_reason is FinishReason.StopSequence
drawn = [client.generate(PROMPT, max_new_tokens=8, do_sample=True, seed=3) for _ in range(2)]
assert drawn[0] == drawn[1]
assert drawn[0].details.seed == 3
shaped = client.generate(PROMPT, max_new_tokens=8, grammar={"type": GrammarType.Regex, "value": "[0-9]{4}"})
assert shaped.generated_text.isdigit()
marked = client.generate(PROMPT, max_new_tokens=8, do_sample=True, seed=3, typical_p=0.95, watermark=True)
assert marked.details.generated_tokens == 8
messages = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]
chat = client.chat(messages, max_tokens=16, temperature=0.0)
assert "Paris" in chat.choices[0].message.content
assert chat.system_fingerprint.startswith("octavo-")
# Of streamed chats its types ask for tool_calls in every chunk, and it reads `[DONE]` as JSON.
refusal = ""
try:
    client.generate(PROMPT * 2000, max_new_tokens=8)
except ValidationError as error:
    refusal = str(error)
assert "inputs" in refusal, "a prompt longer than the context was taken"
print("text-generation: whole, streamed, stopped, drawn, shaped and refused")
