/**
 * The log as turns over time. A turn begins when the session wakes and ends when it rests; in between
 * lie the start of the agent, the model's requests, the tools, the retries and the waits for a person, each with its length.
 */

import { answeredCall, CALLS, REWOUND, timeOf, type LogEvent, type ModelUsage } from "./events";

export type BarKind = "wake" | "model" | "tool" | "wait" | "retry";

export interface Bar {
  kind: BarKind;
  id: string;
  label: string;
  from: number;
  to?: number;
  failed?: boolean;
}

export interface Turn {
  number: number;
  title: string;
  from: number;
  to?: number;
  outcome?: string;
  /** Somebody has stopped it. What ran then has not failed. */
  interrupted?: boolean;
  /** The event with which it ended. */
  end?: string;
  bars: Bar[];
  usage: ModelUsage;
  /** What it has cost at list prices, in cents, if that is known. */
  cents?: number;
}

const WAKE = "wake";
const AT_ONCE = 1000; // milliseconds
const NOTHING: ModelUsage = {
  input_tokens: 0,
  output_tokens: 0,
  cache_read_input_tokens: 0,
  cache_creation_input_tokens: 0,
};

export function turnsOf(events: Iterable<LogEvent>): Turn[] {
  const reader = new Reader();
  for (const event of events) reader.take(event);
  return reader.turns;
}

class Reader {
  turns: Turn[] = [];
  private open = new Map<string, Bar>();
  private spent: number | undefined = 0; // cents, up to the last account that was given, if it is known
  private spentBefore: number | undefined = 0; // and when the newest turn began

  take(event: LogEvent): void {
    const at = timeOf(event);
    if (at === undefined) return;
    const turn = this.turns.at(-1);
    if (event.type === "session.status_running") this.wake(at, turn);
    else if (turn !== undefined) this.during(turn, event, at);
  }

  private wake(at: number, turn: Turn | undefined): void {
    this.endRetries(at);
    if (turn !== undefined && turn.to === undefined) return;
    const goesOn = turn?.outcome === "requires_action";
    if (turn !== undefined && goesOn) {
      turn.to = undefined;
      turn.outcome = undefined;
      return;
    }
    const number = this.turns.length + 1;
    const begun: Turn = { number, title: "", from: at, bars: [], usage: { ...NOTHING } };
    this.turns.push(begun);
    this.spentBefore = this.spent;
    this.begin(begun, "wake", WAKE, "start", at);
  }

  private during(turn: Turn, event: LogEvent, at: number): void {
    if (CALLS.has(event.type)) {
      const asks = event.type === "agent.custom_tool_use" || event.evaluated_permission === "ask";
      this.begin(turn, asks ? "wait" : "tool", event.id, event.name ?? "tool", at);
      return;
    }
    switch (event.type) {
      case "user.message":
        turn.title ||= firstLine(event);
        return;
      case "span.model_request_start":
        this.end(WAKE, at, false);
        return this.begin(turn, "model", event.id, "model", at);
      case "span.model_request_end":
        add(turn.usage, event.model_usage);
        return this.end(event.model_request_start_id, at, event.is_error === true && !turn.interrupted);
      case "user.tool_confirmation":
        return this.answered(turn, event, at);
      case "agent.tool_result":
      case "agent.mcp_tool_result":
      case "user.tool_result":
      case "user.custom_tool_result":
        return this.end(answeredCall(event), at, event.is_error === true && !turn.interrupted);
      case "user.interrupt":
        return this.interrupted(turn, at);
      case "roost.forked":
        this.spent = 0; // what is before was another session's, and paid there
        return;
      case REWOUND:
        this.spent = undefined; // the session has paid for turns that are not here
        return;
      case "session.usage":
        return this.account(turn, event);
      case "session.status_rescheduled":
        return this.begin(turn, "retry", event.id, "waiting to try again", at);
      case "session.status_idle":
      case "session.status_terminated":
        return this.rest(turn, event, at);
    }
  }

  private answered(turn: Turn, event: LogEvent, at: number): void {
    const id = event.tool_use_id ?? "";
    const waited = this.open.get(id);
    this.end(id, at, event.result === "deny");
    if (waited !== undefined && event.result === "allow") this.begin(turn, "tool", id, waited.label, at);
  }

  /** The log says what the session has cost in all; a turn's part is what came on top. */
  private account(turn: Turn, event: LogEvent): void {
    const cost = event.usage?.list_cost;
    if (cost === undefined) return;
    this.spent = Number(cost.amount);
    turn.cents = this.spentBefore === undefined ? undefined : this.spent - this.spentBefore;
  }

  /** It may be listed just before what it has stopped is over, or just after. */
  private interrupted(turn: Turn, at: number): void {
    if (turn.to !== undefined && turn.outcome !== "requires_action") return;
    turn.interrupted = true;
    for (const bar of turn.bars) if (bar.to !== undefined && at - bar.to < AT_ONCE) bar.failed = false;
  }

  private begin(turn: Turn, kind: BarKind, id: string, label: string, at: number): void {
    if (kind === "retry") this.endRetries(at);
    const bar: Bar = { kind, id: `${id} ${turn.bars.length}`, label, from: at };
    turn.bars.push(bar);
    this.open.set(id, bar);
  }

  private end(id: string | undefined, at: number, failed: boolean): void {
    const bar = this.open.get(id ?? "");
    if (bar === undefined) return;
    bar.to = at;
    bar.failed = failed;
    this.open.delete(id ?? "");
  }

  private endRetries(at: number): void {
    for (const [id, bar] of this.open) if (bar.kind === "retry") this.end(id, at, false);
  }

  private rest(turn: Turn, event: LogEvent, at: number): void {
    turn.to = at;
    turn.outcome = event.stop_reason?.type ?? "ended";
    if (turn.interrupted && turn.outcome === "end_turn") turn.outcome = "interrupted";
    turn.end = turn.outcome === "requires_action" ? undefined : event.id;
    for (const [id, bar] of this.open) {
      const waits = bar.kind === "wait" && turn.outcome === "requires_action";
      if (!waits) this.end(id, at, bar.kind === "tool" && !turn.interrupted);
    }
  }
}

function add(total: ModelUsage, more: ModelUsage | undefined): void {
  if (more === undefined) return;
  for (const key of Object.keys(total) as (keyof ModelUsage)[]) total[key] += more[key] ?? 0;
}

function firstLine(event: LogEvent): string {
  const blocks = Array.isArray(event.content) ? event.content : [];
  const text = blocks.find((block) => block.text)?.text ?? "";
  return text.split("\n")[0]?.slice(0, 120) ?? "";
}
