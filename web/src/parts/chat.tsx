import type { Connection } from "@roost/client";
import { ActionIcon, Alert, Badge, Button, Center, Group, Loader, Text, Textarea } from "@mantine/core";
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
  const { ref, following, onScroll, toLatest } = useFollow(conversation.items.length, conversation);
  const working = conversation.status === "running" || conversation.status === "rescheduling";
  const sending = unsent.filter((frame) => frame.type === "message");
  return (
    <>
      <ConnectionBar state={live.connection} />
      <div className="chat-log" ref={ref} onScroll={onScroll} tabIndex={0} role="log" aria-label="Conversation" aria-busy={working}>
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
            <ItemView key={item.id} item={item} live={live} session={session} />
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
      <Composer live={live} working={working} ended={ended || conversation.status === "terminated"} onSent={toLatest} />
    </>
  );
}

/** Keeps the newest in sight for a reader who is there; leaves one alone who has scrolled up. */
function useFollow(count: number, changes: unknown) {
  const ref = useRef<HTMLDivElement>(null);
  const [following, setFollowing] = useState(true);
  const toLatest = () => {
    setFollowing(true);
    ref.current?.scrollTo({ top: ref.current.scrollHeight });
  };
  useLayoutEffect(() => {
    if (following) ref.current?.scrollTo({ top: ref.current.scrollHeight });
  }, [count, changes, following]);
  const onScroll = () => {
    const box = ref.current;
    if (box) setFollowing(box.scrollHeight - box.scrollTop - box.clientHeight < NEAR);
  };
  return { ref, following, onScroll, toLatest };
}

function ItemView({ item, live, session }: { item: Item; live: LiveSession; session: Session }) {
  switch (item.kind) {
    case "user":
      return <UserSaid said={item} />;
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

function UserSaid({ said }: { said: Said }) {
  return (
    <div className={`said-user ${said.queued ? "queued" : ""}`}>
      <p>{said.text}</p>
      {said.queued && (
        <Badge size="xs" variant="transparent" tt="none" leftSection={<Clock size={11} aria-hidden />}>
          queued
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

function Composer({ live, working, ended, onSent }: { live: LiveSession; working: boolean; ended: boolean; onSent: () => void }) {
  const [text, setText] = useState("");
  const send = () => {
    if (text.trim() === "") return;
    live.say(text.trim());
    setText("");
    onSent();
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === "Enter" && !event.shiftKey && !event.nativeEvent.isComposing) {
      event.preventDefault();
      send();
    }
    if (event.key === "Escape" && working) live.interrupt();
  };
  return (
    <div className="composer">
      <Group gap="xs" align="flex-end" wrap="nowrap">
        <Textarea
          flex={1}
          autosize
          minRows={1}
          maxRows={10}
          autoFocus
          aria-label="Message"
          placeholder={ended ? "This session has ended" : working ? "Queue another message; Esc interrupts" : "Message; Enter sends, Shift+Enter breaks the line"}
          disabled={ended}
          value={text}
          onChange={(event) => setText(event.currentTarget.value)}
          onKeyDown={onKeyDown}
        />
        {working && (
          <ActionIcon size={36} variant="default" aria-label="Interrupt" onClick={live.interrupt}>
            <CircleStop size={18} aria-hidden />
          </ActionIcon>
        )}
        <ActionIcon size={36} aria-label="Send" onClick={send} disabled={ended || text.trim() === ""}>
          <SendHorizontal size={18} aria-hidden />
        </ActionIcon>
      </Group>
    </div>
  );
}
