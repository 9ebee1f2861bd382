// OpenAI's JavaScript SDK: the Responses API.
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";
import { API_KEY, BASE_URL, ENDLESS, OTHER_URL, PROMPT } from "./support.mjs";
import { answer, collect, contiguous, jobWith, spoken } from "./support.mjs";

const [client, other] = [BASE_URL, OTHER_URL].map((baseURL) => new OpenAI({ baseURL, apiKey: API_KEY, maxRetries: 0 }));
const asked = { model: "simulated", input: PROMPT, max_output_tokens: 50 };
const forecast = { type: "function", name: "forecast", parameters: { type: "object" }, strict: false };

/** The response once it has ended, polled at a pod that did not create it. */
async function ended(id) {
  for (;;) {
    const response = await other.responses.retrieve(id);
    if (!["queued", "in_progress"].includes(response.status)) return response;
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

test("a whole response", async () => {
  const response = await client.responses.create(asked);
  assert.equal(response.output_text, answer(50));
  assert.equal(response.status, "incomplete");
  assert.equal(response.incomplete_details.reason, "max_output_tokens");
  assert.equal(response.usage.output_tokens, 50);
});

test("a streamed response has every number once", async () => {
  const events = await collect(await client.responses.create({ ...asked, stream: true }));
  contiguous(events, 0);
  assert.equal(spoken(events), answer(50));
  assert.equal(events[0].type, "response.created");
  assert.equal(events.at(-1).type, "response.incomplete");
});

test("the stream helper's final response", async () => {
  const final = await client.responses.stream(asked).finalResponse();
  assert.equal(final.output_text, answer(50));
  assert.equal(final.usage.output_tokens, 50);
});

test("an aborted stream cancels the job", async () => {
  const stream = await client.responses.create({ ...asked, max_output_tokens: ENDLESS, stream: true });
  let id;
  for await (const event of stream) {
    id ??= event.response.id;
    if (event.type === "response.output_text.delta") break;
  }
  await jobWith("cancelled", id);
});

test("a background response is polled until it has ended", async () => {
  const response = await client.responses.create({ ...asked, background: true });
  assert.ok(["queued", "in_progress"].includes(response.status));
  const last = await ended(response.id);
  assert.equal(last.status, "incomplete");
  assert.equal(last.output_text, answer(50));
});

test("a background response is cancelled from another pod, twice", async () => {
  const { id } = await client.responses.create({ ...asked, max_output_tokens: ENDLESS, background: true });
  for (const pod of [other, client]) assert.equal((await pod.responses.cancel(id)).status, "cancelled");
  assert.equal((await client.responses.retrieve(id)).status, "cancelled");
});

test("a background stream goes on at another pod", async () => {
  const body = { ...asked, max_output_tokens: 400, background: true, stream: true };
  const events = [];
  for await (const event of await client.responses.create(body)) {
    events.push(event);
    if (events.length === 20) break;
  }
  const { id } = events[0].response;
  const rest = { stream: true, starting_after: events.at(-1).sequence_number };
  events.push(...(await collect(await other.responses.retrieve(id, rest))));
  contiguous(events, 0);
  assert.equal(spoken(events), answer(400));
});

test("the stream helper follows a background response by its id", async () => {
  const stream = await client.responses.create({ ...asked, background: true, stream: true });
  const { id } = (await stream[Symbol.asyncIterator]().next()).value.response;
  const numbers = [];
  const helper = other.responses.stream({ response_id: id, starting_after: 10 });
  helper.on("event", (event) => numbers.push(event.sequence_number));
  assert.equal((await helper.finalResponse()).output_text, answer(50));
  assert.equal(numbers[0], 11);
});

test("a function is called and its output is used", async () => {
  const body = { model: "echo", input: '{"city": "Paris"}', tools: [forecast] };
  const called = await client.responses.stream(body).finalResponse();
  const [call] = called.output;
  assert.deepEqual([call.type, call.name, call.arguments], ["function_call", "forecast", '{"city": "Paris"}']);
  const output = { type: "function_call_output", call_id: call.call_id, output: "rain" };
  const next = { ...body, previous_response_id: called.id, input: [output] };
  assert.equal((await other.responses.create(next)).output_text, "rain");
  const whole = { ...body, input: [{ role: "user", content: body.input }, call, output] };
  assert.equal((await other.responses.create(whole)).output_text, "rain");
});

test("reasoning is an item of its own", async () => {
  const body = { model: "echo", input: "said", reasoning: { effort: "medium" } };
  const { output, output_text } = await client.responses.stream(body).finalResponse();
  assert.deepEqual(output.map((item) => item.type), ["reasoning", "message"]);
  assert.equal(output[0].content[0].text, "medium");
  assert.equal(output_text, "said");
});

test("structured output", async () => {
  const schema = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
  const format = { type: "json_schema", name: "trip", schema };
  const response = await client.responses.parse({ model: "echo", input: '{"city": "Paris"}', text: { format } });
  assert.deepEqual(response.output_parsed, { city: "Paris" });
});

test("input items and deletion", async () => {
  const { id } = await client.responses.create(asked);
  const items = await collect(other.responses.inputItems.list(id));
  assert.deepEqual(items.map((item) => item.content), [[{ type: "input_text", text: PROMPT }]]);
  await other.responses.delete(id);
  await assert.rejects(client.responses.retrieve(id), OpenAI.NotFoundError);
});

test("errors have OpenAI's classes and name the parameter", async () => {
  await assert.rejects(client.responses.create({ ...asked, model: "missing" }), (error) => {
    assert.ok(error instanceof OpenAI.NotFoundError);
    assert.equal(error.code, "model_not_found");
    return true;
  });
  await assert.rejects(client.responses.create({ ...asked, max_output_tokens: 0 }), (error) => {
    assert.ok(error instanceof OpenAI.BadRequestError);
    assert.equal(error.param, "max_output_tokens");
    return true;
  });
});
