// The Vercel AI SDK: its provider for OpenAI-compatible servers, and OpenAI's own, which uses the Responses API.
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, Output, generateText, stepCountIs, streamText, tool } from "ai";
import assert from "node:assert/strict";
import { test } from "node:test";
import { z } from "zod";
import { API_KEY, BASE_URL, ENDLESS, PROMPT, answer, collect, jobWith } from "./support.mjs";

const provider = createOpenAICompatible({
  name: "tailrace",
  baseURL: BASE_URL,
  apiKey: API_KEY,
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const model = provider("simulated");
const echo = provider("echo");
const openai = createOpenAI({ baseURL: BASE_URL, apiKey: API_KEY });

const forecast = tool({
  description: "The weather of the coming days.",
  inputSchema: z.object({ city: z.string(), days: z.number() }),
  execute: async ({ city, days }) => `${days} days of rain in ${city}`,
});

test("generateText", async () => {
  const { text, finishReason, usage } = await generateText({ model, prompt: PROMPT, maxOutputTokens: 20 });
  assert.equal(text, answer(20));
  assert.equal(finishReason, "length");
  assert.equal(usage.outputTokens, 20);
});

test("streamText", async () => {
  const result = streamText({ model, prompt: PROMPT, maxOutputTokens: 50 });
  const pieces = await collect(result.textStream);
  assert.ok(pieces.length > 1);
  assert.equal(pieces.join(""), answer(50));
  assert.equal(await result.finishReason, "length");
  assert.equal((await result.usage).outputTokens, 50);
});

test("an abort signal cancels the job", async () => {
  const controller = new AbortController();
  const asked = { model, prompt: PROMPT, maxOutputTokens: ENDLESS, includeRawChunks: true };
  const result = streamText({ ...asked, abortSignal: controller.signal });
  let id;
  const kinds = [];
  for await (const part of result.fullStream) {
    kinds.push(part.type);
    if (part.type === "raw") id ??= part.rawValue.id;
    if (part.type === "text-delta") controller.abort();
  }
  assert.equal(kinds.at(-1), "abort");
  await jobWith("cancelled", id);
});

test("a tool is called and its answer is used", async () => {
  const result = streamText({
    model: echo,
    prompt: '{"city": "Paris", "days": 3}',
    tools: { forecast },
    stopWhen: stepCountIs(2),
  });
  assert.equal((await collect(result.textStream)).join(""), "3 days of rain in Paris");
  const [step] = await result.steps;
  assert.deepEqual(step.toolCalls.map((call) => call.input), [{ city: "Paris", days: 3 }]);
});

test("calls of several tools do not mix", async () => {
  const tools = { forecast, other: { ...forecast, execute: undefined } };
  const { toolCalls } = await generateText({ model: echo, prompt: '{"city": "Rome", "days": 12}', tools });
  const input = { city: "Rome", days: 12 };
  assert.deepEqual(toolCalls.map((call) => [call.toolName, call.input]), [["forecast", input], ["other", input]]);
});

test("structured output", async () => {
  const output = Output.object({ schema: z.object({ city: z.string() }) });
  const result = await generateText({ model: echo, prompt: '{"city": "Paris"}', output });
  assert.deepEqual(result.output, { city: "Paris" });
});

test("reasoning is apart from the answer", async () => {
  const providerOptions = { tailrace: { reasoningEffort: "medium" } };
  const result = streamText({ model: echo, prompt: "said", providerOptions });
  assert.equal((await collect(result.textStream)).join(""), "said");
  assert.equal(await result.reasoningText, "medium");
});

test("errors keep their status and code", async () => {
  await assert.rejects(generateText({ model: provider("missing"), prompt: PROMPT, maxRetries: 0 }), (error) => {
    assert.ok(APICallError.isInstance(error));
    assert.equal(error.statusCode, 404);
    assert.equal(error.isRetryable, false);
    assert.equal(error.data.error.code, "model_not_found");
    return true;
  });
});

test("Responses: generateText and streamText", async () => {
  const asked = { model: openai("simulated"), prompt: PROMPT, maxOutputTokens: 50 };
  const whole = await generateText(asked);
  assert.equal(whole.text, answer(50));
  assert.equal(whole.finishReason, "length");
  assert.equal(whole.usage.outputTokens, 50);
  const streamed = streamText(asked);
  assert.equal((await collect(streamed.textStream)).join(""), answer(50));
  assert.equal((await streamed.usage).outputTokens, 50);
});

test("Responses: a tool is called and its answer is used", async () => {
  const result = streamText({
    model: openai("echo"),
    prompt: '{"city": "Paris", "days": 3}',
    tools: { forecast },
    stopWhen: stepCountIs(2),
  });
  assert.equal((await collect(result.textStream)).join(""), "3 days of rain in Paris");
  const [step] = await result.steps;
  assert.deepEqual(step.toolCalls.map((call) => call.input), [{ city: "Paris", days: 3 }]);
});

test("Responses: structured output", async () => {
  const output = Output.object({ schema: z.object({ city: z.string() }) });
  const result = await generateText({ model: openai("echo"), prompt: '{"city": "Paris"}', output });
  assert.deepEqual(result.output, { city: "Paris" });
});
