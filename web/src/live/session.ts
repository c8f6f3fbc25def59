/** A session as a page sees it: its conversation, kept up to date, and what can be said to it. */

import { Client, mint, SessionSocket, type Connection, type ContentBlock, type Input, type Outbox, type ServerMessage } from "@roost/client";
import { useCallback, useEffect, useMemo, useRef, useState } from "react";

import { complain } from "../api/hooks";
import { ApiError, get } from "../api/http";
import { REWOUND } from "../log/events";
import { after, EMPTY, previewed, type Call, type Conversation } from "../log/conversation";
import type { LogEvent, Preview } from "../log/events";

export interface LiveSession {
  conversation: Conversation;
  events: LogEvent[];
  connection: Connection;
  agent: string;
  /** Whether the newest part of the log, as it was when the page was opened, is on the screen. */
  loaded: boolean;
  older: Older;
  unsent: Input[];
  say: (content: string | ContentBlock[]) => void;
  interrupt: () => void;
  allow: (call: Call, changed?: Record<string, unknown>) => void;
  deny: (call: Call, reason: string) => void;
  result: (call: Call, text: string) => void;
}

interface Picture {
  conversation: Conversation;
  /** The part of the log that is here: the newest, and as much before it as was asked for. */
  events: LogEvent[];
}

const NOTHING: Picture = { conversation: EMPTY, events: [] };
const RETRY_AFTER = 1000; // milliseconds

function grown(before: Picture, more: LogEvent[]): Picture {
  if (more.length === 0) return before;
  return { conversation: after(before.conversation, more), events: [...before.events, ...more] };
}

/** The picture with something before it. */
function preceded(before: Picture, older: LogEvent[]): Picture {
  const events = [...older, ...before.events];
  const streaming = before.conversation.items.filter((item) => item.kind === "agent" && item.streaming);
  const conversation = after(EMPTY, events);
  return { conversation: { ...conversation, items: [...conversation.items, ...streaming] }, events };
}

export function useLiveSession(id: string): LiveSession {
  const [picture, setPicture] = useState<Picture>(NOTHING);
  const [connection, setConnection] = useState<Connection>("connecting");
  const [agent, setAgent] = useState("");
  const [loaded, setLoaded] = useState(false);
  const [unsent, setUnsent] = useState<Input[]>([]);
  const [rewinds, setRewinds] = useState(0);
  const socket = useRef<SessionSocket>(undefined);
  const history = useHistory(id, setPicture);

  useEffect(() => {
    setPicture(NOTHING);
    setLoaded(false);
  }, [id]);

  useEffect(() => {
    let left = false;
    let timer: ReturnType<typeof setTimeout> | undefined;
    // A rewind may lead anywhere, also to before what is here: what is the conversation now is asked for again.
    const batch = new Batch(setPicture, () => setRewinds((count) => count + 1));
    const client = new Client();
    const follow = (head: number) =>
      new SessionSocket({
        url: location.origin,
        sessionId: id,
        after: head,
        token: () => client.token(id),
        outbox: outboxOf(id, setUnsent),
        handlers: {
          message: (message) => {
            if (message.type === "agent_status") setAgent(message.status);
            else batch.take(message);
          },
          connection: setConnection,
          refused: (error) => complain(new ApiError(400, error.message, error.hint)),
        },
      });
    const begin = async () => {
      try {
        const newest = await history.newest();
        if (left) return;
        setPicture(grown(NOTHING, newest));
        setLoaded(true);
        socket.current = follow(newest.at(-1)?.seq ?? 0);
      } catch (error) {
        if (left) return;
        const passing = !(error instanceof ApiError) || error.status === 0 || error.status >= 500 || error.status === 429;
        setConnection(passing ? "waiting" : "closed");
        if (passing) timer = setTimeout(begin, RETRY_AFTER);
      }
    };
    void begin();
    const hurry = () => socket.current?.hurry();
    window.addEventListener("online", hurry);
    return () => {
      left = true;
      clearTimeout(timer);
      window.removeEventListener("online", hurry);
      socket.current?.stop();
      socket.current = undefined;
      batch.stop();
    };
  }, [id, rewinds, history.newest]);

  const send = useCallback(
    (input: Input) => {
      if (socket.current !== undefined) return socket.current.send(input);
      const outbox = outboxOf(id, setUnsent); // sent as soon as there is a socket
      outbox.save([...outbox.load(), input]);
    },
    [id],
  );

  return useMemo(
    () => ({
      ...picture,
      older: history.older,
      connection,
      agent,
      loaded,
      unsent,
      say: (content: string | ContentBlock[]) => send({ type: "message", content, id: mint("app") }),
      interrupt: () => send({ type: "interrupt", id: mint("app") }),
      allow: (call: Call, changed?: Record<string, unknown>) =>
        send({ type: "permission_response", requestId: call.id, decision: "allow", ...(changed && { modifiedInput: changed }), id: mint("app") }),
      deny: (call: Call, reason: string) =>
        send({ type: "permission_response", requestId: call.id, decision: "deny", message: reason, id: mint("app") }),
      result: (call: Call, text: string) => send({ type: "ask_user_answer", requestId: call.id, answers: parsed(text), id: mint("app") }),
    }),
    [picture, history.older, connection, agent, loaded, unsent, send],
  );
}

