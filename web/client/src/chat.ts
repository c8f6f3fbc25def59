/** One session, over as many connections as it takes: promises to send, an iteration to follow. */

import { Closed, HttpError, Refused } from "./errors.js";
import type { Ack, ContentBlock, ErrorMessage, Fields, Input, NewSession, ServerMessage } from "./messages.js";
import { SessionSocket, type Connection, type WebSocketLike } from "./socket.js";

export interface ClientOptions {
  /** The server's address; in a browser by default the page's own. */
  url?: string;
  /** In a browser whose user is logged in, none is needed. */
  apiKey?: string;
  /** Where there is no global one (Node 20): `import { WebSocket } from "ws"`. */
  WebSocket?: new (address: string) => WebSocketLike;
  pauses?: { first: number; longest: number };
}

export interface FollowOptions {
  /** Show what came after this `seq`; 0 is the whole log; omitted, begin now. */
  after?: number;
  onConnection?: (state: Connection) => void;
}

/** A server, and the key to it. */
export class Client {
  private readonly url: string;

  constructor(private readonly options: ClientOptions = {}) {
    const url = options.url ?? (globalThis as { location?: { origin: string } }).location?.origin;
    if (url === undefined) throw new TypeError("url: required outside of a browser");
    this.url = url.replace(/\/$/, "");
  }

  /** Follow a session, or create one and follow it. */
  session(which: string | NewSession, follow: FollowOptions = {}): Chat {
    const Socket = this.options.WebSocket;
    const named = typeof which === "string" ? { sessionId: which } : { create: { ...which, id: mint("start") } };
    return new Chat((handlers) =>
      new SessionSocket({
        ...named,
        url: this.url,
        token: (sessionId) => this.token(sessionId),
        handlers: { ...handlers, ...(follow.onConnection && { connection: follow.onConnection }) },
        ...(follow.after !== undefined && { after: follow.after }),
        ...(Socket && { open: (address: string) => new Socket(address) }),
        ...(this.options.pauses && { pauses: this.options.pauses }),
      }),
    );
  }

  /** A token for one connection, bound to a session if there is one already. */
  async token(sessionId?: string): Promise<string> {
    const query = sessionId === undefined ? "" : `?sessionId=${encodeURIComponent(sessionId)}`;
    const key = this.options.apiKey;
    const response = await fetch(`${this.url}/auth/ws-token${query}`, key === undefined ? {} : { headers: { "x-api-key": key } });
    const answer = (await response.json().catch(() => ({}))) as { token?: string; error?: { message?: string } };
    if (answer.token === undefined) throw new HttpError(response.status, answer.error?.message ?? `the server answered ${response.status}`);
    return answer.token;
  }
}

interface Waiting {
  resolve: (ack: Ack) => void;
  reject: (error: Error) => void;
}

type Open = (handlers: {
  message: (message: ServerMessage) => void;
  acknowledged: (ack: Ack) => void;
  refused: (error: ErrorMessage) => void;
  closed: (reason: Closed) => void;
}) => SessionSocket;

/** A session that is followed. Iterate over it for what happens; what is sent returns once it is committed. */
export class Chat implements AsyncIterable<ServerMessage> {
  private readonly socket: SessionSocket;
  private readonly waiting = new Map<string, Waiting>();
  private readonly shown: ServerMessage[] = [];
  private wake: (() => void) | undefined;
  private over: Closed | undefined;
  private left = false;

  constructor(open: Open) {
    this.socket = open({
      message: (message) => this.show(message),
      acknowledged: (ack) => this.take(ack.id)?.resolve(ack),
      refused: (error) => this.refused(error),
      closed: (reason) => this.end(reason),
    });
  }

  /** The session's id, once there is one. */
  get id(): string | undefined {
    return this.socket.sessionId;
  }

  /** How far the log was shown. */
  get seq(): number | undefined {
    return this.socket.seq;
  }

  /** How many connections it took so far. */
  get connections(): number {
    return this.socket.connections;
  }

  /** Tell the agent something. @throws Refused, Closed */
  send(content: string | ContentBlock[], id = mint("msg")): Promise<Ack> {
    return this.say({ type: "message", content, id });
  }

  /** Let a tool be used, with another input if one is given. @throws Refused if somebody has answered already */
  allow(requestId: string, modifiedInput?: Fields): Promise<Ack> {
    const changed = modifiedInput === undefined ? {} : { modifiedInput };
    return this.say({ type: "permission_response", requestId, decision: "allow", ...changed, id: mint("msg") });
  }

  /** Do not let it. @throws Refused if somebody has answered already */
  deny(requestId: string, message?: string): Promise<Ack> {
    const reason = message === undefined ? {} : { message };
    return this.say({ type: "permission_response", requestId, decision: "deny", ...reason, id: mint("msg") });
  }

  /** Answer a question, or give a custom tool's result. @throws Refused */
  answer(requestId: string, answers: unknown, isError = false): Promise<Ack> {
    return this.say({ type: "ask_user_answer", requestId, answers, isError, id: mint("msg") });
  }

  /** Stop the running turn. @throws Refused */
  interrupt(): Promise<Ack> {
    return this.say({ type: "interrupt", id: mint("msg") });
  }

  /** Stop following. The agent goes on. */
  close(): void {
    this.left = true;
    this.socket.stop();
  }

  /** What happens, from the beginning that was asked for. @throws Closed when it is no use to come back */
  async *[Symbol.asyncIterator](): AsyncGenerator<ServerMessage, void, undefined> {
    for (;;) {
      const message = this.shown.shift();
      if (message !== undefined) yield message;
      else if (this.left) return;
      else if (this.over !== undefined) throw this.over;
      else await new Promise<void>((wake) => (this.wake = wake));
    }
  }

  private say(input: Input): Promise<Ack> {
    if (this.over !== undefined) return Promise.reject(this.over);
    return new Promise((resolve, reject) => {
      this.waiting.set(input.id, { resolve, reject });
      this.socket.send(input);
    });
  }

  private show(message: ServerMessage): void {
    this.shown.push(message);
    this.wake?.();
  }

  private refused(error: ErrorMessage): void {
    const waiting = this.take(error.id);
    if (waiting === undefined) this.show(error);
    else waiting.reject(new Refused(error));
  }

  private take(id: string | undefined): Waiting | undefined {
    const waiting = this.waiting.get(id ?? "");
    this.waiting.delete(id ?? "");
    return waiting;
  }

  private end(reason: Closed): void {
    this.over = reason;
    for (const { reject } of this.waiting.values()) reject(reason);
    this.waiting.clear();
    this.wake?.();
  }
}

/** A name that nobody else gives. */
export function mint(kind: string): string {
  return `${kind}-${crypto.randomUUID()}`;
}
