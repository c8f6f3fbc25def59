import { ActionIcon, Anchor, Button, Card, Group, Menu, Modal, Stack, Switch, Text, TextInput } from "@mantine/core";
import { useDisclosure } from "@mantine/hooks";
import { Archive, Bot, Clock, EllipsisVertical, Folder, Plus, Search } from "lucide-react";
import { useState, type ReactNode } from "react";
import { Link } from "react-router";

import { changes, useChange, useSessions, useWorkspaces } from "../api/hooks";
import type { Session } from "../api/types";
import { NewSession } from "../parts/new-session";
import { Loaded, Page } from "../parts/page";
import { Nothing, Sure } from "../parts/resource";
import { StatusBadge } from "../parts/status";
import { TrustBadge } from "../parts/trust";
import { ago, money, nameOf, tokens, waits } from "../parts/words";

interface Row {
  session: Session;
  workspace: string;
}

export function SessionsPage() {
  const [archived, setArchived] = useState(false);
  const [wanted, setWanted] = useState("");
  const [making, { open, close }] = useDisclosure();
  const sessions = useSessions(archived);
  const workspaces = useWorkspaces().data ?? [];
  const row = (session: Session): Row => ({ session, workspace: workspaces.find(({ id }) => id === session.workspace)?.name ?? session.workspace ?? "own workspace" });
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
          flex="1 1 260px"
          placeholder="Search by title, agent or workspace"
          aria-label="Search sessions"
          leftSection={<Search size={16} aria-hidden />}
          value={wanted}
          onChange={(event) => setWanted(event.currentTarget.value)}
        />
        <Switch label="Archived too" checked={archived} onChange={(event) => setArchived(event.currentTarget.checked)} />
      </Group>
      <Loaded query={sessions}>{(found) => <SessionList rows={found.map(row)} wanted={wanted} />}</Loaded>
      <NewSession opened={making} onClose={close} />
    </Page>
  );
}

function SessionList({ rows, wanted }: { rows: Row[]; wanted: string }) {
  // Those that wait for somebody come first; otherwise the newest do.
  const shown = rows.filter((row) => matches(row, wanted)).sort((one, other) => Number(waits(other.session)) - Number(waits(one.session)));
  if (rows.length === 0) return <Nothing>No sessions here. Begin one with “New session”.</Nothing>;
  if (shown.length === 0) return <Nothing>None of {rows.length} sessions has “{wanted.trim()}” in its title, agent or workspace.</Nothing>;
  return (
    <Stack gap="xs" component="ul" p={0} m={0} style={{ listStyle: "none" }}>
      {shown.map((row) => (
        <SessionRow key={row.session.id} row={row} />
      ))}
    </Stack>
  );
}

function SessionRow({ row: { session, workspace } }: { row: Row }) {
  const { input_tokens, output_tokens, list_cost } = session.usage;
  return (
    <Card withBorder padding="sm" component="li" className="session-row">
      <Group justify="space-between" wrap="nowrap" align="flex-start">
        <Stack gap={6} miw={0} flex={1}>
          <Anchor component={Link} to={`/sessions/${session.id}`} fw={600} c="inherit" truncate className="covering">
            {nameOf(session)}
          </Anchor>
          <Group gap={8}>
            <TrustBadge trust={session.trust_level} />
            <StatusBadge status={waits(session) ? "waiting" : session.status} />
            {session.archived_at !== null && <Text size="xs">archived</Text>}
          </Group>
          <Group gap="md" style={{ rowGap: 2 }}>
            <Fact icon={<Bot size={13} aria-hidden />}>{session.agent.name}</Fact>
            <Fact icon={<Folder size={13} aria-hidden />}>{workspace}</Fact>
            <Fact icon={<Clock size={13} aria-hidden />}>{ago(session.updated_at)}</Fact>
            <Fact>{tokens((input_tokens ?? 0) + (output_tokens ?? 0))} tokens</Fact>
            {list_cost !== undefined && <Fact>{money(Number(list_cost.amount), list_cost.currency)}</Fact>}
          </Group>
        </Stack>
        <RowMenu session={session} />
      </Group>
    </Card>
  );
}

function Fact({ icon, children }: { icon?: ReactNode; children: ReactNode }) {
  return (
    <Group gap={4} wrap="nowrap" c="dimmed" miw={0}>
      {icon}
      <Text size="xs" truncate>
        {children}
      </Text>
    </Group>
  );
}

function RowMenu({ session }: { session: Session }) {
  const archive = useChange("sessions", changes.archiveSession);
  const [asking, { open, close }] = useDisclosure();
  return (
    <>
      <Menu position="bottom-end">
        <Menu.Target>
          <ActionIcon variant="subtle" color="gray" aria-label={`Actions for ${nameOf(session)}`} className="above">
            <EllipsisVertical size={16} aria-hidden />
          </ActionIcon>
        </Menu.Target>
        <Menu.Dropdown>
          <Menu.Item leftSection={<Archive size={14} aria-hidden />} disabled={session.archived_at !== null} onClick={open}>
            Archive
          </Menu.Item>
        </Menu.Dropdown>
      </Menu>
      <Modal opened={asking} onClose={close} title={`Archive ${nameOf(session)}?`}>
        <Sure says="The session ends: it can still be read, and forked, but takes no more messages. This cannot be undone." yes="Archive it" done={close} act={() => archive.mutate(session.id, { onSuccess: close })} busy={archive.isPending} />
      </Modal>
    </>
  );
}

function matches({ session, workspace }: Row, wanted: string): boolean {
  const text = `${nameOf(session)} ${session.agent.name} ${workspace} ${session.id}`;
  return text.toLowerCase().includes(wanted.trim().toLowerCase());
}
