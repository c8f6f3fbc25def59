import { ActionIcon, Anchor, Button, Card, Group, Menu, Stack, Switch, Text, TextInput } from "@mantine/core";
import { useDisclosure } from "@mantine/hooks";
import { Archive, EllipsisVertical, Plus, Search } from "lucide-react";
import { useState } from "react";
import { Link } from "react-router";

import { changes, useChange, useSessions } from "../api/hooks";
import type { Session } from "../api/types";
import { NewSession } from "../parts/new-session";
import { Loaded, Page } from "../parts/page";
import { StatusBadge } from "../parts/status";
import { TrustBadge } from "../parts/trust";
import { ago, tokens } from "../parts/words";

export function SessionsPage() {
  const [archived, setArchived] = useState(false);
  const [wanted, setWanted] = useState("");
  const [making, { open, close }] = useDisclosure();
  const sessions = useSessions(archived);
  return (
    <Page
      title="Sessions"
      actions={
        <Button leftSection={<Plus size={16} aria-hidden />} onClick={open}>
          New session
        </Button>
      }
    >
      <Group mb="sm">
        <TextInput
          flex={1}
          placeholder="Search by title, agent or workspace"
          aria-label="Search sessions"
          leftSection={<Search size={16} aria-hidden />}
          value={wanted}
          onChange={(event) => setWanted(event.currentTarget.value)}
        />
        <Switch label="Archived too" checked={archived} onChange={(event) => setArchived(event.currentTarget.checked)} />
      </Group>
      <Loaded query={sessions}>{(found) => <SessionList sessions={found.filter((one) => matches(one, wanted))} />}</Loaded>
      <NewSession opened={making} onClose={close} />
    </Page>
  );
}

function SessionList({ sessions }: { sessions: Session[] }) {
  if (sessions.length === 0) {
    return (
      <Text c="dimmed" ta="center" py="xl">
        No sessions here. Begin one with “New session”.
      </Text>
    );
  }
  return (
    <Stack gap="xs" component="ul" p={0} m={0} style={{ listStyle: "none" }}>
      {sessions.map((session) => (
        <SessionRow key={session.id} session={session} />
      ))}
    </Stack>
  );
}

function SessionRow({ session }: { session: Session }) {
  const used = (session.usage.input_tokens ?? 0) + (session.usage.output_tokens ?? 0);
  return (
    <Card withBorder padding="sm" component="li" className="session-row">
      <Group justify="space-between" wrap="nowrap" align="flex-start">
        <Stack gap={4} miw={0}>
          <Anchor component={Link} to={`/sessions/${session.id}`} fw={600} c="inherit" truncate className="covering">
            {nameOf(session)}
          </Anchor>
          <Group gap={8}>
            <TrustBadge trust={session.trust_level} />
            <StatusBadge status={session.status} />
            {session.archived_at !== null && <Text size="xs">archived</Text>}
          </Group>
          <Text size="xs" c="dimmed">
            {session.agent.name} · {session.workspace ?? "own workspace"} · {tokens(used)} tokens · {ago(session.updated_at)}
          </Text>
        </Stack>
        <RowMenu session={session} />
      </Group>
    </Card>
  );
}

function RowMenu({ session }: { session: Session }) {
  const archive = useChange("sessions", changes.archiveSession);
  return (
    <Menu position="bottom-end">
      <Menu.Target>
        <ActionIcon variant="subtle" color="gray" aria-label={`Actions for ${nameOf(session)}`} className="above">
          <EllipsisVertical size={16} aria-hidden />
        </ActionIcon>
      </Menu.Target>
      <Menu.Dropdown>
        <Menu.Item
          leftSection={<Archive size={14} aria-hidden />}
          disabled={session.archived_at !== null}
          onClick={() => archive.mutate(session.id)}
        >
          Archive
        </Menu.Item>
      </Menu.Dropdown>
    </Menu>
  );
}

export function nameOf(session: Session): string {
  return session.title ?? `Session with ${session.agent.name}`;
}

function matches(session: Session, wanted: string): boolean {
  const text = `${nameOf(session)} ${session.agent.name} ${session.workspace ?? ""} ${session.id}`;
  return text.toLowerCase().includes(wanted.trim().toLowerCase());
}
