// What every script here needs: where the system is, and what its simulated engine answers.
import assert from "node:assert/strict";

export const { BASE_URL, OTHER_URL, API_KEY } = process.env;
export const PROMPT = "hello";
export const messages = [{ role: "user", content: PROMPT }];
export const ENDLESS = 1_000_000;

const tokens = process.env.EXPECTED.split(/(?<= )/);

/** The first `count` tokens of the simulated engine's answer to PROMPT. */
export function answer(count) {
  assert.ok(count <= tokens.length);
  return tokens.slice(0, count).join("");
}

/** A request to Tailrace's own API; its JSON. */
export async function tailrace(path, method = "GET") {
  const response = await fetch(`${BASE_URL}${path}`, { method, headers: { Authorization: `Bearer ${API_KEY}` } });
  return response.json();
}

/** The record of a job, once it has the status. */
export async function jobWith(status, id) {
  for (const deadline = Date.now() + 60_000; Date.now() < deadline; ) {
    const job = await tailrace(`/jobs/${id}`);
    if (job.status === status) return job;
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  assert.fail(`job ${id} is not ${status}`);
}

export async function collect(stream) {
  const items = [];
  for await (const item of stream) items.push(item);
  return items;
}

/** The text of a response's events. */
export function spoken(events) {
  return events.map((event) => (event.type === "response.output_text.delta" ? event.delta : "")).join("");
}

/** Fails when the sequence numbers of a response's events are not `from`, `from` + 1, and so on. */
export function contiguous(events, from) {
  assert.deepEqual(
    events.map((event) => event.sequence_number),
    events.map((_, i) => from + i),
  );
}
