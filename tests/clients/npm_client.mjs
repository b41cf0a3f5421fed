// npm's openai package, unmodified: node npm_client.mjs URL KEY MODEL
import assert from "node:assert/strict";
import OpenAI from "openai";

const [url, apiKey, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey, maxRetries: 0 });
const messages = [{ role: "user", content: "What is the capital of France? Answer in one word." }];
const asked = { model, messages, temperature: 0, max_tokens: 16 };

const models = await client.models.list();
assert.ok(models.data.some((each) => each.id === model));

const whole = await client.chat.completions.create(asked);
const text = whole.choices[0].message.content;
assert.match(text, /Paris/);

let streamed = "";
let usage = null;
const options = { stream: true, stream_options: { include_usage: true } };
for await (const chunk of await client.chat.completions.create({ ...asked, ...options })) {
  streamed += chunk.choices[0]?.delta?.content ?? "";
  usage = chunk.usage ?? usage;
}
assert.equal(streamed, text);
assert.equal(usage.completion_tokens, whole.usage.completion_tokens);

// The seed of an answer that was drawn at random gives it again, through JavaScript's numbers.
const random = await client.chat.completions.create({ ...asked, temperature: 1 });
const again = await client.chat.completions.create({ ...asked, temperature: 1, seed: random.seed });
assert.equal(again.choices[0].message.content, random.choices[0].message.content);

const parameters = {
  type: "object",
  properties: { city: { type: "string", maxLength: 12 } },
  required: ["city"],
  additionalProperties: false,
};
const tools = [{ type: "function", function: { name: "weather", parameters } }];
const stream = client.chat.completions.stream({ ...asked, max_tokens: 80, tools, tool_choice: "required" });
const [call] = (await stream.finalChatCompletion()).choices[0].message.tool_calls;
assert.deepEqual(Object.keys(JSON.parse(call.function.arguments)), ["city"]);

const response_format = { type: "json_schema", json_schema: { name: "city", schema: parameters } };
const typed = await client.chat.completions.create({ ...asked, max_tokens: 80, response_format });
assert.deepEqual(Object.keys(JSON.parse(typed.choices[0].message.content)), ["city"]);

const completion = await client.completions.create({ model, prompt: "Water boils at", max_tokens: 8, logprobs: 2 });
assert.equal(completion.choices[0].logprobs.tokens.length, completion.usage.completion_tokens);

const response = await client.responses.create({ model, input: messages[0].content, max_output_tokens: 16, temperature: 0 });
assert.match(response.output_text, /Paris/);

const embedding = await client.embeddings.create({ model, input: ["A page is a leaf."] });
assert.ok(embedding.data[0].embedding.length > 0);

await assert.rejects(client.chat.completions.create({ ...asked, temperature: 200 }), (error) => {
  assert.ok(error instanceof OpenAI.BadRequestError);
  assert.equal(error.param, "temperature");
  return true;
});

const aborted = await client.chat.completions.create({ ...asked, max_tokens: 500, stream: true });
for await (const _ of aborted) {
  aborted.controller.abort();
  break;
}
console.log("npm openai: models, chat, streams, seeds, tools, schemas, completions, responses, embeddings, errors, abort");
