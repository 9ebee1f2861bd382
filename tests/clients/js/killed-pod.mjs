// A pod is killed while it streams. DOOMED_URL and DOOMED_PID are its; the answer goes on at another one.
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";
import { API_KEY, BASE_URL, PROMPT, answer, collect, contiguous, messages, spoken } from "./support.mjs";

const TOKENS = 2000;
const client = (baseURL) => new OpenAI({ baseURL, apiKey: API_KEY, maxRetries: 0 });
const [doomed, survivor] = [process.env.DOOMED_URL, BASE_URL].map(client);

/** What the stream told before it broke. The pod is killed after `count` items. */
async function untilKilled(stream, count) {
  const heard = [];
  await assert.rejects(async () => {
    for await (const item of stream) {
      heard.push(item);
      if (heard.length === count) process.kill(Number(process.env.DOOMED_PID), "SIGKILL");
    }
  });
  return heard;
}

test("a background response goes on with the next sequence number", async () => {
  const body = { model: "simulated", input: PROMPT, max_output_tokens: TOKENS, background: true, stream: true };
  const events = await untilKilled(await doomed.responses.create(body), 20);
  const rest = { stream: true, starting_after: events.at(-1).sequence_number };
  events.push(...(await collect(await survivor.responses.retrieve(events[0].response.id, rest))));
  contiguous(events, 0);
  assert.equal(spoken(events), answer(TOKENS));
  assert.equal(events.at(-1).type, "response.incomplete");
});

test("a chat stream that nobody need wait for is read again from its start", async () => {
  const tailrace = { on_disconnect: "continue" };
  const body = { model: "simulated", messages, max_tokens: TOKENS, stream: true, tailrace };
  const [{ id }] = await untilKilled(await doomed.chat.completions.create(body), 20);
  const chunks = await collect(await survivor.get(`/jobs/${id}/events?view=chat`, { stream: true }));
  assert.equal(chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join(""), answer(TOKENS));
});
