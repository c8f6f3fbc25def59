/**
 * A socket to one session that puts up with everything: it reconnects by itself, goes on after the last
 * `seq` it was shown, and sends again, under the same id and in order, whatever was not acknowledged.
 * The server acts on an id once, so nothing is lost and nothing comes twice.
 */

import { Closed } from "./errors.js";
import { read, type Ack, type ErrorMessage, type Input, type NewSession, type SdkMessage, type ServerMessage } from "./messages.js";
import { Seen } from "./seen.js";

export type Connection = "connecting" | "connected" | "waiting" | "closed";

export interface Handlers {
  /** Whatever the server says but acknowledgements, each once and in order. */
  message?: (message: ServerMessage) => void;
  connection?: (state: Connection, retryAt?: number) => void;
  /** The log as it was when the connection was made has been shown. */
  caughtUp?: () => void;
  /** An input is committed. */
  acknowledged?: (ack: Ack, sent?: Input) => void;
  /** An input was refused, and will not be sent again. */
  refused?: (error: ErrorMessage, sent?: Input) => void;
  /** It is over: no connection will be tried any more. */
  closed?: (reason: Closed) => void;
}

/** What was sent and not acknowledged yet. A page keeps it across reloads. */
export interface Outbox {
  load: () => Input[];
  save: (inputs: Input[]) => void;
}

/** As much of a WebSocket as is needed: browsers' own, Node's from 22 on, or the one of the package `ws`. */
export interface WebSocketLike {
  onopen: ((event: never) => void) | null;
  onmessage: ((event: never) => void) | null;
  onclose: ((event: never) => void) | null;
  onerror: ((event: never) => void) | null;
  send: (data: string) => void;
  close: (code?: number) => void;
}

export interface SocketOptions {
  /** The server's address, such as `http://127.0.0.1:8700`. */
  url: string;
  /** A fresh token for each connection. A rejection with a 4xx `status` (but 429) ends it all. */
  token: (sessionId: string | undefined) => Promise<string>;
  handlers: Handlers;
  /** The session; or else what to create one with. */
  sessionId?: string;
  create?: NewSession & { id: string };
  /** Show what came after this `seq`; 0 is the whole log; omitted, begin now. */
  after?: number;
  outbox?: Outbox;
  open?: (address: string) => WebSocketLike;
  /** Milliseconds before the first attempt to come back, and the most before a later one. */
  pauses?: { first: number; longest: number };
}

/** Close codes after which it is no use to come back. */
const FINAL = new Set([1000, 1003, 1007, 1009, 4401, 4404]);
/** The close code after which to come back only after the longest pause. */
const POLICY = 1008;
/** What a refused `start` may say and be tried again all the same. */
const PASSING = new Set(["unavailable", "rate_limited", "internal_error"]);
const TOO_MANY = 429;

export class SessionSocket {
  sessionId: string | undefined;
  /** How many connections there were so far. */
  connections = 0;
  private readonly seen: Seen;
  private readonly pauses: { first: number; longest: number };
  private head = 0;
  private unacknowledged: Input[];
  private socket: WebSocketLike | undefined;
  private started = false;
  private pause: number;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private stopped = false;

  constructor(private readonly options: SocketOptions) {
    this.sessionId = options.sessionId;
    this.seen = new Seen(options.after);
    this.unacknowledged = options.outbox?.load() ?? [];
    this.pauses = options.pauses ?? { first: 250, longest: 15_000 };
    this.pause = this.pauses.first;
    void this.connect();
  }

  /** How far the log was shown; undefined before the first connection of who begins now. */
  get seq(): number | undefined {
    return this.seen.seq;
  }

  /** Send something, now or as soon as there is a connection again. */
  send(input: Input): void {
    this.unacknowledged.push(input);
    this.keep();
    if (this.started) this.socket?.send(JSON.stringify(input));
  }

  /** Try again at once, where it would have waited. */
  hurry(): void {
    if (this.timer === undefined || this.stopped) return;
    clearTimeout(this.timer);
    void this.connect();
  }

  stop(): void {
    clearTimeout(this.timer);
    this.socket?.close(1000);
    this.finish("stopped");
  }

