import type { Connection, ContentBlock } from "@roost/client";
import { Alert, Badge, Button, Center, Group, Loader, Text } from "@mantine/core";
import { ArrowDown, CircleAlert, Clock, Info, RefreshCw } from "lucide-react";
import { useEffect, useLayoutEffect, useRef, useState, type DragEvent } from "react";

import type { Session } from "../api/types";
import type { LiveSession, Older } from "../live/session";
import type { Item, Note, Said } from "../log/conversation";
import { WaitingCard } from "./answers";
import { CallCard } from "./call";
import { Composer, useWriting } from "./composer";
import { Prose } from "./markdown";
import { Picture, ShownSession } from "./picture";
import { TurnActions } from "./turn-actions";

const SLOW = 5000; // milliseconds that a first connection may take
const NEAR = 80; // pixels from the end within which a reader follows what comes

export function Chat({ live, session, ended }: { live: LiveSession; session: Session; ended: boolean }) {
  const { conversation, unsent } = live;
  const working = conversation.status === "running" || conversation.status === "rescheduling";
  const waits = conversation.stopReason === "requires_action";
  // The event may come before its acknowledgement: then it is shown as the event alone.
  const sending = unsent.filter((frame) => frame.type === "message").filter((frame) => !conversation.items.some((item) => item.kind === "user" && item.clientId === frame.id));
  const { ref, following, onScroll, toLatest } = useFollow(conversation.items[0]?.id, conversation, sending.length);
  const writing = useWriting(session.id);
  const over = ended || conversation.status === "terminated";
  const drop = (event: DragEvent) => {
    event.preventDefault();
    if (!over) writing.attach([...event.dataTransfer.files]);
  };
  const whole = useEscape(working || waits, live.interrupt);
  return (
    <div className="fill" ref={whole} onDragOver={(event) => event.preventDefault()} onDrop={drop}>
      <ConnectionBar state={live.connection} />
      <div className="chat-log" ref={ref} onScroll={onScroll} onLoadCapture={following ? toLatest : undefined} tabIndex={0} role="log" aria-label="Conversation" aria-busy={working}>
        <div className="chat-column">
          {live.loaded && <Earlier older={live.older} missing={waits && !conversation.waitingFor.every((id) => conversation.items.some((item) => item.id === id))} />}
          {!live.loaded && (
            <Center py="xl">
              <Loader role="status" aria-label="Loading" />
            </Center>
          )}
          {live.loaded && conversation.items.length === 0 && (
            <Text c="dimmed" ta="center" py="xl">
              Say what you want done.
            </Text>
          )}
          <ShownSession value={session.id}>
            {conversation.items.map((item) => (
              <ItemView key={item.id} item={item} live={live} session={session} delay={over ? "never read: the session has ended" : waits ? "queued until you have answered above; an interrupt withdraws it" : "queued"} />
            ))}
          </ShownSession>
          {sending.map((frame) => (
            <div key={frame.id} className="said-user queued">
              <Content content={frame.content} />
              <Badge size="xs" variant="transparent" tt="none" leftSection={<Clock size={11} aria-hidden />}>
                sending
              </Badge>
            </div>
          ))}
          {working && <Working live={live} />}
          {!following && (
            <Button className="jump" size="xs" radius="xl" leftSection={<ArrowDown size={14} aria-hidden />} onClick={toLatest}>
              Jump to latest
            </Button>
          )}
        </div>
      </div>
      <Composer live={live} writing={writing} state={over ? "ended" : waits ? "waits" : working ? "works" : "rests"} onSent={toLatest} />
    </div>
  );
}

/** Asks for what came before as soon as the beginning of what is here is in sight, or if `missing` is there. */
function Earlier({ older, missing }: { older: Older; missing: boolean }) {
  const ref = useRef<HTMLDivElement>(null);
  const { more, busy, load } = older;
  useEffect(() => {
    if (!more || busy) return;
    if (missing) return load();
    const watch = new IntersectionObserver((seen) => seen.some((one) => one.isIntersecting) && load(), { root: ref.current!.closest(".chat-log"), rootMargin: "400px 0px 0px" });
    watch.observe(ref.current!);
    return () => watch.disconnect();
  }, [more, busy, load, missing]);
  if (!more) return null;
  return (
    <Center ref={ref}>
      <Button variant="subtle" color="gray" size="compact-sm" loading={busy} onClick={() => load()}>
        Show earlier messages
      </Button>
    </Center>
  );
}

/** Esc interrupts, wherever in the chat; not while somebody writes what a tool is to do instead. */
function useEscape(active: boolean, act: () => void) {
  const ref = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const box = ref.current;
    if (!active || box === null) return;
    const onKey = (event: globalThis.KeyboardEvent) => {
      const writes = (event.target as Element).closest(".waiting :is(input, textarea)") !== null;
      if (event.key === "Escape" && !event.defaultPrevented && !writes) act();
    };
    box.addEventListener("keydown", onKey);
    return () => box.removeEventListener("keydown", onKey);
  }, [active, act]);
  return ref;
}

