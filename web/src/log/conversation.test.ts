import { describe, expect, it } from "vitest";

import { after, EMPTY, previewed, type Call, type Conversation, type Said } from "./conversation";
import type { LogEvent } from "./events";

let seq = 0;
function event(type: string, fields: Partial<LogEvent> = {}): LogEvent {
  seq += 1;
  return { id: `e${seq}`, type, seq, processed_at: new Date(seq * 1000).toISOString(), ...fields };
}

const text = (words: string) => [{ type: "text", text: words }];
const shown = (conversation: Conversation) =>
  conversation.items.map((item) => (item.kind === "call" ? `${item.name}:${item.state}` : item.kind === "note" ? item.tone : "text" in item ? item.text : item.kind));

describe("the log as a conversation", () => {
  it("is the same whether events come at once, one by one, or twice", () => {
    const log = [
      event("user.message", { content: text("hello") }),
      event("session.status_running"),
      event("agent.message", { content: text("hi") }),
      event("session.status_idle", { stop_reason: { type: "end_turn" } }),
    ];
    const atOnce = after(EMPTY, log);
    const oneByOne = log.reduce((before, one) => after(before, [one]), EMPTY);
    expect(oneByOne).toEqual(atOnce);
    expect(after(atOnce, log)).toEqual(atOnce);
    expect(shown(atOnce)).toEqual(["hello", "hi", "turn-end"]);
    expect(atOnce.status).toBe("idle");
  });

  it("says of a subagent's text who wrote it, and does not take it for the agent's", () => {
    const log = after(EMPTY, [event("agent.thread_message_received", { from_agent_name: "Explore", content: text("found it") })]);
    expect(log.items).toMatchObject([{ kind: "note", tone: "info", text: "Explore: found it" }]);
  });

  it("moves a queued message to where it was taken up", () => {
    const working = after(EMPTY, [
      event("user.message", { content: text("first") }),
      event("user.message", { id: "q", content: text("second"), processed_at: null }),
      event("agent.message", { content: text("answer") }),
    ]);
    expect(shown(working)).toEqual(["first", "answer", "second"]);
    expect((working.items.at(-1) as Said).queued).toBe(true);
    const taken = after(working, [event("user.message", { id: "q", content: text("second") })]);
    expect(shown(taken)).toEqual(["first", "answer", "second"]);
    expect((taken.items.at(-1) as Said).queued).toBe(false);
  });

  it("replaces a preview by its event and drops one that nothing came of", () => {
    const begun = ["He", "llo"].reduce((before, words) => previewed(before, { event_id: "m", type: "agent.message", text: words }), EMPTY);
    expect(shown(begun)).toEqual(["Hello"]);
    const other = previewed(begun, { event_id: "n", type: "agent.message", text: "Good day" });
    expect(shown(other)).toEqual(["Good day"]);
    const done = after(other, [event("agent.message", { id: "n", content: text("Good day!") })]);
    expect(shown(done)).toEqual(["Good day!"]);
    expect(previewed(done, { event_id: "n", type: "agent.message", text: " late" })).toBe(done);
  });

  it("follows a call from the question to its result", () => {
    const asked = after(EMPTY, [
      event("session.status_running"),
      event("agent.tool_use", { id: "call", name: "bash", input: { command: "ls" }, evaluated_permission: "ask" }),
      event("session.status_idle", { stop_reason: { type: "requires_action", event_ids: ["call"] } }),
    ]);
    expect(shown(asked)).toEqual(["bash:waiting"]);
    expect(asked.waitingFor).toEqual(["call"]);
    const allowed = after(asked, [event("user.tool_confirmation", { tool_use_id: "call", result: "allow" })]);
    expect(shown(allowed)).toEqual(["bash:running"]);
    const done = after(allowed, [event("agent.tool_result", { tool_use_id: "call", content: text("a.txt") })]);
    expect((done.items[0] as Call).output).toBe("a.txt");
    expect(shown(done)).toEqual(["bash:done"]);
  });

  it("shows a call that was cut off as such when the turn is over", () => {
    const log = [event("session.status_running"), event("agent.tool_use", { name: "bash", evaluated_permission: "allow" }), event("session.status_idle", { stop_reason: { type: "end_turn" } })];
    expect(shown(after(EMPTY, log))).toEqual(["bash:unknown", "turn-end"]);
  });

  it("tells retries from failures", () => {
    const error = (type: string) => event("session.error", { error: { type: "model_overloaded_error", message: "overloaded", retry_status: { type } } });
    expect(shown(after(EMPTY, [error("retrying"), error("exhausted")]))).toEqual(["error"]);
  });

  it("shows a call as it was run, and what was asked for, when whoever allowed it has changed it", () => {
    const changed = after(EMPTY, [
      event("agent.tool_use", { id: "call", name: "bash", input: { command: "rm -r ." }, evaluated_permission: "ask" }),
      event("user.tool_confirmation", { tool_use_id: "call", result: "allow", modified_input: { command: "ls" } }),
    ]);
    const [call] = changed.items as Call[];
    expect([call!.input, call!.asked]).toEqual([{ command: "ls" }, { command: "rm -r ." }]);
  });

  it("does not call failed what somebody has interrupted", () => {
    const call = event("agent.tool_use", { id: "call", name: "bash", evaluated_permission: "allow" });
    const cut = (...rest: LogEvent[]) => shown(after(EMPTY, [call, ...rest]))[0];
    const result = () => event("agent.tool_result", { tool_use_id: "call", is_error: true, content: text("rejected") });
    const queued = () => event("user.interrupt", { id: "stop", processed_at: null });
    const gotten = () => event("user.interrupt", { id: "stop" });
    expect(cut(queued(), result(), gotten())).toBe("bash:interrupted");
    expect(cut(gotten(), result())).toBe("bash:interrupted");
    const at = new Date(0).toISOString(); // as a listing shows it: where the agent got it
    expect(cut({ ...result(), processed_at: at }, { ...gotten(), processed_at: at })).toBe("bash:interrupted");
    expect(cut(result(), event("agent.message", { content: text("it failed") }))).toBe("bash:failed");
    expect(cut(queued(), event("session.status_idle", { stop_reason: { type: "end_turn" } }))).toBe("bash:interrupted");
  });

  it("does not count the time that somebody took to decide", () => {
    const asked = [event("agent.tool_use", { id: "call", name: "edit", evaluated_permission: "ask" })];
    seq += 100;
    const allowed = event("user.tool_confirmation", { tool_use_id: "call", result: "allow" });
    const done = event("agent.tool_result", { tool_use_id: "call" });
    const [call] = after(EMPTY, [...asked, allowed, done]).items as Call[];
    expect(call!.endedAt! - call!.startedAt!).toBe(1000);
  });

  it("shows retries as one note, and a failure with what it means as another", () => {
    const error = (type: string) => event("session.error", { error: { type: "model_overloaded_error", message: "Overloaded.", retry_status: { type } } });
    const retried = after(EMPTY, [error("retrying"), error("retrying"), error("retrying")]);
    expect(shown(retried)).toEqual(["retry"]);
    expect(retried.items[0]).toMatchObject({ times: 3, text: "Overloaded." });
    const over = after(retried, [error("exhausted"), event("session.status_idle", { stop_reason: { type: "retries_exhausted" } })]);
    expect(shown(over)).toEqual(["error", "turn-end"]);
    expect(over.items[0]).toMatchObject({ text: "Overloaded. The turn was given up. Send a message to try again." });
    const apart = after(EMPTY, [error("retrying"), event("agent.message", { content: text("hi") }), error("retrying")]);
    expect(shown(apart)).toEqual(["retry", "hi", "retry"]);
  });
});
