/** A server for tests, as a socket sees it: it keeps a log, and may break any connection. */

import type { Input, ServerMessage, Start } from "./messages.js";
import type { WebSocketLike } from "./socket.js";

export class FakeServer {
  readonly log: { seq: number; text: string }[] = [];
  readonly lines: FakeLine[] = [];
  readonly ids = new Map<string, number>();
  /** How many frames the next connection takes in before it breaks. */
  breaksAfter = Infinity;
  tokens = 0;
  /** The code with which it refuses each start. */
  refuseStart: string | undefined;
  refuseTokens: { status: number; message: string } | undefined;

  readonly token = async (): Promise<string> => {
    this.tokens += 1;
    if (this.refuseTokens) throw this.refuseTokens;
    return `token-${this.tokens}`;
  };

  readonly open = (address: string): FakeLine => {
    const line = new FakeLine(this, address, this.breaksAfter);
    this.lines.push(line);
    return line;
  };

  get line(): FakeLine {
    return this.lines.at(-1)!;
  }

  append(text: string): number {
    const seq = this.log.length + 1;
    this.log.push({ seq, text });
    for (const line of this.lines) line.showFrom(seq - 1);
    return seq;
  }
}

export class FakeLine implements WebSocketLike {
  onopen: ((event: never) => void) | null = null;
  onmessage: ((event: never) => void) | null = null;
  onclose: ((event: never) => void) | null = null;
  onerror: ((event: never) => void) | null = null;
  readonly heard: (Start | Input)[] = [];
  private closed = false;
  private following = false;

  constructor(
    private readonly server: FakeServer,
    readonly address: string,
    private patience: number,
  ) {
    queueMicrotask(() => this.onopen?.({} as never));
  }

  send(data: string): void {
    if (this.closed) return;
    const word = JSON.parse(data) as Start | Input;
    this.heard.push(word);
    if (word.type === "start") this.start(word);
    else this.take(word);
    this.patience -= 1;
    if (this.patience <= 0) this.break(1006);
  }

  close(code = 1005): void {
    this.break(code);
  }

  break(code: number, reason = ""): void {
    if (this.closed) return;
    this.closed = true;
    queueMicrotask(() => this.onclose?.({ code, reason } as never));
  }

  show(message: ServerMessage | { type: string }): void {
    if (!this.closed) this.onmessage?.({ data: JSON.stringify(message) } as never);
  }

  showFrom(after: number): void {
    if (!this.following) return;
    for (const { seq, text } of this.server.log.slice(after)) {
      const message = { type: "user.message", id: `e${seq}`, processed_at: "2026-01-01T00:00:00Z", content: text };
      this.show({ type: "sdk_message", seq, message });
    }
  }

  private start(word: Start): void {
    const code = this.server.refuseStart;
    if (code !== undefined) return this.show({ type: "error", message: "Not today.", code });
    const head = this.server.log.length;
    const seq = word.after ?? head;
    this.following = true;
    this.show({ type: "ack", ...(word.id && { id: word.id }), seq, head, sessionId: word.sessionId ?? "sesn_new" });
    this.showFrom(seq);
  }

  private take(input: Input): void {
    const text = input.type === "message" ? String(input.content) : input.type;
    if (text === "unwanted") return this.show({ type: "error", id: input.id, message: "No.", code: "invalid_request" });
    const known = this.server.ids.get(input.id);
    const seq = known ?? this.server.append(text);
    this.server.ids.set(input.id, seq);
    // A connection that breaks now has committed, and says so to nobody.
    if (this.patience > 1) this.show({ type: "ack", id: input.id, seq, eventId: `e${seq}`, ...(known && { repeated: true }) });
  }
}
