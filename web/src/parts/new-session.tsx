import { Alert, Anchor, Button, Group, Modal, Radio, Select, Stack, Text, TextInput } from "@mantine/core";
import { useState, type FormEvent } from "react";
import { Link, useNavigate } from "react-router";

import { changes, useAgents, useChange, useEnvironments, useMe } from "../api/hooks";
import type { Trust } from "../api/types";
import { TRUST } from "./trust";

const LEVELS: Trust[] = ["sandboxed", "vault", "full"];

export function NewSession({ opened, onClose }: { opened: boolean; onClose: () => void }) {
  return (
    <Modal opened={opened} onClose={onClose} title="New session" size="lg">
      <NewSessionForm />
    </Modal>
  );
}

function NewSessionForm() {
  const agents = (useAgents().data ?? []).filter((agent) => agent.archived_at === null);
  const places = (useEnvironments().data ?? []).filter((place) => place.archived_at === null);
  const me = useMe().data;
  const navigate = useNavigate();
  const create = useChange("sessions", changes.createSession);
  const [title, setTitle] = useState("");
  const [agent, setAgent] = useState<string | null>(null);
  const [place, setPlace] = useState<string | null>(null);
  const [trust, setTrust] = useState<Trust>("sandboxed");
  const [scope, setScope] = useState("workspace");
  const chosenAgent = agent ?? agents[0]?.id ?? null;
  const chosenPlace = place ?? places[0]?.id ?? null;
  const reach = LEVELS.indexOf(me?.trust_ceiling ?? "sandboxed");

  const submit = (event: FormEvent) => {
    event.preventDefault();
    const options = { trust_level: trust, ...(scope === "workspace" ? {} : { mount_scope: scope }) };
    create.mutate(
      { agent: chosenAgent, environment_id: chosenPlace, ...(title ? { title } : {}), ...options },
      { onSuccess: (session) => navigate(`/sessions/${session.id}`) },
    );
  };

  return (
    <form onSubmit={submit}>
      <Stack>
        {(agents.length === 0 || places.length === 0) && <FirstThings agents={agents.length} places={places.length} />}
        <TextInput label="Title" placeholder="What is it about?" value={title} onChange={(event) => setTitle(event.currentTarget.value)} data-autofocus />
        <Select label="Agent" data={agents.map(({ id, name }) => ({ value: id, label: name }))} value={chosenAgent} onChange={setAgent} required />
        <Select label="Environment" data={places.map(({ id, name }) => ({ value: id, label: name }))} value={chosenPlace} onChange={setPlace} required />
        <Radio.Group label="Trust" value={trust} onChange={(value) => setTrust(value as Trust)}>
          <Stack gap="xs" mt={4}>
            {LEVELS.map((level, rank) => (
              <TrustChoice key={level} level={level} disabled={rank > reach} />
            ))}
          </Stack>
        </Radio.Group>
        <Radio.Group label="What the sandbox sees" value={scope} onChange={setScope}>
          <Group mt={4}>
            <Radio value="workspace" label="Its workspace" />
            <Radio value="workspace+vault" label="Its workspace, and the vault to read" />
          </Group>
        </Radio.Group>
        <Button type="submit" loading={create.isPending} disabled={chosenAgent === null || chosenPlace === null}>
          Begin
        </Button>
      </Stack>
    </form>
  );
}

function TrustChoice({ level, disabled }: { level: Trust; disabled: boolean }) {
  const { word, icon: Icon, means } = TRUST[level];
  const label = (
    <Group gap={6}>
      <Icon size={15} aria-hidden />
      {word}
    </Group>
  );
  return <Radio value={level} disabled={disabled} label={label} description={disabled ? "Your key does not reach this level." : means} />;
}

function FirstThings({ agents, places }: { agents: number; places: number }) {
  return (
    <Alert color="blue" title="Two things come first">
      <Text size="sm">
        {agents === 0 && (
          <>
            Make an <Anchor component={Link} to="/agents">agent</Anchor>.{" "}
          </>
        )}
        {places === 0 && (
          <>
            Make an <Anchor component={Link} to="/environments">environment</Anchor>.
          </>
        )}
      </Text>
    </Alert>
  );
}
