import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";

import page from "../../../docs/gateway.md?raw";
import { Client, Closed, Refused, TYPES } from "./index.js";
import { FakeServer } from "./fake-server.js";

let server: FakeServer;
beforeEach(() => {
  server = new FakeServer();
  vi.stubGlobal("fetch", async () => Response.json({ token: await server.token() }));
});
afterEach(() => vi.unstubAllGlobals());

function client(): Client {
  // A class, because that is what the option asks for; what it makes is the server's.
  const Socket = function (address: string) {
    return server.open(address);
  } as unknown as new (address: string) => ReturnType<FakeServer["open"]>;
  return new Client({ url: "http://there:1/", apiKey: "key", WebSocket: Socket, pauses: { first: 1, longest: 2 } });
}

describe("a chat", () => {
  it("creates a session and follows it, over a broken connection", async () => {
    const chat = client().session({ agent: "agent_1", environmentId: "env_1" });
    expect((await chat.send("one")).seq).toBe(1);
    expect(chat.id).toBe("sesn_new");
    expect(server.line.heard[0]).toMatchObject({ type: "start", agent: "agent_1", environmentId: "env_1" });
    server.line.break(1006);
    expect((await chat.send("two")).seq).toBe(2);
    expect(server.line.heard[0]).toEqual({ type: "start", sessionId: "sesn_new", after: 1 });
    const seqs: number[] = [];
    for await (const message of chat) {
      if (message.type === "sdk_message") seqs.push(message.seq);
      if (seqs.length === 2) break;
    }
    expect(seqs).toEqual([1, 2]);
    expect([chat.seq, chat.connections]).toEqual([2, 2]);
    chat.close();
  });

  it("throws where something is refused, and goes on", async () => {
    const chat = client().session("sesn_1");
    await expect(chat.send("unwanted")).rejects.toThrow(Refused);
    expect((await chat.allow("e1")).seq).toBe(1);
    chat.close();
  });

  it("ends for who follows and for who waits when it is no use to come back", async () => {
    const chat = client().session("sesn_1");
    await vi.waitFor(() => expect(server.lines.length).toBe(1));
    const next = chat[Symbol.asyncIterator]().next();
    server.line.break(4401, "logged out");
    await expect(next).rejects.toThrow(Closed);
    await expect(chat.send("too late")).rejects.toThrow("closed: 4401 logged out");
  });

  it("ends quietly when it is closed", async () => {
    const chat = client().session("sesn_1");
    const all = (async () => {
      for await (const message of chat) void message;
      return "ended";
    })();
    chat.close();
    expect(await all).toBe("ended");
  });

  it("needs an address where there is no page", () => {
    expect(() => new Client()).toThrow(TypeError);
  });
});

it("knows every type of message that the gateway's documentation names", () => {
  const table = page.slice(page.indexOf("## What a client is shown"), page.indexOf("A normal turn:"));
  const named = [...table.matchAll(/^\| `(\w+)` \|/gm)].map(([, name]) => name);
  expect(named.sort()).toEqual([...TYPES].sort());
});
