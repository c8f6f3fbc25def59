/** The gateway's messages, both ways, with their fields. What each means is in Roost's docs/gateway.md. */

export type Json = null | boolean | number | string | Json[] | { [field: string]: Json };
export type Fields = Record<string, unknown>;

/** A part of a message's content, such as `{ type: "text", text: "…" }`. */
export interface ContentBlock {
  type: string;
  [field: string]: unknown;
}

/** An event of a session's log, as the API shows it; its other fields depend on its type. */
export interface SessionEvent {
  id: string;
  type: string;
  processed_at: string | null;
  [field: string]: unknown;
}

/* What a client sends. `id` is its own name for a message: sending it again changes nothing. */

export interface Start extends NewSession {
  type: "start";
  id?: string;
  sessionId?: string;
  after?: number;
}

/** What a session is created with: `agent` and `environmentId` are needed. */
export interface NewSession {
  agent?: string | Fields;
  environmentId?: string;
  systemPrompt?: string;
  taskId?: string;
  projectId?: string;
  trustLevel?: "sandboxed" | "vault" | "full";
  workspace?: string;
  mountScope?: string;
  sandboxFallback?: string;
  harness?: string;
  title?: string;
  metadata?: Record<string, string>;
}

export interface UserMessage {
  type: "message";
  content: string | ContentBlock[];
  id: string;
}

export interface PermissionResponse {
  type: "permission_response";
  requestId: string;
  decision: "allow" | "deny";
  message?: string;
  /** The input that the tool is to have instead of the agent's. */
  modifiedInput?: Fields;
  id: string;
}

export interface AskUserAnswer {
  type: "ask_user_answer";
  requestId: string;
  answers: unknown;
  isError?: boolean;
  id: string;
}

export interface Interrupt {
  type: "interrupt";
  id: string;
}

export interface Close {
  type: "close";
}

/** What is acknowledged, and sent again until it is. */
export type Input = UserMessage | PermissionResponse | AskUserAnswer | Interrupt;
export type ClientMessage = Start | Input | Close;

/* What a client is shown. */

/** An input is committed; or, with `sessionId`, the session is at hand, and its log ends at `head`. */
export interface Ack {
  type: "ack";
  seq: number;
  id?: string;
  eventId?: string;
  repeated?: boolean;
  sessionId?: string;
  head?: number;
  /** Fields of a `start` that the session, which was there already, has other values of, and keeps. */
  ignored?: string[];
}

/** An entry of the log. */
export interface SdkMessage {
  type: "sdk_message";
  seq: number;
  message: SessionEvent;
}

export interface StreamStart {
  type: "stream_start";
  messageId: string;
  kind: "message" | "thinking";
}

export interface Chunk {
  type: "chunk";
  messageId: string;
  content: string;
}

/** The text is complete and stands at `seq`; or it is void. */
export interface StreamEnd {
  type: "stream_end";
  messageId: string;
  seq?: number;
  aborted?: boolean;
}

/** The agent rests, and not to ask something. */
export interface Done {
  type: "done";
  seq: number;
  messageId: string | null;
  metadata: { stopReason: string; tokensUsed: number; inputTokens: number; outputTokens: number };
}

/** Something went wrong: with a message of this client (`id`), or in the session (`seq`). */
export interface ErrorMessage {
  type: "error";
  message: string;
  code: string;
  hint?: string;
  id?: string;
  seq?: number;
  retry?: "retrying" | "exhausted" | "terminal";
  retryAfter?: number;
}

export interface ConnectionStatus {
  type: "connection_status";
  status: "connecting" | "connected" | "disconnected";
  sandboxStatus: "connecting" | "connected" | "disconnected";
}

export interface AgentStatus {
  type: "agent_status";
  status: "asleep" | "waking" | "running" | "idle";
  stopReason?: string | null;
}

export interface SessionStatus {
  type: "session_status";
  status: "restore_started" | "restoring" | "restored" | "restore_skipped" | "restore_failed" | "sync_retrying" | "sync_failed" | "sync_recovered";
  progress?: { files: number; ofFiles: number; bytes: number; ofBytes: number };
}

/** A tool call waits for permission. */
export interface ToolPermissionRequest {
  type: "tool_permission_request";
  seq: number;
  requestId: string;
  toolName: string;
  toolInput: Fields;
  serverName?: string;
}

export interface Question {
  question: string;
  header?: string;
  options?: { label: string; description?: string }[];
  multiSelect?: boolean;
}

/** The agent asks; or it calls a custom tool, and `questions` is empty. */
export interface AskUserQuestion {
  type: "ask_user_question";
  seq: number;
  requestId: string;
  questions: Question[];
  toolName: string;
  toolInput: Fields;
}

/** When a task runs by itself: five cron fields, by the clocks of an IANA time zone. */
export interface TaskSchedule {
  type: "cron";
  expression: string;
  timezone: string;
}

/** The agent has changed its task; without a `seq`, and with its schedule, somebody else has. */
export interface TaskUpdated {
  type: "task_updated";
  seq?: number;
  schedule?: TaskSchedule | null;
  pausedReason?: { type: "manual" } | { type: "error"; error: { type: string } } | null;
  taskId: string;
  title: string;
  description: string;
  details: string;
  status: "open" | "running" | "done" | "failed";
}

/** These inputs were withdrawn by an interrupt: the agent never gets them. */
export interface Withdrawn {
  type: "withdrawn";
  seq: number;
  eventIds: string[];
  interruptId: string;
}

export interface MemoryStats {
  type: "memory_stats";
  rss: number | null;
  memoryBytes: number | null;
  processes: number | null;
  cpuSeconds: number | null;
}

export type ServerMessage =
  | Ack
  | SdkMessage
  | StreamStart
  | Chunk
  | StreamEnd
  | Done
  | ErrorMessage
  | ConnectionStatus
  | AgentStatus
  | SessionStatus
  | ToolPermissionRequest
  | AskUserQuestion
  | TaskUpdated
  | MemoryStats
  | Withdrawn;

const KNOWN: Record<ServerMessage["type"], true> = {
  ack: true,
  sdk_message: true,
  stream_start: true,
  chunk: true,
  stream_end: true,
  done: true,
  error: true,
  connection_status: true,
  agent_status: true,
  session_status: true,
  tool_permission_request: true,
  ask_user_question: true,
  task_updated: true,
  memory_stats: true,
  withdrawn: true,
};

/** Every type of message that a server sends. */
export const TYPES = Object.keys(KNOWN) as ServerMessage["type"][];

/** The message in a frame; undefined if it is of a kind that this client does not know. */
export function read(frame: unknown): ServerMessage | undefined {
  const message = JSON.parse(String(frame)) as ServerMessage;
  return Object.hasOwn(KNOWN, message.type) ? message : undefined; // a newer server says more
}