export interface Older {
  /** Whether there is more before what is here. */
  more: boolean;
  busy: boolean;
  load: (all?: boolean) => void;
}

interface Listing {
  data: LogEvent[];
  next_page: string | null;
}

const FIRST_PAGE = 150; // events: some screens
const PAGE = 500;
const RETRY_OLDER_AFTER = 5000; // milliseconds

/** The log before the newest part of it, a page at a time. What was rewound is not in it. */
function useHistory(id: string, draw: (change: (before: Picture) => Picture) => void) {
  const [cursor, setCursor] = useState<string | null>(null);
  const [busy, setBusy] = useState(false);
  const listed = useCallback(
    async (limit: number, page: string | null) => {
      const query = new URLSearchParams({ order: "desc", limit: String(limit), ...(page === null ? {} : { page }) });
      return get<Listing>(`/v1/sessions/${id}/events?${query}`);
    },
    [id],
  );
  const newest = useCallback(async () => {
    const found = await listed(FIRST_PAGE, null);
    setCursor(found.next_page);
    return found.data.reverse();
  }, [listed]);
  const load = useCallback(
    async (all = false) => {
      if (cursor === null || busy) return;
      setBusy(true);
      try {
        let [page, events]: [string | null, LogEvent[]] = [cursor, []];
        do {
          const found: Listing = await listed(PAGE, page);
          events = [...found.data.reverse(), ...events];
          page = found.next_page;
        } while (all && page !== null);
        draw((before) => (before.events[0] === undefined || events.length === 0 || events.at(-1)!.seq < before.events[0].seq ? preceded(before, events) : before));
        setCursor(page);
      } catch {
        await new Promise((passed) => setTimeout(passed, RETRY_OLDER_AFTER)); // what is in sight asks again
      } finally {
        setBusy(false);
      }
    },
    [cursor, busy, listed, draw],
  );
  const older = useMemo<Older>(() => ({ more: cursor !== null, busy, load: (all) => void load(all) }), [cursor, busy, load]);
  return { newest, older };
}

/** Gathers what comes within a frame of the screen, so that a long log is drawn once and not a thousand times. */
class Batch {
  private events: LogEvent[] = [];
  private previews: Preview[] = [];
  private frame = 0;

  constructor(
    private readonly draw: (change: (before: Picture) => Picture) => void,
    private readonly rewound: () => void,
  ) {}

  take(message: ServerMessage): void {
    if (message.type === "sdk_message") this.add({ ...(message.message as unknown as LogEvent), seq: message.seq });
    else if (message.type === "stream_start") this.preview({ event_id: message.messageId, type: `agent.${message.kind}`, text: "" });
    else if (message.type === "chunk") this.preview({ event_id: message.messageId, type: "agent.message", text: message.content });
  }

  private add(event: LogEvent): void {
    if (event.type === REWOUND) return this.rewound();
    this.flushPreviews();
    this.events.push(event);
    this.schedule();
  }

  private preview(preview: Preview): void {
    this.previews.push(preview);
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
