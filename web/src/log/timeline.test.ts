import { expect, it } from "vitest";

import type { LogEvent } from "./events";
import { turnsOf } from "./timeline";

const at = (second: number) => new Date(second * 1000).toISOString();
const event = (type: string, second: number, fields: Partial<LogEvent> = {}): LogEvent => ({ id: `${type}${second}`, type, seq: second, processed_at: at(second), ...fields });

it("measures the model, the tools, and how long somebody was waited for", () => {
  const usage = { input_tokens: 10, output_tokens: 2, cache_read_input_tokens: 0, cache_creation_input_tokens: 0 };
  const turns = turnsOf([
    event("session.status_running", 1),
    event("user.message", 1, { content: [{ type: "text", text: "List the files\nplease" }] }),
    event("span.model_request_start", 2, { id: "span" }),
    event("span.model_request_end", 4, { model_request_start_id: "span", model_usage: usage }),
    event("agent.tool_use", 4, { id: "call", name: "bash", evaluated_permission: "ask" }),
    event("session.status_idle", 5, { stop_reason: { type: "requires_action" } }),
    event("session.status_running", 60),
    event("user.tool_confirmation", 60, { tool_use_id: "call", result: "allow" }),
    event("agent.tool_result", 62, { tool_use_id: "call" }),
    event("session.status_idle", 63, { stop_reason: { type: "end_turn" } }),
    event("session.status_running", 100),
  ]);
  expect(turns.length).toBe(2);
  const [first, second] = turns;
  expect(first?.title).toBe("List the files");
  expect(first?.bars.map(({ kind, from, to }) => [kind, (to! - from) / 1000])).toEqual([["wake", 1], ["model", 2], ["wait", 56], ["tool", 2]]);
  expect(first?.outcome).toBe("end_turn");
  expect(first?.usage.input_tokens).toBe(10);
  expect(second?.to).toBeUndefined();
});

const spent = (second: number, cents: number) => event("session.usage", second, { usage: { list_cost: { amount: `${cents}`, currency: "USD" } } });

it("says what each turn has cost, and where it ended", () => {
  const turns = turnsOf([
    event("session.status_running", 1),
    spent(2, 3),
    event("session.status_idle", 3, { stop_reason: { type: "requires_action", event_ids: ["x"] } }),
    event("session.status_running", 4),
    spent(5, 7),
    event("session.status_idle", 6, { id: "end", stop_reason: { type: "end_turn" } }),
    event("session.status_running", 7),
    spent(8, 9),
  ]);
  expect(turns.map(({ cents, end }) => [cents, end])).toEqual([[7, "end"], [2, undefined]]);
});

const over = (second: number) => event("session.status_idle", second, { stop_reason: { type: "end_turn" } });

it("does not charge a turn for what was paid in turns that were rewound, or in another session", () => {
  const before = [event("session.status_running", 1), spent(2, 30), over(3)];
  const later = [event("session.status_running", 10), spent(11, 90), over(12), event("session.status_running", 20), spent(21, 95), over(22)];
  const cost = (events: LogEvent[]) => turnsOf(events).map(({ cents }) => cents);
  expect(cost([...before, event("roost.rewound", 4), ...later])).toEqual([30, undefined, 5]);
  expect(cost([...before, event("roost.forked", 4), event("session.status_running", 10), spent(11, 20)])).toEqual([30, 20]);
});

it.each([[7, 8], [8, 7]])("says that a turn was interrupted, and not that its tool failed (result at %d, interrupt at %d)", (result, interrupt) => {
  const events = [
    event("session.status_running", 1),
    event("agent.tool_use", 2, { id: "call", name: "bash" }),
    event("agent.tool_result", result, { tool_use_id: "call", is_error: true, processed_at: at(7) }),
    event("user.interrupt", interrupt, { processed_at: at(7) }),
    over(9),
  ].sort((one, other) => one.seq - other.seq);
  const [turn] = turnsOf(events);
  expect(turn?.outcome).toBe("interrupted");
  expect(turn?.bars.at(-1)).toMatchObject({ label: "bash", failed: false });
});
