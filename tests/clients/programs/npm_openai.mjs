// npm's openai, its helpers too.
import assert from "node:assert/strict";
import OpenAI from "openai";
import { ASK, DONE, ECHO, run } from "./_features.mjs";

const client = (url, apiKey) => new OpenAI({ baseURL: `${url}/v1`, apiKey, maxRetries: 0 });
const messages = [{ role: "user", content: "Hi" }];
const city = { type: "object", properties: { city: { type: "string" } }, required: ["city"], additionalProperties: false };

const echo = {
  type: "function",
  function: { name: "echo", parameters: ECHO, parse: JSON.parse, function: ({ text }) => text },
};

await run("openai", {
  chat: async (url, key, model) => {
    const found = await client(url, key).chat.completions.create({ model, messages });
    assert.equal(found.choices[0].message.content, "A short title");
  },
  stream: async (url, key, model) => {
    const stream = client(url, key).chat.completions.stream({ model, messages });
    assert.equal(await stream.finalContent(), "A short title");
  },
  tools: async (url, key, model) => {
    const asked = { model, messages: [{ role: "user", content: ASK }], tools: [echo] };
    assert.equal(await client(url, key).chat.completions.runTools(asked).finalContent(), DONE);
  },
  "tools, streamed": async (url, key, model) => {
    const asked = { model, messages: [{ role: "user", content: ASK }], tools: [echo], stream: true };
    assert.equal(await client(url, key).chat.completions.runTools(asked).finalContent(), DONE);
    let done = 0;
    const { parse, function: call, ...plain } = echo.function;
    const tools = [{ type: "function", function: plain }];
    const stream = client(url, key).chat.completions.stream({ ...asked, tools });
    stream.on("tool_calls.function.arguments.done", () => (done += 1));
    await stream.done();
    assert.equal(done, 1);
  },
  typed: async (url, key, model) => {
    const response_format = { type: "json_schema", json_schema: { name: "city", schema: city, strict: true } };
    const found = await client(url, key).chat.completions.parse({ model, messages, response_format });
    assert.deepEqual(JSON.parse(found.choices[0].message.content), { city: "Paris" });
  },
  responses: async (url, key, model) => {
    const found = await client(url, key).responses.create({ model, input: "Hi" });
    assert.equal(found.output_text, "A short title");
  },
  "responses, tools streamed": async (url, key, model) => {
    const tools = [{ type: "function", name: "echo", parameters: ECHO, strict: false }];
    let asked = { model, tools, input: ASK };
    let final;
    for (let turn = 0; turn < 3; turn += 1) {
      final = await client(url, key).responses.stream(asked).finalResponse();
      const calls = final.output.filter((item) => item.type === "function_call");
      const input = calls.map((c) => ({
        type: "function_call_output", call_id: c.call_id, output: JSON.parse(c.arguments).text,
      }));
      asked = { ...asked, input, previous_response_id: final.id };
    }
    assert.equal(final.output_text, DONE);
  },
  embeddings: async (url, key, model) => {
    const found = await client(url, key).embeddings.create({ model, input: ["a", "b"] });
    assert.equal(found.data.length, 2);
  },
  errors: async (url, key, model) => {
    await assert.rejects(client(url, key).chat.completions.create({ model, messages, temperature: 200 }), (error) => {
      assert.ok(error instanceof OpenAI.BadRequestError);
      assert.ok(error.requestID);
      return error.param === "temperature";
    });
    await assert.rejects(client(url, "wrong").models.list(), OpenAI.AuthenticationError);
  },
});
