/** A session as a page sees it: its conversation, kept up to date, and what can be said to it. */

import { Client, mint, SessionSocket, type Connection, type Input, type Outbox, type ServerMessage } from "@roost/client";
import { useCallback, useEffect, useMemo, useRef, useState } from "react";

import { complain } from "../api/hooks";
import { ApiError } from "../api/http";
import { branchOf, REWOUND } from "../log/branch";
import { after, EMPTY, previewed, type Call, type Conversation } from "../log/conversation";
import type { LogEvent, Preview } from "../log/events";

export interface LiveSession {
  conversation: Conversation;
  events: LogEvent[];
  connection: Connection;
  agent: string;
  /** Whether the log as it was when the page was opened is on the screen. */
  loaded: boolean;
  unsent: Input[];
  say: (text: string) => void;
  interrupt: () => void;
  allow: (call: Call, changed?: Record<string, unknown>) => void;
  deny: (call: Call, reason: string) => void;
  result: (call: Call, text: string) => void;
}

interface Picture {
  conversation: Conversation;
  /** The part of the log that is the conversation. */
  events: LogEvent[];
  log: LogEvent[];
}

const NOTHING: Picture = { conversation: EMPTY, events: [], log: [] };

/** The picture after some more of the log. A rewind may lead anywhere, so that all is read again. */
function grown(before: Picture, more: LogEvent[]): Picture {
  if (more.length === 0) return before;
  const log = [...before.log, ...more];
  if (!more.some((event) => event.type === REWOUND)) {
    return { conversation: after(before.conversation, more), events: [...before.events, ...more], log };
  }
  const events = branchOf(log);
  return { conversation: after(EMPTY, events), events, log };
}

export function useLiveSession(id: string): LiveSession {
  const [picture, setPicture] = useState<Picture>(NOTHING);
  const [connection, setConnection] = useState<Connection>("connecting");
  const [agent, setAgent] = useState("");
  const [loaded, setLoaded] = useState(false);
  const [unsent, setUnsent] = useState<Input[]>([]);
  const socket = useRef<SessionSocket>(undefined);

  useEffect(() => {
    setPicture(NOTHING);
    setLoaded(false);
    const batch = new Batch(setPicture, () => setLoaded(true));
    const client = new Client();
    const live = new SessionSocket({
      url: location.origin,
      sessionId: id,
      after: 0,
      token: () => client.token(id),
      outbox: outboxOf(id, setUnsent),
      handlers: {
        message: (message) => {
          if (message.type === "agent_status") setAgent(message.status);
          else batch.take(message);
        },
        connection: setConnection,
        caughtUp: () => batch.settle(),
        refused: (error) => complain(new ApiError(400, error.message, error.hint)),
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

  const send = useCallback((input: Input) => socket.current?.send(input), []);

  return useMemo(
    () => ({
      ...picture,
      connection,
      agent,
      loaded,
      unsent,
      say: (text: string) => send({ type: "message", content: text, id: mint("app") }),
      interrupt: () => send({ type: "interrupt", id: mint("app") }),
      allow: (call: Call, changed?: Record<string, unknown>) =>
        send({ type: "permission_response", requestId: call.id, decision: "allow", ...(changed && { modifiedInput: changed }), id: mint("app") }),
      deny: (call: Call, reason: string) =>
        send({ type: "permission_response", requestId: call.id, decision: "deny", message: reason, id: mint("app") }),
      result: (call: Call, text: string) => send({ type: "ask_user_answer", requestId: call.id, answers: parsed(text), id: mint("app") }),
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

  take(message: ServerMessage): void {
    if (message.type === "sdk_message") this.add({ ...(message.message as unknown as LogEvent), seq: message.seq });
    else if (message.type === "stream_start") this.preview({ event_id: message.messageId, type: `agent.${message.kind}`, text: "" });
    else if (message.type === "chunk") this.preview({ event_id: message.messageId, type: "agent.message", text: message.content });
  }

  private add(event: LogEvent): void {
    this.flushPreviews();
    this.events.push(event);
    this.schedule();
  }

  private preview(preview: Preview): void {
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
    if (events.length > 0) this.draw((before) => grown(before, events));
    this.flushPreviews();
    if (this.settled) this.ready();
  }

  private flushPreviews(): void {
    const previews = this.previews.splice(0);
    if (previews.length === 0) return;
    const events = this.events.splice(0); // what came before them stands before them
    this.draw((before) => {
      const next = grown(before, events);
      return { ...next, conversation: previews.reduce(previewed, next.conversation) };
    });
  }
}

/** Kept for the tab, not for the browser: two tabs must not send each other's messages. */
function outboxOf(id: string, show: (inputs: Input[]) => void): Outbox {
  const key = `roost.outbox.${id}`;
  return {
    load: () => {
      const kept = JSON.parse(sessionStorage.getItem(key) ?? "[]") as Input[];
      show(kept);
      return kept;
    },
    save: (inputs) => {
      sessionStorage.setItem(key, JSON.stringify(inputs));
      show([...inputs]);
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
