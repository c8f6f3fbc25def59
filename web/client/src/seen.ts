import type { ServerMessage } from "./messages.js";

/** Tells a message from its repetition: an entry that a broken connection cut in two comes again as a whole. */
export class Seen {
  private beyond = new Map<string, number>();
  private asked = new Set<string>();

  /** `seq` is that of the newest entry which was shown as a whole. */
  constructor(public seq: number | undefined) {}

  /** The log is shown after this `seq`. */
  from(seq: number): void {
    this.seq = seq;
  }

  isNew(message: ServerMessage): boolean {
    switch (message.type) {
      case "tool_permission_request":
      case "ask_user_question":
        return this.isFirstOf(message.requestId); // shown again on each connection
      case "sdk_message":
        return this.closes(message.seq);
      default:
        return "seq" in message && message.seq !== undefined ? this.isBeyond(message.type, message.seq) : true;
    }
  }

  private isFirstOf(requestId: string): boolean {
    const known = this.asked.has(requestId);
    this.asked.add(requestId);
    return !known;
  }

  /** An `sdk_message` closes its entry. */
  private closes(seq: number): boolean {
    if (seq <= (this.seq ?? 0)) return false;
    this.seq = seq;
    for (const [key, at] of this.beyond) if (at <= seq) this.beyond.delete(key);
    return true;
  }

  private isBeyond(type: string, seq: number): boolean {
    const key = `${type} ${seq}`;
    if (seq <= (this.seq ?? 0) || this.beyond.has(key)) return false;
    this.beyond.set(key, seq);
    return true;
  }
}
