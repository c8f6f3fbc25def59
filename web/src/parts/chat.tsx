import type { Connection } from "@roost/client";
import { ActionIcon, Alert, Badge, Button, Center, Group, Loader, Text, Textarea } from "@mantine/core";
import { useMediaQuery } from "@mantine/hooks";
import { ArrowDown, CircleAlert, CircleStop, Clock, Info, RefreshCw, SendHorizontal } from "lucide-react";
import { useEffect, useLayoutEffect, useRef, useState, type KeyboardEvent } from "react";

import type { Session } from "../api/types";
import type { LiveSession } from "../live/session";
import type { Item, Note, Said } from "../log/conversation";
import { WaitingCard } from "./answers";
import { CallCard } from "./call";
import { Prose } from "./markdown";
import { TurnActions } from "./turn-actions";

const NEAR = 80; // pixels from the end within which a reader follows what comes

export function Chat({ live, session, ended }: { live: LiveSession; session: Session; ended: boolean }) {
  const { conversation, unsent } = live;
  const working = conversation.status === "running" || conversation.status === "rescheduling";
  const waits = conversation.stopReason === "requires_action";
  const sending = unsent.filter((frame) => frame.type === "message");
  const { ref, following, onScroll, toLatest } = useFollow(conversation, sending.length);
  const whole = useEscape(working || waits, live.interrupt);
  return (
    <div className="fill" ref={whole}>
      <ConnectionBar state={live.connection} />
      <div className="chat-log" ref={ref} onScroll={onScroll} onLoadCapture={following ? toLatest : undefined} tabIndex={0} role="log" aria-label="Conversation" aria-busy={working}>
        <div className="chat-column">
          {!live.loaded && (
            <Center py="xl">
              <Loader aria-label="Loading" />
            </Center>
          )}
          {live.loaded && conversation.items.length === 0 && (
            <Text c="dimmed" ta="center" py="xl">
              Say what you want done.
            </Text>
          )}
          {conversation.items.map((item) => (
            <ItemView key={item.id} item={item} live={live} session={session} waits={waits} />
          ))}
          {sending.map((frame) => (
            <div key={frame.id} className="said-user queued">
              <p>{String(frame.content)}</p>
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
      <Composer id={session.id} live={live} state={ended || conversation.status === "terminated" ? "ended" : waits ? "waits" : working ? "works" : "rests"} onSent={toLatest} />
    </div>
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
function useFollow(...changes: unknown[]) {
  const ref = useRef<HTMLDivElement>(null);
  const [following, setFollowing] = useState(true);
  const toLatest = () => {
    setFollowing(true);
    ref.current?.scrollTo({ top: ref.current.scrollHeight });
  };
  useLayoutEffect(() => {
    const box = ref.current;
    if (!following || box === null) return;
    const toEnd = () => box.scrollTo({ top: box.scrollHeight });
    toEnd();
    // A keyboard that comes up, a phone that is turned, a composer that grows: the end moves out of sight.
    const watch = new ResizeObserver(toEnd);
    watch.observe(box);
    return () => watch.disconnect();
  }, [...changes, following]);
  const onScroll = () => {
    const box = ref.current;
    if (box) setFollowing(box.scrollHeight - box.scrollTop - box.clientHeight < NEAR);
  };
  return { ref, following, onScroll, toLatest };
}

function ItemView({ item, live, session, waits }: { item: Item; live: LiveSession; session: Session; waits: boolean }) {
  switch (item.kind) {
    case "user":
      return <UserSaid said={item} waits={waits} />;
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
      return item.state === "waiting" ? <WaitingCard call={item} answers={live} /> : <CallCard call={item} />;
    case "note":
      return <NoteView note={item} />;
    case "turn-end":
      return <TurnActions session={session} live={live} eventId={item.eventId} />;
  }
}

function UserSaid({ said, waits }: { said: Said; waits: boolean }) {
  return (
    <div className={`said-user ${said.queued ? "queued" : ""} ${said.withdrawn ? "withdrawn" : ""}`}>
      <p>{said.text}</p>
      {said.queued && (
        <Badge size="xs" variant="transparent" tt="none" leftSection={<Clock size={11} aria-hidden />}>
          {waits ? "queued until you have answered above, or interrupt" : "queued"}
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
  useEffect(() => {
    // A connection that comes back at once is nobody's concern.
    const timer = setTimeout(() => setLate(state !== "connected"), state === "connected" ? 0 : 600);
    return () => clearTimeout(timer);
  }, [state]);
  if (!late || state === "connected") return null;
  const said = state === "closed" ? "Disconnected. Reload the page to log in again." : "No connection to the server. Trying again; nothing is lost.";
  return (
    <Alert color={state === "closed" ? "red" : "yellow"} radius={0} p="xs" role="status" title={said} icon={<RefreshCw size={16} aria-hidden />} />
  );
}

type Stands = "rests" | "works" | "waits" | "ended";

const PLACEHOLDERS: Record<Stands, string> = {
  rests: "Message",
  works: "Queue a message",
  waits: "Queue a message",
  ended: "This session has ended",
};

function Composer({ id, live, state, onSent }: { id: string; live: LiveSession; state: Stands; onSent: () => void }) {
  const [text, setText] = useDraft(id);
  const touch = useMediaQuery("(pointer: coarse)", false, { getInitialValueInEffect: false });
  const open = state === "works" || state === "waits";
  const send = () => {
    if (text.trim() === "") return;
    live.say(text.trim());
    setText("");
    onSent();
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key !== "Enter" || event.shiftKey || event.nativeEvent.isComposing) return;
    // The keyboard of a phone has no Shift+Enter: there, the button sends.
    if (touch && !event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    send();
  };
  return (
    <div className="composer">
      <Group gap="xs" align="flex-end" wrap="nowrap">
        <Textarea
          flex={1}
          autosize
          minRows={1}
          maxRows={10}
          autoFocus={!touch}
          aria-label="Message"
          placeholder={PLACEHOLDERS[state]}
          disabled={state === "ended"}
          value={text}
          onChange={(event) => setText(event.currentTarget.value)}
          onKeyDown={onKeyDown}
        />
        {open && (
          <ActionIcon size={42} variant="default" aria-label="Interrupt" onClick={live.interrupt}>
            <CircleStop size={18} aria-hidden />
          </ActionIcon>
        )}
        <ActionIcon size={42} aria-label="Send" onClick={send} disabled={state === "ended" || text.trim() === ""}>
          <SendHorizontal size={18} aria-hidden />
        </ActionIcon>
      </Group>
      {!touch && state !== "ended" && (
        <Text size="xs" c="dimmed" mt={4} visibleFrom="sm">
          {state === "waits" ? "The agent waits for your answer above; a message is read after it. Esc interrupts." : `Enter sends, Shift+Enter breaks the line${open ? ", Esc interrupts" : ""}.`}
        </Text>
      )}
    </div>
  );
}

/** What was typed and not sent, kept in this tab while it shows something else. */
function useDraft(id: string): [string, (text: string) => void] {
  const key = `roost.draft.${id}`;
  const [text, setText] = useState(() => sessionStorage.getItem(key) ?? "");
  useEffect(() => setText(sessionStorage.getItem(key) ?? ""), [key]);
  const keep = (changed: string) => {
    setText(changed);
    if (changed === "") sessionStorage.removeItem(key);
    else sessionStorage.setItem(key, changed);
  };
  return [text, keep];
}