/** Keeps the newest in sight for a reader who is there; leaves one alone who has scrolled up. */
function useFollow(first: string | undefined, ...changes: unknown[]) {
  const ref = useRef<HTMLDivElement>(null);
  const [following, setFollowing] = useState(true);
  const follows = useRef(true); // the same, known before the next drawing: a page may be resized until then
  const before = useRef({ first, height: 0 });
  const top = useRef(0);
  useLayoutEffect(() => {
    const box = ref.current;
    if (box === null) return;
    // What came before is put above what somebody reads: that stays where it is.
    if (before.current.first !== first && !following) box.scrollTop += box.scrollHeight - before.current.height;
    before.current = { first, height: box.scrollHeight };
  });
  const follow = (whether: boolean) => {
    follows.current = whether;
    setFollowing(whether);
  };
  const toLatest = () => {
    follow(true);
    ref.current?.scrollTo({ top: ref.current.scrollHeight });
  };
  useLayoutEffect(() => {
    const box = ref.current;
    if (!following || box === null) return;
    const toEnd = () => follows.current && box.scrollTo({ top: box.scrollHeight });
    toEnd();
    // A keyboard that comes up, a phone that is turned, a composer that grows: the end moves out of sight.
    const watch = new ResizeObserver(toEnd);
    watch.observe(box);
    return () => watch.disconnect();
  }, [...changes, following]);
  const onScroll = () => {
    const box = ref.current;
    if (box === null) return;
    const near = box.scrollHeight - box.scrollTop - box.clientHeight < NEAR;
    // A picture that has come moves the end away, and nobody has scrolled up.
    const up = box.scrollTop < top.current;
    top.current = box.scrollTop;
    if (near || up) follow(near);
  };
  return { ref, following, onScroll, toLatest };
}

function ItemView({ item, live, session, delay }: { item: Item; live: LiveSession; session: Session; delay: string }) {
  switch (item.kind) {
    case "user":
      return <UserSaid said={item} delay={delay} />;
    case "agent":
      return (
        <div className={`said-agent ${item.streaming ? "cursor" : ""}`} data-streaming={item.streaming}>
          <Prose text={item.text} />
        </div>
      );
    case "thinking":
      return (
        <Text size="xs" c="dimmed" fs="italic">
          thought about it
        </Text>
      );
    case "call":
      return item.state === "waiting" ? <WaitingCard call={item} answers={live} sent={live.unsent.some((frame) => "requestId" in frame && frame.requestId === item.id)} /> : <CallCard call={item} />;
    case "note":
      return <NoteView note={item} />;
    case "turn-end":
      return <TurnActions session={session} live={live} eventId={item.eventId} />;
  }
}

/** `delay`: why the agent has not read it yet, if it has not. */
function UserSaid({ said, delay }: { said: Said; delay: string }) {
  return (
    <div className={`said-user ${said.queued ? "queued" : ""} ${said.withdrawn ? "withdrawn" : ""}`}>
      {said.images.map((block, nth) => (
        <Picture key={nth} block={block} />
      ))}
      {said.text !== "" && <p>{said.text}</p>}
      {said.queued && (
        <Badge size="xs" variant="transparent" tt="none" leftSection={<Clock size={11} aria-hidden />}>
          {delay}
        </Badge>
      )}
      {said.withdrawn && (
        <Badge size="xs" variant="transparent" color="gray" tt="none" title="It was stopped before the agent got it.">
          withdrawn
        </Badge>
      )}
    </div>
  );
}

function Content({ content }: { content: string | ContentBlock[] }) {
  if (typeof content === "string") return <p>{content}</p>;
  return content.map((block, nth) => (block.type === "image" ? <Picture key={nth} block={block} /> : <p key={nth}>{String(block.text ?? "")}</p>));
}

const TONES = {
  error: { colour: "red", icon: CircleAlert, title: "Something went wrong" },
  retry: { colour: "orange", icon: RefreshCw, title: "Trying again" },
  info: { colour: "gray", icon: Info, title: undefined },
};

function NoteView({ note }: { note: Note }) {
  const { colour, icon: Icon, title } = TONES[note.tone];
  return (
    <Alert color={colour} variant="light" p="xs" title={title} icon={<Icon size={16} aria-hidden />}>
      {note.text}
      {note.tone === "retry" && (note.times ?? 1) > 1 && ` (${note.times} times so far)`}
    </Alert>
  );
}

function Working({ live }: { live: LiveSession }) {
  const last = live.conversation.items.findLast((item) => !(item.kind === "user" && item.queued));
  if (last?.kind === "agent" && last.streaming) return null;
  const word = live.agent === "waking" ? "Waking the agent…" : live.conversation.status === "rescheduling" ? "Waiting to try again…" : last?.kind === "call" && last.state === "running" ? `Running ${last.name}…` : "Thinking…";
  return (
    <Group gap="xs" role="status">
      <Loader size="xs" type="dots" />
      <Text size="sm" c="dimmed">
        {word}
      </Text>
    </Group>
  );
}

function ConnectionBar({ state }: { state: Connection }) {
  const [late, setLate] = useState(false);
  const lost = useRef(false);
  useEffect(() => {
    if (state !== "connecting") lost.current = state !== "connected";
    // A connection that comes back at once is nobody's concern, nor is a slow one that is only being made.
    const patience = state === "connected" ? 0 : state === "connecting" && !lost.current ? SLOW : 600;
    const timer = setTimeout(() => setLate(state !== "connected"), patience);
    return () => clearTimeout(timer);
  }, [state]);
  if (!late || state === "connected") return null;
  const said = state === "closed" ? "Disconnected. Reload the page to log in again." : "No connection to the server. Trying again; nothing is lost.";
  return (
    <Alert color={state === "closed" ? "red" : "yellow"} radius={0} p="xs" role="status" title={said} icon={<RefreshCw size={16} aria-hidden />} />
  );
}
