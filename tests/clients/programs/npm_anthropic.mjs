// @anthropic-ai/sdk: messages, streams, its tool runner, counting, errors.
import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";
import { betaTool } from "@anthropic-ai/sdk/helpers/beta/json-schema";
import { ASK, DONE, ECHO, run } from "./_features.mjs";

const client = (url, apiKey) => new Anthropic({ baseURL: url, apiKey, maxRetries: 0 });
const hi = { max_tokens: 999, messages: [{ role: "user", content: "Hi" }] };
const echo = betaTool({ name: "echo", description: "Say", inputSchema: ECHO, run: ({ text }) => text });
const ask = { max_tokens: 999, messages: [{ role: "user", content: ASK }], tools: [echo] };

await run("@anthropic-ai/sdk", {
  chat: async (url, key, model) => {
    const found = await client(url, key).messages.create({ model, ...hi });
    assert.equal(found.content[0].text, "A short title");
  },
  stream: async (url, key, model) => {
    assert.equal(await client(url, key).messages.stream({ model, ...hi }).finalText(), "A short title");
  },
  tools: async (url, key, model) => {
    const found = await client(url, key).beta.messages.toolRunner({ model, ...ask }).runUntilDone();
    assert.equal(found.content.at(-1).text, DONE);
  },
  "tools, streamed": async (url, key, model) => {
    const runner = client(url, key).beta.messages.toolRunner({ model, ...ask, stream: true });
    let last;
    for await (const stream of runner) last = await stream.finalMessage();
    assert.equal(last.content.at(-1).text, DONE);
  },
  count: async (url, key, model) => {
    const { messages } = hi;
    assert.ok((await client(url, key).messages.countTokens({ model, messages })).input_tokens > 0);
  },
  models: async (url, key, model) => {
    const found = await client(url, key).models.list();
    assert.deepEqual([found.data[0].id, found.data[0].type], [model, "model"]);
  },
  errors: async (url, key, model) => {
    await assert.rejects(client(url, key).messages.create({ model, ...hi, max_tokens: -1 }), (error) => {
      assert.ok(error instanceof Anthropic.BadRequestError);
      return Boolean(error.requestID);
    });
    await assert.rejects(client(url, "wrong").messages.create({ model, ...hi }), Anthropic.AuthenticationError);
  },
});
