/** Who works, and where: the choices that a new session and the run of a task have in common. */

import { Alert, Anchor, Group, Radio, Select, Stack, Text } from "@mantine/core";
import { useEffect, useState, type FormEvent } from "react";
import { Link } from "react-router";

import { useAgents, useEnvironments, useMe, useWorkspaces } from "../api/hooks";
import type { Trust, Workspace } from "../api/types";
import { TRUST } from "./trust";

const LEVELS: Trust[] = ["sandboxed", "vault", "full"];
const OWN = "own";

/** What was chosen, and what there is to choose from. */
export function usePlacement(first: { agent?: string | null; place?: string | null } = {}) {
  const allAgents = useAgents();
  const allPlaces = useEnvironments();
  const agents = (allAgents.data ?? []).filter((agent) => agent.archived_at === null);
  const places = (allPlaces.data ?? []).filter((place) => place.archived_at === null);
  const workspaces = useWorkspaces().data ?? [];
  const [agent, setAgent] = useState<string | null>(first.agent ?? null);
  const [place, setPlace] = useState<string | null>(first.place ?? null);
  const [trust, setTrust] = useState<Trust>("sandboxed");
  const [workspace, setWorkspace] = useState<string>(OWN);
  const [scope, setScope] = useState("workspace");
  const chosen = { agent: agent ?? agents[0]?.id ?? null, place: place ?? places[0]?.id ?? null };
  const options = {
    trust_level: trust,
    ...(workspace === OWN ? {} : { workspace }),
    ...(scope === "workspace" ? {} : { mount_scope: scope }),
  };
  return {
    /** What there is to choose from is still on its way. */
    loading: allAgents.isPending || allPlaces.isPending,
    agents,
    places,
    workspaces,
    chosen,
    trust,
    workspace,
    scope,
    set: { agent: setAgent, place: setPlace, trust: setTrust, workspace: setWorkspace, scope: setScope },
    /** The fields of a request; undefined while something is missing. */
    request: chosen.agent === null || chosen.place === null ? undefined : { agent: chosen.agent, environment_id: chosen.place, ...options },
  };
}

export type Placement = ReturnType<typeof usePlacement>;

/** Acts when somebody submits: at once, or as soon as what is still on its way has come. */
export function useSubmit(placement: Placement, act: (request: NonNullable<Placement["request"]>) => void) {
  const [asked, setAsked] = useState(false);
  useEffect(() => {
    if (!asked || placement.loading) return;
    setAsked(false);
    if (placement.request !== undefined) act(placement.request);
  }, [asked, placement, act]);
  const submit = (event: FormEvent) => {
    event.preventDefault();
    setAsked(true);
  };
  return { submit, waiting: asked, disabled: !placement.loading && placement.request === undefined };
}

export function PlacementFields({ placement }: { placement: Placement }) {
  const { loading, agents, places, workspaces, chosen, trust, workspace, scope, set } = placement;
  const reach = LEVELS.indexOf(useMe().data?.trust_ceiling ?? "sandboxed");
  return (
    <>
      {!loading && (agents.length === 0 || places.length === 0) && <FirstThings agents={agents.length} places={places.length} />}
      <Select label="Agent" data={agents.map(({ id, name }) => ({ value: id, label: name }))} value={chosen.agent} onChange={set.agent} allowDeselect={false} searchable required />
      <Select label="Environment" data={places.map(({ id, name }) => ({ value: id, label: name }))} value={chosen.place} onChange={set.place} allowDeselect={false} searchable required />
      <WorkspaceSelect workspaces={workspaces} value={workspace} onChange={set.workspace} />
      <Radio.Group label="Trust" value={trust} onChange={(value) => set.trust(value as Trust)}>
        <Stack gap="xs" mt={4}>
          {LEVELS.map((level, rank) => (
            <TrustChoice key={level} level={level} disabled={rank > reach} />
          ))}
        </Stack>
      </Radio.Group>
      <Radio.Group label="What the sandbox sees" value={scope} onChange={set.scope}>
        <Group mt={4}>
          <Radio value="workspace" label="Its workspace" />
          <Radio value="workspace+vault" label="Its workspace, and the vault to read" />
        </Group>
      </Radio.Group>
    </>
  );
}

function WorkspaceSelect({ workspaces, value, onChange }: { workspaces: Workspace[]; value: string; onChange: (value: string) => void }) {
  const data = [{ value: OWN, label: "One of its own" }, ...workspaces.map(({ id, name }) => ({ value: id, label: name }))];
  return (
    <Select
      label="Workspace"
      description={workspaces.length === 0 ? "Workspaces that several sessions share are made on the page Workspaces." : "A workspace that has a name is shared by all sessions in it."}
      data={data}
      value={value}
      onChange={(chosen) => onChange(chosen ?? OWN)}
      allowDeselect={false}
      searchable
    />
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
    <Alert color="blue" title={agents + places === 0 ? "Two things come first" : "One thing comes first"}>
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
