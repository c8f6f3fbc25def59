/**
 * A socket to one session that puts up with everything: it reconnects by itself, goes on after the last
 * `seq` it was shown, and sends again, under the same id and in order, whatever was not acknowledged.
 * The server acts on an id once, so nothing is lost and nothing comes twice.
 */

import type { LogEvent, Preview } from "../log/events";

export type Connection = "connecting" | "connected" | "waiting" | "closed";

export interface Frame {
  type: string;
  [field: string]: unknown;
}

export interface Outgoing extends Frame {
  id: string;
}

export interface Handlers {
  /** An entry of the log. Each comes once, in order. */
  event: (event: LogEvent) => void;
  /** Text that is still being written. */
  preview: (preview: Preview) => void;
  /** Anything else the server says, such as `agent_status`. */
  other: (frame: Frame) => void;
  connection: (state: Connection, retryAt?: number) => void;
  /** The log as it was when the session was opened has been shown. */
  caughtUp: () => void;
  /** A message of ours was refused, and will not be sent again. */
  refused: (frame: Frame, sent?: Outgoing) => void;
}

/** What was sent and not acknowledged yet. Kept across reloads of a page. */
export interface Outbox {
  load: () => Outgoing[];
  save: (frames: Outgoing[]) => void;
}

export interface Options {
  sessionId: string;
  handlers: Handlers;
  outbox?: Outbox;
  after?: number;
  token: () => Promise<string>;
  open?: (address: string) => WebSocket;
}

const FINAL = new Set([1000, 1003, 1007, 1008, 1009, 4401, 4404]);
const FIRST_PAUSE = 250;
const LONGEST_PAUSE = 15_000;

export class SessionSocket {
  private seq: number;
  private head = 0;
  private unacknowledged: Outgoing[];
  private socket?: WebSocket;
  private started = false;
  private pause = FIRST_PAUSE;
  private timer?: ReturnType<typeof setTimeout>;
  private stopped = false;

  constructor(private readonly options: Options) {
    this.seq = options.after ?? 0;
    this.unacknowledged = options.outbox?.load() ?? [];
    void this.connect();
  }

  /** Send something, now or as soon as there is a connection again. */
  send(frame: Outgoing): void {
    this.unacknowledged.push(frame);
    this.keep();
    if (this.started) this.socket?.send(JSON.stringify(frame));
  }

  /** Try again at once, where it would have waited. */
  hurry(): void {
    if (this.timer === undefined || this.stopped) return;
    clearTimeout(this.timer);
    void this.connect();
  }

  stop(): void {
    this.stopped = true;
    clearTimeout(this.timer);
    this.socket?.close(1000);
  }

  private async connect(): Promise<void> {
    this.timer = undefined;
    this.options.handlers.connection("connecting");
    let token: string;
    try {
      token = await this.options.token();
    } catch (error) {
      if ((error as { status?: number }).status === 401) return this.finish();
      return this.later();
    }
    if (this.stopped) return;
    const query = new URLSearchParams({ sessionId: this.options.sessionId, token });
    const address = `${location.origin.replace(/^http/, "ws")}/ws/v2?${query}`;
    const socket = (this.options.open ?? ((url) => new WebSocket(url)))(address);
    this.socket = socket;
    socket.onopen = () => socket.send(JSON.stringify({ type: "start", after: this.seq }));
    socket.onmessage = (message) => this.take(JSON.parse(String(message.data)) as Frame);
    socket.onclose = (event) => this.closed(socket, event.code);
  }

  private take(frame: Frame): void {
    const { handlers } = this.options;
    switch (frame.type) {
      case "sdk_message": {
        const seq = Number(frame.seq);
        if (seq <= this.seq) return;
        this.seq = seq;
        handlers.event({ ...(frame.message as LogEvent), seq });
        if (seq >= this.head) handlers.caughtUp();
        return;
      }
      case "stream_start":
        return handlers.preview({ event_id: String(frame.messageId), type: kindOf(frame), text: "" });
      case "chunk":
        return handlers.preview({
          event_id: String(frame.messageId),
          type: "agent.message",
          text: String(frame.content),
        });
      case "ack":
        if (frame.sessionId !== undefined) this.begin(Number(frame.head));
        else this.acknowledged(String(frame.id));
        return;
      case "error":
        return this.troubled(frame);
      default:
        return handlers.other(frame);
    }
  }

  private begin(head: number): void {
    this.started = true;
    this.pause = FIRST_PAUSE;
    this.head = head;
    this.options.handlers.connection("connected");
    if (this.seq >= head) this.options.handlers.caughtUp();
    for (const frame of this.unacknowledged) this.socket?.send(JSON.stringify(frame));
  }

  private acknowledged(id: string): Outgoing | undefined {
    const sent = this.unacknowledged.find((frame) => frame.id === id);
    this.unacknowledged = this.unacknowledged.filter((frame) => frame.id !== id);
    this.keep();
    return sent;
  }

  private troubled(frame: Frame): void {
    if (frame.seq !== undefined) return; // it is from the log, and comes as an event, too
    const sent = frame.id === undefined ? undefined : this.acknowledged(String(frame.id));
    this.options.handlers.refused(frame, sent);
  }

  private closed(socket: WebSocket, code: number): void {
    if (socket !== this.socket) return;
    this.started = false;
    if (this.stopped || FINAL.has(code)) this.finish();
    else this.later();
  }

  private later(): void {
    const wait = this.pause * (0.5 + Math.random() / 2);
    this.pause = Math.min(this.pause * 2, LONGEST_PAUSE);
    this.timer = setTimeout(() => void this.connect(), wait);
    this.options.handlers.connection("waiting", Date.now() + wait);
  }

  private finish(): void {
    this.stopped = true;
    this.options.handlers.connection("closed");
  }

  private keep(): void {
    this.options.outbox?.save(this.unacknowledged);
  }
}

function kindOf(frame: Frame): string {
  return frame.kind === "thinking" ? "agent.thinking" : "agent.message";
}
