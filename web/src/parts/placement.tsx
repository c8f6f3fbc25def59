/** Who works, and where: the choices that a new session and the run of a task have in common. */

import { Alert, Anchor, Group, Radio, Select, Stack, Text } from "@mantine/core";
import { useEffect, useState, type FormEvent } from "react";
import { Link } from "react-router";

import { useAgents, useEnvironments, useHarnesses, useMe, useWorkspaces } from "../api/hooks";
import type { Agent, Harness, Me, Trust, Workspace } from "../api/types";
import { lacksOf } from "./harness";
import { hasTools } from "./tools";
import type { Troubles } from "./trouble";
import { TRUST } from "./trust";
import { sentence } from "./words";

const LEVELS: Trust[] = ["sandboxed", "vault", "full"];
const OWN = "own";
const USUAL = "usual";

/** What was chosen before. */
interface First {
  agent?: string | null;
  place?: string | null;
  trust?: Trust | null;
  workspace?: string | null;
  scope?: string | null;
  harness?: string | null;
}

/** What was chosen, and what there is to choose from. */
export function usePlacement(first: First = {}) {
  const allAgents = useAgents();
  const allPlaces = useEnvironments();
  const agents = (allAgents.data ?? []).filter((agent) => agent.archived_at === null);
  const places = (allPlaces.data ?? []).filter((place) => place.archived_at === null);
  const workspaces = useWorkspaces().data ?? [];
  const [agent, setAgent] = useState<string | null>(first.agent ?? null);
  const [place, setPlace] = useState<string | null>(first.place ?? null);
  const [trust, setTrust] = useState<Trust>(first.trust ?? "sandboxed");
  const [workspace, setWorkspace] = useState<string>(first.workspace ?? OWN);
  const [scope, setScope] = useState(first.scope ?? "workspace");
  const [harness, setHarness] = useState<string>(first.harness ?? USUAL);
  const chosen = { agent: agent ?? firstAgent(agents)?.id ?? null, place: place ?? lastOf(places, "environment")?.id ?? places[0]?.id ?? null };
  const options = {
    trust_level: trust,
    ...(workspace === OWN ? {} : { workspace }),
    ...(scope === "workspace" ? {} : { mount_scope: scope }),
    ...(harness === USUAL ? {} : { harness }),
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
    harness,
    set: { agent: setAgent, place: setPlace, trust: setTrust, workspace: setWorkspace, scope: setScope, harness: setHarness },
    /** The fields of a request; undefined while something is missing. */
    request: chosen.agent === null || chosen.place === null ? undefined : { agent: chosen.agent, environment_id: chosen.place, ...options },
  };
}

/** What this person has chosen last, if it is still there. */
function lastOf<T extends { id: string }>(things: T[], kind: string): T | undefined {
  const id = localStorage.getItem(`roost.last.${kind}`);
  return things.find((thing) => thing.id === id);
}

/** The agent of last time, or else the newest one that can do something. */
function firstAgent(agents: Agent[]): Agent | undefined {
  return lastOf(agents, "agent") ?? agents.find(hasTools) ?? agents[0];
}

export type Placement = ReturnType<typeof usePlacement>;

/** Acts when somebody submits: at once, or as soon as what is still on its way has come. */
export function useSubmit(placement: Placement, act: (request: NonNullable<Placement["request"]>) => void) {
  const [asked, setAsked] = useState(false);
  useEffect(() => {
    if (!asked || placement.loading) return;
    setAsked(false);
    if (placement.request === undefined) return;
    localStorage.setItem("roost.last.agent", placement.request.agent);
    localStorage.setItem("roost.last.environment", placement.request.environment_id);
    act(placement.request);
  }, [asked, placement, act]);
  const submit = (event: FormEvent) => {
    event.preventDefault();
    setAsked(true);
  };
  return { submit, waiting: asked, disabled: !placement.loading && placement.request === undefined };
}

