// OpenAI's JavaScript SDK: chat completions, models and errors.
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";
import { API_KEY, BASE_URL, ENDLESS, OTHER_URL, answer, collect, jobWith, messages } from "./support.mjs";

const client = new OpenAI({ baseURL: BASE_URL, apiKey: API_KEY, maxRetries: 0 });
const model = "simulated";
const chat = client.chat.completions;

test("a whole chat completion", async () => {
  const completion = await chat.create({ model, messages, max_tokens: 20 });
  assert.equal(completion.choices[0].message.content, answer(20));
  assert.equal(completion.choices[0].finish_reason, "length");
  assert.equal(completion.usage.completion_tokens, 20);
});

test("a streamed chat completion with usage", async () => {
  const stream = await chat.create({
    model,
    messages,
    max_completion_tokens: 50,
    stream: true,
    stream_options: { include_usage: true },
  });
  const chunks = await collect(stream);
  assert.equal(chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join(""), answer(50));
  assert.equal(chunks.at(-1).usage.completion_tokens, 50);
});

test("the stream helper's final completion", async () => {
  const runner = chat.stream({ model, messages, max_tokens: 50 });
  let text = "";
  runner.on("content", (delta, snapshot) => {
    text += delta;
    assert.equal(snapshot, text);
  });
  assert.equal(await runner.finalContent(), answer(50));
  assert.equal(text, answer(50));
});

test("an aborted stream cancels the job", async () => {
  const controller = new AbortController();
  const body = { model, messages, max_tokens: ENDLESS, stream: true };
  const stream = await chat.create(body, { signal: controller.signal });
  let id;
  for await (const chunk of stream) {
    id = chunk.id;
    controller.abort();
  }
  const job = await jobWith("cancelled", id);
  assert.ok(job.output.choices[0].message.content.startsWith(answer(1)));
});

test("a loop that is left cancels the job", async () => {
  let id;
  for await (const chunk of await chat.create({ model, messages, max_tokens: ENDLESS, stream: true })) {
    id = chunk.id;
    break;
  }
  await jobWith("cancelled", id);
});

test("a stream helper that is aborted says so", async () => {
  const runner = chat.stream({ model, messages, max_tokens: ENDLESS });
  runner.on("content", () => runner.abort());
  await assert.rejects(runner.finalContent(), OpenAI.APIUserAbortError);
});

test("a repeat with the same idempotency key is the same job on any pod", async () => {
  const other = new OpenAI({ baseURL: OTHER_URL, apiKey: API_KEY, maxRetries: 0 });
  const options = { headers: { "Idempotency-Key": `js-${process.pid}` } };
  const body = { model, messages, max_tokens: 20 };
  const [first, second] = [await chat.create(body, options), await other.chat.completions.create(body, options)];
  assert.deepEqual(second, first);
  await assert.rejects(chat.create({ ...body, max_tokens: 21 }, options), OpenAI.ConflictError);
});

test("a streamed tool call is whole", async () => {
  const tools = [{ type: "function", function: { name: "forecast", parameters: { type: "object" } } }];
  const runner = chat.stream({ model: "echo", messages: [{ role: "user", content: '{"city": "Paris"}' }], tools });
  const { message, finish_reason } = (await runner.finalChatCompletion()).choices[0];
  assert.equal(finish_reason, "tool_calls");
  assert.equal(message.tool_calls.length, 1);
  const { id, type, function: called } = message.tool_calls[0];
  assert.deepEqual([id, type, called.name, called.arguments], ["call_0", "function", "forecast", '{"city": "Paris"}']);
});

test("a text completion", async () => {
  const completion = await client.completions.create({ model, prompt: "hello", max_tokens: 5 });
  assert.equal(completion.choices[0].text.split(" ").length, 6);
});

test("the list of models", async () => {
  const ids = (await collect(client.models.list())).map((model) => model.id);
  assert.deepEqual(ids.sort(), ["echo", "simulated"]);
});

test("errors have OpenAI's classes and codes", async () => {
  await assert.rejects(chat.create({ model: "missing", messages }), (error) => {
    assert.ok(error instanceof OpenAI.NotFoundError);
    assert.equal(error.code, "model_not_found");
    return true;
  });
  await assert.rejects(chat.create({ model, messages, top_p: 2 }), (error) => {
    assert.ok(error instanceof OpenAI.BadRequestError);
    assert.equal(error.param, "top_p");
    return true;
  });
  const stranger = new OpenAI({ baseURL: BASE_URL, apiKey: "wrong", maxRetries: 0 });
  await assert.rejects(stranger.models.list(), OpenAI.AuthenticationError);
});

test("an error in the middle of a stream is raised", async () => {
  const body = { model, messages, max_tokens: ENDLESS, stream: true, tailrace: { deadline_seconds: 0.5 } };
  await assert.rejects(collect(await chat.create(body)), (error) => {
    assert.ok(error instanceof OpenAI.APIError);
    assert.equal(error.code, "deadline_exceeded");
    return true;
  });
});