  private async connect(): Promise<void> {
    this.timer = undefined;
    this.options.handlers.connection?.("connecting");
    let token: string;
    try {
      token = await this.options.token(this.sessionId);
    } catch (error) {
      const { status = 0, message } = error as { status?: number; message?: string };
      const refused = status >= 400 && status < 500 && status !== TOO_MANY;
      return refused ? this.finish(message ?? `the server answered ${status}`) : this.later();
    }
    if (!this.stopped) this.listen(this.open(token));
  }

  private open(token: string): WebSocketLike {
    const query = new URLSearchParams({ ...(this.sessionId !== undefined && { sessionId: this.sessionId }), token });
    const address = `${this.options.url.replace(/^http/, "ws").replace(/\/$/, "")}/ws/v2?${query}`;
    return (this.options.open ?? ((url) => new WebSocket(url) as WebSocketLike))(address);
  }

  private listen(socket: WebSocketLike): void {
    this.socket = socket;
    socket.onopen = () => socket.send(JSON.stringify(this.start()));
    socket.onmessage = (event: { data: unknown }) => {
      const message = socket === this.socket ? read(event.data) : undefined;
      if (message !== undefined && !this.stopped) this.take(message);
    };
    socket.onclose = (event: { code: number; reason?: string }) => this.ended(socket, event.code, event.reason);
    socket.onerror = () => undefined; // its close follows
  }

  private start(): object {
    const which = this.sessionId === undefined ? this.options.create : { sessionId: this.sessionId };
    const from = this.seen.seq === undefined ? {} : { after: this.seen.seq };
    return { type: "start", ...which, ...from };
  }

  private take(message: ServerMessage): void {
    if (message.type === "ack") return message.sessionId === undefined ? this.acknowledged(message) : this.begin(message);
    if (message.type === "error" && message.seq === undefined) return this.troubled(message);
    if (!this.seen.isNew(message)) return;
    this.options.handlers.message?.(message);
    if (message.type === "sdk_message") this.caughtUp(message);
  }

  private begin(ack: Ack): void {
    this.started = true;
    this.connections += 1;
    this.pause = this.pauses.first;
    this.sessionId = ack.sessionId;
    this.seen.from(ack.seq);
    this.head = ack.head ?? ack.seq;
    this.options.handlers.connection?.("connected");
    if (ack.seq >= this.head) this.options.handlers.caughtUp?.();
    for (const input of this.unacknowledged) this.socket?.send(JSON.stringify(input));
  }

  private caughtUp(message: SdkMessage): void {
    if (message.seq === this.head) this.options.handlers.caughtUp?.();
  }

  private acknowledged(ack: Ack): void {
    const sent = this.settle(ack.id);
    this.options.handlers.acknowledged?.(ack, sent);
  }

  private troubled(error: ErrorMessage): void {
    if (this.started) {
      const sent = this.settle(error.id);
      return this.options.handlers.refused?.(error, sent);
    }
    if (!PASSING.has(error.code)) this.finish(error.message);
    this.socket?.close(1000);
    if (!this.stopped) this.ended(this.socket, 0);
  }

  /** What was sent under an id, which is not to be sent again. */
  private settle(id: string | undefined): Input | undefined {
    const sent = this.unacknowledged.find((input) => input.id === id);
    this.unacknowledged = this.unacknowledged.filter((input) => input.id !== id);
    this.keep();
    return sent;
  }

  private ended(socket: WebSocketLike | undefined, code: number, reason?: string): void {
    if (socket !== this.socket || this.stopped) return;
    this.socket = undefined;
    this.started = false;
    if (code === POLICY) this.pause = this.pauses.longest;
    if (FINAL.has(code)) this.finish(`closed: ${code} ${reason ?? ""}`.trim());
    else this.later();
  }

  private later(): void {
    if (this.stopped) return;
    const wait = this.pause * (0.5 + Math.random() / 2);
    this.pause = Math.min(this.pause * 2, this.pauses.longest);
    this.timer = setTimeout(() => void this.connect(), wait);
    this.options.handlers.connection?.("waiting", Date.now() + wait);
  }

  private finish(reason: string): void {
    if (this.stopped) return;
    this.stopped = true;
    this.started = false;
    this.options.handlers.connection?.("closed");
    this.options.handlers.closed?.(new Closed(reason));
  }

  private keep(): void {
    this.options.outbox?.save(this.unacknowledged);
  }
}
