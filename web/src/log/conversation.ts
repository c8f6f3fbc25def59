/**
 * The log as a conversation. A fold: the same events in the same order always give the same picture,
 * so a page that was reloaded, or cut off and resumed after the newest `seq` it had, shows what any
 * other shows. An event that comes twice changes nothing.
 */

import {
  answeredCall,
  CALLS,
  REWOUND,
  textOf,
  timeOf,
  type Block,
  type LogEvent,
  type Preview,
  type SessionUsage,
} from "./events";
import { sentence } from "../parts/words";

export type CallState = "running" | "waiting" | "done" | "failed" | "denied" | "interrupted" | "unknown";

export interface Said {
  kind: "user" | "agent";
  id: string;
  text: string;
  images: Block[];
  at?: number;
  clientId?: string;
  queued: boolean;
  withdrawn?: boolean;
  streaming: boolean;
}

export interface Thought {
  kind: "thinking";
  id: string;
}

export interface Call {
  kind: "call";
  id: string;
  name: string;
  server?: string;
  custom: boolean;
  input: Record<string, unknown>;
  /** What the agent had asked for, if whoever allowed it has changed that. */
  asked?: Record<string, unknown>;
  state: CallState;
  output?: string;
  /** What its result shows besides text. */
  images?: Block[];
  startedAt?: number;
  endedAt?: number;
  /** Somebody has asked for the turn to stop while the call was open. */
  stopped?: boolean;
}

export interface Note {
  kind: "note";
  id: string;
  tone: "error" | "retry" | "info";
  text: string;
  /** How often in a row it was tried, or tried again. */
  times?: number;
}

/** Where a turn is over: a place to fork at, or to go back to. */
export interface TurnEnd {
  kind: "turn-end";
  id: string;
  eventId: string;
}

export type Item = Said | Thought | Call | Note | TurnEnd;
export type Status = "idle" | "running" | "rescheduling" | "terminated";

export interface Conversation {
  items: Item[];
  head: number;
  status: Status;
  stopReason?: string;
  waitingFor: string[];
  usage?: SessionUsage;
}

export const EMPTY: Conversation = { items: [], head: 0, status: "idle", waitingFor: [] };

const STATUS: Record<string, Status> = {
  "session.status_running": "running",
  "session.status_rescheduled": "rescheduling",
  "session.status_idle": "idle",
  "session.status_terminated": "terminated",
};

const AT_ONCE = 1000; // milliseconds

const REASONS: Record<string, string> = {
  retries_exhausted: "The turn was given up. Send a message to try again.",
  refusal: "The model declined to answer.",
  budget_reached: "The session has used up its budget.",
};

/** The conversation after some more events of the log. */
export function after(before: Conversation, events: Iterable<LogEvent>): Conversation {
  const next: Conversation = { ...before, items: [...before.items] };
  for (const event of events) {
    if (event.seq <= next.head) continue;
    next.head = event.seq;
    take(next, event);
  }
  return next;
}

/** Show text that is still being written. */
export function previewed(before: Conversation, preview: Preview): Conversation {
  if (preview.type !== "agent.message") return before;
  const at = before.items.findIndex((item) => item.id === preview.event_id);
  const known = before.items[at];
  if (known?.kind === "agent" && !known.streaming) return before;
  const items = [...before.items];
  if (known?.kind === "agent") {
    items[at] = { ...known, text: known.text + preview.text };
  } else {
    // One answer is written at a time: an older preview was void if nothing came of it.
    const voided = items.filter((item) => !(item.kind === "agent" && item.streaming));
    return { ...before, items: [...voided, said(preview.event_id, "agent", preview.text, true)] };
  }
  return { ...before, items };
}

function take(state: Conversation, event: LogEvent): void {
  const status = STATUS[event.type];
  if (status !== undefined) return moved(state, event, status);
  if (CALLS.has(event.type)) return put(state, called(event));
  switch (event.type) {
    case "user.message":
      return put(state, { ...heard(event, "user"), clientId: event.client_id, queued: event.processed_at === null, withdrawn: event.withdrawn_at !== undefined });
    case "agent.message":
      return put(state, heard(event, "agent"));
    case "agent.thread_message_received":
      return put(state, note(event, "info", `${event.from_agent_name ?? "A subagent"}: ${textOf(event.content)}`));
    case "agent.thinking":
      return put(state, { kind: "thinking", id: event.id });
    case "agent.tool_result":
    case "agent.mcp_tool_result":
    case "user.tool_result":
    case "user.custom_tool_result":
      return returned(state, event);
    case "user.tool_confirmation":
      return event.withdrawn_at === undefined ? confirmed(state, event) : undefined;
    case "user.interrupt":
      return interrupted(state, event);
    case "agent.thread_context_compacted":
      return put(state, note(event, "info", "The conversation grew long and was summarised."));
    case REWOUND:
      return put(state, note(event, "info", `The session went back to the end of turn ${event.to?.turn}${event.files ? ", and its files with it" : "; its files stay as they are"}.`));
    case "roost.forked":
      return put(state, note(event, "info", `This session was forked off another one here${event.files === false ? ", and shares its workspace" : ""}.`));
    case "session.error":
      return troubled(state, event);
    case "session.usage":
      state.usage = event.usage;
  }
}

