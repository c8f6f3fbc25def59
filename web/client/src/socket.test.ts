import { describe, expect, it, vi } from "vitest";

import { FakeServer } from "./fake-server.js";
import type { Input, ServerMessage } from "./messages.js";
import { SessionSocket, type SocketOptions } from "./socket.js";

const QUICK = { first: 1, longest: 2 };
const said = (text: string, id: string): Input => ({ type: "message", content: text, id });

function follow(server: FakeServer, more: Partial<SocketOptions> = {}) {
  const shown: ServerMessage[] = [];
  const states: string[] = [];
  const handlers = { message: (message: ServerMessage) => shown.push(message), connection: (state: string) => states.push(state), ...more.handlers };
  const socket = new SessionSocket({ url: "http://there:1", sessionId: "sesn_1", after: 0, token: server.token, open: server.open, pauses: QUICK, ...more, handlers });
  const seqs = () => shown.flatMap((message) => (message.type === "sdk_message" ? [message.seq] : []));
  return { socket, shown, states, seqs };
}

describe("a socket to a session", () => {
  it("asks for a token for each connection, and goes on after the last entry it was shown", async () => {
    const server = new FakeServer();
    server.append("one");
    const { seqs, states, socket } = follow(server);
    await vi.waitFor(() => expect(seqs()).toEqual([1]));
    server.line.break(1006);
    server.append("while nobody listened");
    await vi.waitFor(() => expect(seqs()).toEqual([1, 2]));
    expect(server.lines.map((line) => line.address)).toEqual([
      "ws://there:1/ws/v2?sessionId=sesn_1&token=token-1",
      "ws://there:1/ws/v2?sessionId=sesn_1&token=token-2",
    ]);
    expect(server.line.heard[0]).toEqual({ type: "start", sessionId: "sesn_1", after: 1 });
    expect(states).toEqual(["connecting", "connected", "waiting", "connecting", "connected"]);
    socket.stop();
  });

  it("sends again under the same id, in order, what was not acknowledged, and so loses and doubles nothing", async () => {
    const server = new FakeServer();
    server.breaksAfter = 3; // its start, and two messages, of which the second is not acknowledged
    const { socket } = follow(server);
    for (let number = 1; number <= 20; number += 1) socket.send(said(`${number}`, `m-${number}`));
    await vi.waitFor(() => expect(server.ids.size).toBe(20));
    expect(server.log.map(({ text }) => Number(text))).toEqual(Array.from({ length: 20 }, (_, n) => n + 1));
    expect(server.lines.length).toBeGreaterThan(5);
    socket.stop();
  });

  it("keeps what is not acknowledged, so that a page that is loaded again sends it", async () => {
    const server = new FakeServer();
    let kept: Input[] = [said("from before the reload", "m-0")];
    const outbox = { load: () => kept, save: (inputs: Input[]) => (kept = [...inputs]) };
    const { socket } = follow(server, { outbox });
    socket.send(said("and one more", "m-1"));
    expect(kept.length).toBe(2);
    await vi.waitFor(() => expect(kept).toEqual([]));
    expect(server.log.map(({ text }) => text)).toEqual(["from before the reload", "and one more"]);
    socket.stop();
  });

  it("shows an entry that was cut in two once, and a question once however often it is shown", async () => {
    const server = new FakeServer();
    const { shown, seqs, socket } = follow(server);
    await vi.waitFor(() => expect(server.line.heard.length).toBe(1));
    const request = { type: "tool_permission_request", seq: 1, requestId: "e1", toolName: "bash", toolInput: {} };
    const done = { type: "done", seq: 1, messageId: null, metadata: {} };
    const halves = [request, done];
    for (const half of halves) server.line.show(half);
    server.line.break(1013);
    await vi.waitFor(() => expect(server.lines.length).toBe(2));
    await vi.waitFor(() => expect(server.line.heard.length).toBe(1));
    for (const half of halves) server.line.show(half);
    server.append("the end of it");
    server.line.show(done);
    expect(shown.map(({ type }) => type)).toEqual(["tool_permission_request", "done", "sdk_message"]);
    expect(seqs()).toEqual([1]);
    socket.stop();
  });

  it("comes back after 1008, but not at once", async () => {
    const server = new FakeServer();
    const { states, socket } = follow(server, { pauses: { first: 1, longest: 60_000 } });
    await vi.waitFor(() => expect(server.line.heard.length).toBe(1));
    server.line.break(1008, "too many bad messages in a row");
    await vi.waitFor(() => expect(states.at(-1)).toBe("waiting"));
    expect(server.lines.length).toBe(1);
    socket.hurry();
    await vi.waitFor(() => expect(server.lines.length).toBe(2));
    socket.stop();
  });

  it.each([1000, 4401, 4404])("does not come back after %d", async (code) => {
    const server = new FakeServer();
    const closed = vi.fn();
    const { states } = follow(server, { handlers: { closed } });
    await vi.waitFor(() => expect(server.line.heard.length).toBe(1));
    server.line.break(code, "no more");
    await vi.waitFor(() => expect(closed).toHaveBeenCalledOnce());
    expect(closed.mock.calls[0]![0].message).toBe(`closed: ${code} no more`);
    expect(states.at(-1)).toBe("closed");
    expect(server.lines.length).toBe(1);
  });

  it("gives up when a token is refused, and not when there are too many requests or nobody is there", async () => {
    const server = new FakeServer();
    server.refuseTokens = { status: 429, message: "slower" };
    const { states, socket } = follow(server);
    await vi.waitFor(() => expect(server.tokens).toBeGreaterThan(1));
    server.refuseTokens = { status: 0, message: "nobody there" };
    const before = server.tokens;
    await vi.waitFor(() => expect(server.tokens).toBeGreaterThan(before));
    server.refuseTokens = { status: 401, message: "not valid" };
    await vi.waitFor(() => expect(states.at(-1)).toBe("closed"));
    expect(server.lines.length).toBe(0);
    socket.stop();
  });

  it("comes back when a start is refused for the moment, and gives up when it is refused for good", async () => {
    const server = new FakeServer();
    const closed = vi.fn();
    server.refuseStart = "unavailable";
    const { states } = follow(server, { handlers: { closed } });
    await vi.waitFor(() => expect(server.lines.length).toBeGreaterThan(1));
    expect(states).not.toContain("closed");
    server.refuseStart = "not_found";
    await vi.waitFor(() => expect(closed).toHaveBeenCalledOnce());
    expect(closed.mock.calls[0]![0].message).toBe("Not today.");
  });

  it("says when the log as it was has been shown, empty or not, and passes over what it does not know", async () => {
    const server = new FakeServer();
    const caughtUp = vi.fn();
    const { shown, socket } = follow(server, { handlers: { caughtUp } });
    await vi.waitFor(() => expect(caughtUp).toHaveBeenCalledOnce());
    server.line.show({ type: "something_newer" });
    expect(shown).toEqual([]);
    socket.stop();
  });

  it("tries at once when it is told to hurry", async () => {
    const server = new FakeServer();
    const { socket, states } = follow(server, { pauses: { first: 1e6, longest: 1e6 } });
    await vi.waitFor(() => expect(server.line.heard.length).toBe(1));
    server.line.break(1012);
    await vi.waitFor(() => expect(states.at(-1)).toBe("waiting"));
    socket.hurry();
    await vi.waitFor(() => expect(states.at(-1)).toBe("connected"));
    socket.stop();
  });
});
