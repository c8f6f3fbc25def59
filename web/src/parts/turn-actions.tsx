import { Button, Checkbox, Group, Modal, Stack, Text, TextInput } from "@mantine/core";
import { GitFork, Undo2 } from "lucide-react";
import { useState, type FormEvent } from "react";
import { useNavigate } from "react-router";

import { changes, useChange } from "../api/hooks";
import type { Session } from "../api/types";
import type { LiveSession } from "../live/session";

/** What can be done at the end of a turn: go on from there in another session, or in this one. */
export function TurnActions({ session, live, eventId }: { session: Session; live: LiveSession; eventId: string }) {
  const [asking, setAsking] = useState<"fork" | "rewind">();
  const close = () => setAsking(undefined);
  const { status, items } = live.conversation;
  const newest = items.findLast((item) => item.kind === "turn-end")?.eventId === eventId;
  const rests = status === "idle" && live.conversation.waitingFor.length === 0 && session.archived_at === null;
  return (
    <Group gap={4} className="turn-end">
      <Button variant="subtle" color="gray" size="compact-xs" leftSection={<GitFork size={12} aria-hidden />} onClick={() => setAsking("fork")}>
        Fork here
      </Button>
      {!newest && rests && (
        <Button variant="subtle" color="gray" size="compact-xs" leftSection={<Undo2 size={12} aria-hidden />} onClick={() => setAsking("rewind")}>
          Go back to here
        </Button>
      )}
      <Modal opened={asking === "fork"} onClose={close} title="Fork the session here?">
        <ForkForm session={session} eventId={eventId} />
      </Modal>
      <Modal opened={asking === "rewind"} onClose={close} title="Go back to here?">
        <RewindForm session={session} eventId={eventId} done={close} />
      </Modal>
    </Group>
  );
}

function ForkForm({ session, eventId }: { session: Session; eventId: string }) {
  const navigate = useNavigate();
  const fork = useChange("sessions", changes.forkSession);
  const shared = session.workspace !== null;
  const [copy, setCopy] = useState(true);
  const [title, setTitle] = useState(`${session.title || session.agent.name} (fork)`);
  const submit = (event: FormEvent) => {
    event.preventDefault();
    fork.mutate({ id: session.id, at: eventId, title, files: copy ? "copy" : "keep" }, { onSuccess: (made) => navigate(`/sessions/${made.id}`) });
  };
  return (
    <form onSubmit={submit}>
      <Stack>
        <Text size="sm">A new session begins as this one was at the end of this turn: with the conversation up to here, and with the files as they were. This session stays as it is.</Text>
        {shared && (
          <Checkbox
            label="A copy of the workspace, as it was"
            description={copy ? "The new session has files of its own, and nobody else sees them." : "The new session shares the workspace, with the files as they are now."}
            checked={copy}
            onChange={(event) => setCopy(event.currentTarget.checked)}
          />
        )}
        <TextInput label="Its title" value={title} onChange={(event) => setTitle(event.currentTarget.value)} data-autofocus />
        <Button type="submit" loading={fork.isPending}>
          Fork
        </Button>
      </Stack>
    </form>
  );
}

function RewindForm({ session, eventId, done }: { session: Session; eventId: string; done: () => void }) {
  const rewind = useChange("session", changes.rewindSession);
  const shared = session.workspace !== null;
  const [files, setFiles] = useState(!shared);
  return (
    <Stack>
      <Text size="sm">This session goes back to the end of this turn. What came after it is no longer part of the conversation, and the agent does not know of it. The log keeps it.</Text>
      <Checkbox
        label="The files go back, too"
        description={shared ? "Its workspace is shared with other sessions, and stays as it is. A fork gets a copy of it as it was." : "What was changed in them since is undone."}
        checked={files}
        disabled={shared}
        onChange={(event) => setFiles(event.currentTarget.checked)}
      />
      <Group justify="flex-end">
        <Button variant="default" onClick={done} data-autofocus>
          Cancel
        </Button>
        <Button color="red.8" loading={rewind.isPending} onClick={() => rewind.mutate({ id: session.id, to: eventId, files }, { onSuccess: done })}>
          Go back
        </Button>
      </Group>
    </Stack>
  );
}