/** A queued message is shown where it was sent until it is taken up, then where that happened. */
function put(state: Conversation, item: Item): void {
  const at = state.items.findIndex((known) => known.id === item.id);
  if (at >= 0) state.items.splice(at, 1);
  if (item.kind === "agent") dropPreviews(state);
  const queued = state.items.findIndex((known) => known.kind === "user" && known.queued);
  if (queued >= 0 && !(item.kind === "user" && item.queued)) state.items.splice(queued, 0, item);
  else state.items.push(item);
}

function dropPreviews(state: Conversation): void {
  state.items = state.items.filter((item) => !(item.kind === "agent" && item.streaming));
}

function moved(state: Conversation, event: LogEvent, status: Status): void {
  state.status = status;
  state.stopReason = event.stop_reason?.type;
  state.waitingFor = event.stop_reason?.event_ids ?? [];
  if (status === "running") return;
  dropPreviews(state);
  const reason = REASONS[state.stopReason ?? ""];
  if (reason !== undefined) explain(state, event, reason);
  if (status === "terminated") put(state, note(event, "info", "This session has ended."));
  if (status === "idle" && state.stopReason !== "requires_action") {
    closeOpenCalls(state);
    put(state, { kind: "turn-end", id: `${event.id} end`, eventId: event.id });
  }
}

/** When a turn is over nothing of it runs any more; what had no result was cut off. */
function closeOpenCalls(state: Conversation): void {
  state.items = state.items.map((item) =>
    item.kind === "call" && (item.state === "running" || item.state === "waiting")
      ? { ...item, state: item.stopped ? "interrupted" : "unknown" }
      : item,
  );
}

/** What runs when somebody interrupts does not fail: it is stopped, and says so in its result. */
function interrupted(state: Conversation, event: LogEvent): void {
  const now = timeOf(event);
  state.items = state.items.map((item) => {
    if (item.kind !== "call") return item;
    if (item.state === "running" || item.state === "waiting") return { ...item, stopped: true };
    // A listing shows the interrupt where the agent got it, which is just after the result.
    const cut = item.state === "failed" && now !== undefined && item.endedAt !== undefined && Math.abs(now - item.endedAt) < AT_ONCE;
    return cut ? { ...item, state: "interrupted" } : item;
  });
  if (event.processed_at !== null) put(state, note(event, "info", "Interrupted"));
}

function called(event: LogEvent): Call {
  const custom = event.type === "agent.custom_tool_use";
  const asks = custom || event.evaluated_permission === "ask";
  const denied = event.evaluated_permission === "deny";
  return {
    kind: "call",
    id: event.id,
    name: event.name ?? "tool",
    server: event.mcp_server_name,
    custom,
    input: event.input ?? {},
    state: denied ? "denied" : asks ? "waiting" : "running",
    startedAt: timeOf(event),
  };
}

function returned(state: Conversation, event: LogEvent): void {
  changeCall(state, answeredCall(event), (call) => ({
    ...call,
    state: call.state === "denied" ? "denied" : !event.is_error ? "done" : call.stopped ? "interrupted" : "failed",
    output: textOf(wordsOf(event)),
    images: imagesOf(event),
    endedAt: timeOf(event),
  }));
}

function confirmed(state: Conversation, event: LogEvent): void {
  changeCall(state, event.tool_use_id, (call) => ({
    ...call,
    ...(event.modified_input !== undefined && { input: event.modified_input, asked: call.asked ?? call.input }),
    state: event.result === "allow" ? "running" : "denied",
    // How long somebody took to decide is not how long the tool took.
    startedAt: timeOf(event) ?? call.startedAt,
    output: event.result === "deny" ? (event.deny_message ?? undefined) : call.output,
  }));
}

function changeCall(state: Conversation, id: string | undefined, change: (call: Call) => Call): void {
  state.items = state.items.map((item) =>
    item.kind === "call" && item.id === id ? change(item) : item,
  );
}

function troubled(state: Conversation, event: LogEvent): void {
  const retry = event.error?.retry_status?.type === "retrying";
  const text = sentence(event.error?.message ?? "something went wrong");
  const before = newest(state);
  const again = before?.kind === "note" && before.tone === "retry" ? before : undefined;
  if (again !== undefined) state.items.splice(state.items.indexOf(again), 1);
  put(state, { ...note(event, retry ? "retry" : "error", text), times: (again?.times ?? 0) + 1 });
}

/** Why the session rests: of an error that was just shown, the end; otherwise a note of its own. */
function explain(state: Conversation, event: LogEvent, reason: string): void {
  const before = newest(state);
  if (before?.kind === "note" && before.tone === "error") state.items[state.items.indexOf(before)] = { ...before, text: `${before.text} ${reason}` };
  else put(state, note(event, "error", reason));
}

/** The last of what has happened; messages that still wait come after it. */
function newest(state: Conversation): Item | undefined {
  return state.items.findLast((item) => !(item.kind === "user" && item.queued));
}

function note(event: LogEvent, tone: Note["tone"], text: string): Note {
  return { kind: "note", id: event.id, tone, text };
}

function heard(event: LogEvent, kind: "user" | "agent"): Said {
  return { ...said(event.id, kind, textOf(wordsOf(event)), false), images: imagesOf(event), at: timeOf(event) };
}

function wordsOf({ content }: LogEvent): LogEvent["content"] {
  return Array.isArray(content) ? content.filter((block) => block.type !== "image") : content;
}

function imagesOf({ content }: LogEvent): Block[] {
  return Array.isArray(content) ? content.filter((block) => block.type === "image") : [];
}

function said(id: string, kind: "user" | "agent", text: string, streaming: boolean): Said {
  return { kind, id, text, images: [], queued: false, streaming };
}
