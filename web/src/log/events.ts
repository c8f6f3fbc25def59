/** The log's events, as far as the app looks into them. Whatever else they hold is passed over. */

export interface Block {
  type: string;
  text?: string;
  [more: string]: unknown;
}

export interface LogEvent {
  id: string;
  type: string;
  seq: number;
  processed_at: string | null;
  /** Of an input: the id under which its client sent it. */
  client_id?: string;
  /** Of an input: an interrupt came before the agent got it, and it never will. */
  withdrawn_at?: string;
  content?: Block[] | string;
  /** Of a subagent's message: what kind of agent says it. */
  from_agent_name?: string;
  name?: string;
  input?: Record<string, unknown>;
  evaluated_permission?: "allow" | "ask" | "deny";
  mcp_server_name?: string;
  tool_use_id?: string;
  mcp_tool_use_id?: string;
  custom_tool_use_id?: string;
  result?: "allow" | "deny";
  deny_message?: string | null;
  modified_input?: Record<string, unknown>;
  is_error?: boolean | null;
  stop_reason?: { type: string; event_ids?: string[] };
  error?: { type: string; message: string; retry_status?: { type: string } };
  model_request_start_id?: string;
  model_usage?: ModelUsage;
  usage?: SessionUsage;
  /** Of a rewind: the event that the conversation goes on after, and whether the files went back too. */
  to?: { event_id: string; seq: number; turn: number };
  files?: boolean;
}

export interface ModelUsage {
  input_tokens: number;
  output_tokens: number;
  cache_read_input_tokens: number;
  cache_creation_input_tokens: number;
}

/** An amount in the smallest unit of its currency: cents. */
export interface Money {
  amount: string;
  currency: string;
}

export interface SessionUsage {
  input_tokens?: number;
  output_tokens?: number;
  cache_read_input_tokens?: number;
  active_seconds?: number;
  /** There once something has cost something, where the operator has set prices. */
  list_cost?: Money;
}

/** Text of an event to come. Never stored; the event with the same id is the truth. */
export interface Preview {
  event_id: string;
  type: string;
  text: string;
}

export const REWOUND = "roost.rewound";
export const CALLS = new Set(["agent.tool_use", "agent.mcp_tool_use", "agent.custom_tool_use"]);

/** The id of the call that an event answers, if it answers one. */
export function answeredCall(event: LogEvent): string | undefined {
  return event.custom_tool_use_id ?? event.mcp_tool_use_id ?? event.tool_use_id;
}

export function textOf(content: LogEvent["content"]): string {
  if (content === undefined) return "";
  if (typeof content === "string") return content;
  return content
    .map((block) => block.text ?? `[${block.type}]`)
    .join("\n")
    .trim();
}

export function timeOf(event: LogEvent): number | undefined {
  return event.processed_at === null ? undefined : Date.parse(event.processed_at);
}
