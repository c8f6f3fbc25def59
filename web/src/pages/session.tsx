import { ActionIcon, Anchor, Group, Tabs, Text, TextInput, Tooltip } from "@mantine/core";
import { useQueryClient } from "@tanstack/react-query";
import { ChartGantt, FolderOpen, MessageSquare, Pencil } from "lucide-react";
import { Fragment, useEffect, useState, type FormEvent } from "react";
import { Link, useNavigate, useParams } from "react-router";

import { changes, useChange, useSession, useVaults, useWorkspaces } from "../api/hooks";
import { isGone } from "../api/http";
import type { Session } from "../api/types";
import { useLiveSession, type LiveSession } from "../live/session";
import { Chat } from "../parts/chat";
import { Files } from "../parts/files";
import { Loaded } from "../parts/page";
import { StatusBadge } from "../parts/status";
import { Timeline } from "../parts/timeline";
import { TrustBadge } from "../parts/trust";
import { money, nameOf, tokens } from "../parts/words";
import { NotFoundPage } from "./not-found";

const VIEWS = ["chat", "timeline", "files"];

export function SessionPage() {
  const { id = "", view = "chat" } = useParams();
  const session = useSession(id);
  const live = useLiveSession(id);
  const navigate = useNavigate();
  const queries = useQueryClient();
  // What it has cost is the server's sum: the conversation's own falls when the session goes back.
  const { usage, status } = live.conversation;
  useEffect(() => void queries.invalidateQueries({ queryKey: ["session", id] }), [queries, id, usage, status]);
  if (!VIEWS.includes(view) || isGone(session.error)) return <NotFoundPage />;
  return (
    <Loaded query={session}>
      {(found) => (
        <Tabs value={view} onChange={(value) => navigate(`/sessions/${id}/${value}`)} keepMounted={false} className="chat">
          <Heading session={found} live={live} />
          <Tabs.List px="sm">
            <Tabs.Tab value="chat" leftSection={<MessageSquare size={14} aria-hidden />}>
              Chat
            </Tabs.Tab>
            <Tabs.Tab value="timeline" leftSection={<ChartGantt size={14} aria-hidden />}>
              Timeline
            </Tabs.Tab>
            <Tabs.Tab value="files" leftSection={<FolderOpen size={14} aria-hidden />}>
              Files
            </Tabs.Tab>
          </Tabs.List>
          <Tabs.Panel value="chat" className="fill">
            <Chat live={live} session={found} ended={found.archived_at !== null} />
          </Tabs.Panel>
          <Tabs.Panel value="timeline" className="fill scroll">
            <Timeline live={live} session={found} />
          </Tabs.Panel>
          <Tabs.Panel value="files" className="fill scroll">
            <Files session={id} trust={found.trust_level} settled={live.conversation.status} ended={found.status === "terminated"} />
          </Tabs.Panel>
        </Tabs>
      )}
    </Loaded>
  );
}

function Heading({ session, live }: { session: Session; live: LiveSession }) {
  const workspace = useWorkspaces().data?.find(({ id }) => id === session.workspace)?.name;
  const usage = session.usage;
  const waits = live.conversation.stopReason === "requires_action";
  return (
    <Group px="sm" pt="xs" gap="xs" className="heading">
      <Title session={session} />
      <TrustBadge trust={session.trust_level} />
      <StatusBadge status={waits ? "waiting" : live.loaded ? live.conversation.status : session.status} />
      <Text size="xs" c="dimmed">
        {session.agent.name} · {tokens((usage.input_tokens ?? 0) + (usage.output_tokens ?? 0))} tokens
        {usage.list_cost !== undefined && ` · ${money(Number(usage.list_cost.amount), usage.list_cost.currency)}`}
        {workspace !== undefined && ` · in ${workspace}`}
        {session.task_id !== null && (
          <>
            {" · "}
            <Anchor component={Link} to={`/tasks/${session.task_id}`} inherit underline="always">
              its task
            </Anchor>
          </>
        )}
        {session.vault_ids.length > 0 && <Vaults ids={session.vault_ids} />}
      </Text>
    </Group>
  );
}

/** The vaults whose secrets the session uses; one that is gone, or not for this person, is its id. */
function Vaults({ ids }: { ids: string[] }) {
  const known = useVaults(true).data ?? [];
  return (
    <>
      {" · with the secrets of "}
      {ids.map((id, index) => {
        const name = known.find((vault) => vault.id === id)?.display_name;
        return (
          <Fragment key={id}>
            {index > 0 && ", "}
            {name === undefined ? (
              id
            ) : (
              <Anchor component={Link} to={`/vaults/${id}`} inherit underline="always">
                {name}
              </Anchor>
            )}
          </Fragment>
        );
      })}
    </>
  );
}

function Title({ session }: { session: Session }) {
  const queries = useQueryClient();
  const rename = useChange("sessions", changes.renameSession);
  const [draft, setDraft] = useState<string>();
  const save = (event: FormEvent) => {
    event.preventDefault();
    rename.mutate(
      { id: session.id, title: draft ?? "" },
      { onSuccess: () => queries.invalidateQueries({ queryKey: ["session", session.id] }) },
    );
    setDraft(undefined);
  };
  if (draft !== undefined) {
    return (
      <form onSubmit={save} style={{ flex: "1 1 240px", maxWidth: 480 }}>
        <TextInput size="xs" aria-label="Title" value={draft} onChange={(event) => setDraft(event.currentTarget.value)} onBlur={() => setDraft(undefined)} autoFocus />
      </form>
    );
  }
  return (
    <Group gap={4} wrap="nowrap" miw={0}>
      <Text component="h1" fw={700} size="md" truncate m={0}>
        {nameOf(session)}
      </Text>
      <Tooltip label="Rename">
        <ActionIcon variant="subtle" color="gray" size="sm" aria-label="Rename" onClick={() => setDraft(session.title ?? "")}>
          <Pencil size={13} aria-hidden />
        </ActionIcon>
      </Tooltip>
    </Group>
  );
}