export function PlacementFields({ placement, troubles = {} }: { placement: Placement; troubles?: Troubles }) {
  const { loading, agents, places, workspaces, chosen, trust, workspace, scope, harness, set } = placement;
  const me = useMe().data;
  const agent = agents.find(({ id }) => id === chosen.agent);
  const idle = agent !== undefined && !hasTools(agent);
  // The browser is not asked whether they are filled: it would look at their text, which comes a moment after the
  // choice, and refuse who is quick. `useSubmit` waits for the choices.
  return (
    <>
      {!loading && (agents.length === 0 || places.length === 0) && <FirstThings agents={agents.length} places={places.length} />}
      <Select label="Agent" description={idle && "This agent has no tools: it can talk, and neither read nor change anything."} data={agents.map(({ id, name }) => ({ value: id, label: name }))} value={chosen.agent} onChange={set.agent} allowDeselect={false} searchable withAsterisk aria-required />
      <Select label="Environment" data={places.map(({ id, name }) => ({ value: id, label: name }))} value={chosen.place} onChange={set.place} allowDeselect={false} searchable withAsterisk aria-required />
      <HarnessSelect value={harness} onChange={set.harness} error={troubles.harness} />
      <WorkspaceSelect workspaces={workspaces} value={workspace} onChange={set.workspace} />
      <Radio.Group label="Trust" value={trust} onChange={(value) => set.trust(value as Trust)}>
        <Stack gap="xs" mt={4}>
          {LEVELS.map((level) => (
            <TrustChoice key={level} level={level} refused={refusalOf(level, me)} />
          ))}
        </Stack>
      </Radio.Group>
      <Radio.Group label="What the sandbox sees" value={scope} onChange={set.scope}>
        <Group mt={4}>
          <Radio value="workspace" label="Its workspace" />
          <Radio value="workspace+vault" label="Its workspace, and the vault directory to read" />
        </Group>
      </Radio.Group>
    </>
  );
}

/** Those that cannot be had can be looked at all the same: the field then says why. */
function HarnessSelect({ value, onChange, error }: { value: string; onChange: (value: string) => void; error?: string }) {
  const known = useHarnesses().data ?? [];
  if (known.length === 0) return null;
  const usual = { value: USUAL, label: "The usual one" };
  const named = known.map((one) => ({ value: one.name, label: one.available ? one.name : `${one.name} (not available)` }));
  const chosen = known.find(({ name }) => name === value);
  const about = `The program that works as the agent. The usual one is what the agent or the key for its model asks for, or else ${known.find((one) => one.default)?.name ?? "the server's"}.`;
  return (
    <Select
      label="Harness"
      description={lacksOf(chosen) ?? about}
      data={[usual, ...named]}
      value={value}
      onChange={(name) => onChange(name ?? USUAL)}
      error={chosen === undefined || chosen.available ? error : whyNot(chosen)}
      allowDeselect={false}
    />
  );
}

const whyNot = ({ unavailable }: Harness) => `It is not available here: ${sentence(unavailable?.message ?? "nobody says why")} ${unavailable?.hint ?? ""}`.trim();

function WorkspaceSelect({ workspaces, value, onChange }: { workspaces: Workspace[]; value: string; onChange: (value: string) => void }) {
  const data = [{ value: OWN, label: "One of its own" }, ...workspaces.map(({ id, name }) => ({ value: id, label: name }))];
  return (
    <Select
      label="Workspace"
      description={workspaces.length === 0 ? "Workspaces that several sessions share are made on the page Workspaces." : "A workspace that has a name is shared by all sessions in it."}
      data={data}
      value={value === OWN ? OWN : (workspaces.find(({ name }) => name === value)?.id ?? value)} // the API takes names, too
      onChange={(chosen) => onChange(chosen ?? OWN)}
      allowDeselect={false}
      searchable
    />
  );
}

/** Why a session cannot have this level; undefined if it can. */
function refusalOf(level: Trust, me: Me | undefined): string | undefined {
  if (me === undefined || me.trust_levels.includes(level)) return undefined;
  return LEVELS.indexOf(level) > LEVELS.indexOf(me.trust_ceiling) ? "Your key does not reach this level." : "This server does not offer it (ROOST_TRUST_LEVELS).";
}

function TrustChoice({ level, refused }: { level: Trust; refused?: string }) {
  const { word, icon: Icon, means } = TRUST[level];
  const label = (
    <Group gap={6}>
      <Icon size={15} aria-hidden />
      {word}
    </Group>
  );
  return <Radio value={level} disabled={refused !== undefined} label={label} description={refused ?? means} />;
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
