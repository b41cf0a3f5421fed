// The AI SDK (`ai`) with five providers' models: text, streams, tools in several steps, objects.
import assert from "node:assert/strict";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenResponses } from "@ai-sdk/open-responses";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, isStepCount, jsonSchema, Output, stepCountIs, streamText, tool } from "ai";
import { ASK, DONE, ECHO, run } from "./_features.mjs";

const city = jsonSchema({
  type: "object", properties: { city: { type: "string" } }, required: ["city"], additionalProperties: false,
});
const tools = { echo: tool({ description: "Say", inputSchema: jsonSchema(ECHO), execute: async ({ text }) => text }) };
const stopWhen = (isStepCount ?? stepCountIs)(5);

const models = (url, apiKey, model) => ({
  "openai-compatible": createOpenAICompatible({ name: "octavo", baseURL: `${url}/v1`, apiKey, supportsStructuredOutputs: true })(model),
  "openai chat": createOpenAI({ baseURL: `${url}/v1`, apiKey }).chat(model),
  "openai responses": createOpenAI({ baseURL: `${url}/v1`, apiKey }).responses(model),
  anthropic: createAnthropic({ baseURL: `${url}/v1`, apiKey })(model),
  "open-responses": createOpenResponses({ name: "octavo", url: `${url}/v1/responses`, apiKey })(model),
});

const features = {};
for (const provider of Object.keys(models("http://127.0.0.1", "k", "m"))) {
  const asked = (more) => (url, key, name) => more({ model: models(url, key, name)[provider], maxRetries: 0 });
  Object.assign(features, {
    [`${provider}: chat`]: asked(async (model) => {
      assert.equal((await generateText({ ...model, prompt: "Hi" })).text, "A short title");
    }),
    [`${provider}: stream`]: asked(async (model) => {
      const result = streamText({ ...model, prompt: "Hi", onError: () => {} });
      assert.equal(await result.text, "A short title");
    }),
    [`${provider}: tools`]: asked(async (model) => {
      assert.equal((await generateText({ ...model, prompt: ASK, tools, stopWhen })).text, DONE);
    }),
    [`${provider}: tools, streamed`]: asked(async (model) => {
      const result = streamText({ ...model, prompt: ASK, tools, stopWhen, onError: () => {} });
      assert.equal(await result.text, DONE);
    }),
    [`${provider}: typed`]: asked(async (model) => {
      const output = Output.object({ schema: city });
      assert.deepEqual((await generateText({ ...model, prompt: "Hi", output })).output, { city: "Paris" });
    }),
  });
}
await run("ai", features);
