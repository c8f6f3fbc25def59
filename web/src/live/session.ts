/** A session as a page sees it: its conversation, kept up to date, and what can be said to it. */

import { useCallback, useEffect, useMemo, useRef, useState } from "react";

import { complain } from "../api/hooks";
import { ApiError, get } from "../api/http";
import { after, EMPTY, previewed, type Call, type Conversation } from "../log/conversation";
import type { LogEvent, Preview } from "../log/events";
import { SessionSocket, type Connection, type Outbox, type Outgoing } from "./socket";

export interface LiveSession {
  conversation: Conversation;
  events: LogEvent[];
  connection: Connection;
  agent: string;
  /** Whether the log as it was when the page was opened is on the screen. */
  loaded: boolean;
  unsent: Outgoing[];
  say: (text: string) => void;
  interrupt: () => void;
  allow: (call: Call) => void;
  deny: (call: Call, reason: string) => void;
  result: (call: Call, text: string) => void;
}

interface Picture {
  conversation: Conversation;
  events: LogEvent[];
}

export function useLiveSession(id: string): LiveSession {
  const [picture, setPicture] = useState<Picture>({ conversation: EMPTY, events: [] });
  const [connection, setConnection] = useState<Connection>("connecting");
  const [agent, setAgent] = useState("");
  const [loaded, setLoaded] = useState(false);
  const [unsent, setUnsent] = useState<Outgoing[]>([]);
  const socket = useRef<SessionSocket>(undefined);

  useEffect(() => {
    setPicture({ conversation: EMPTY, events: [] });
    setLoaded(false);
    const batch = new Batch(setPicture, () => setLoaded(true));
    const live = new SessionSocket({
      sessionId: id,
      token: () => tokenFor(id),
      outbox: outboxOf(id, setUnsent),
      handlers: {
        event: (event) => batch.add(event),
        preview: (preview) => batch.preview(preview),
        connection: setConnection,
        caughtUp: () => batch.settle(),
        refused: (frame) => complain(new ApiError(400, String(frame.message), frame.hint as string | undefined)),
        other: (frame) => {
          if (frame.type === "agent_status") setAgent(String(frame.status));
        },
      },
    });
    socket.current = live;
    const hurry = () => live.hurry();
    window.addEventListener("online", hurry);
    return () => {
      window.removeEventListener("online", hurry);
      live.stop();
      batch.stop();
    };
  }, [id]);

  const send = useCallback((frame: Omit<Outgoing, "id"> & { type: string }) => {
    socket.current?.send({ ...frame, id: `app-${crypto.randomUUID()}` });
  }, []);

  return useMemo(
    () => ({
      ...picture,
      connection,
      agent,
      loaded,
      unsent,
      say: (text: string) => send({ type: "message", content: text }),
      interrupt: () => send({ type: "interrupt" }),
      allow: (call: Call) => send({ type: "permission_response", requestId: call.id, decision: "allow" }),
      deny: (call: Call, reason: string) =>
        send({ type: "permission_response", requestId: call.id, decision: "deny", ...(reason ? { message: reason } : {}) }),
      result: (call: Call, text: string) => send({ type: "ask_user_answer", requestId: call.id, answers: parsed(text) }),
    }),
    [picture, connection, agent, loaded, unsent, send],
  );
}

/** Gathers what comes within a frame of the screen, so that a long log is drawn once and not a thousand times. */
class Batch {
  private events: LogEvent[] = [];
  private previews: Preview[] = [];
  private frame = 0;
  private settled = false;

  constructor(
    private readonly draw: (change: (before: Picture) => Picture) => void,
    private readonly ready: () => void,
  ) {}

  add(event: LogEvent): void {
    this.flushPreviews();
    this.events.push(event);
    this.schedule();
  }

  preview(preview: Preview): void {
    this.previews.push(preview);
    this.schedule();
  }

  settle(): void {
    this.settled = true;
    this.schedule();
  }

  stop(): void {
    cancelAnimationFrame(this.frame);
  }

  private schedule(): void {
    this.frame ||= requestAnimationFrame(() => this.flush());
  }

  private flush(): void {
    this.frame = 0;
    const events = this.events.splice(0);
    if (events.length > 0) {
      this.draw((before) => ({
        conversation: after(before.conversation, events),
        events: [...before.events, ...events],
      }));
    }
    this.flushPreviews();
    if (this.settled) this.ready();
  }

  private flushPreviews(): void {
    const previews = this.previews.splice(0);
    if (previews.length === 0) return;
    const events = this.events.splice(0); // what came before them stands before them
    this.draw((before) => ({
      conversation: previews.reduce(previewed, after(before.conversation, events)),
      events: [...before.events, ...events],
    }));
  }
}

async function tokenFor(id: string): Promise<string> {
  return (await get<{ token: string }>(`/auth/ws-token?sessionId=${encodeURIComponent(id)}`)).token;
}

/** Kept for the tab, not for the browser: two tabs must not send each other's messages. */
function outboxOf(id: string, show: (frames: Outgoing[]) => void): Outbox {
  const key = `roost.outbox.${id}`;
  return {
    load: () => {
      const kept = JSON.parse(sessionStorage.getItem(key) ?? "[]") as Outgoing[];
      show(kept);
      return kept;
    },
    save: (frames) => {
      sessionStorage.setItem(key, JSON.stringify(frames));
      show([...frames]);
    },
  };
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text).answers ?? text;
  } catch {
    return text;
  }
}
