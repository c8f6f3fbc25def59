import { Button, Checkbox, Code, Group, Stack, Switch, Text, Textarea, TextInput } from "@mantine/core";
import { useState } from "react";
import { useNavigate } from "react-router";

import { changes, useAgents, useChange, useDeployments, useEnvironments, useSave, useVaults } from "../api/hooks";
import type { Deployment, InitialEvent, Planned } from "../api/types";
import { inWords } from "../parts/cron";
import { Loaded, Page } from "../parts/page";
import { PlacementFields, usePlacement, useSubmit } from "../parts/placement";
import { FormButton, FormTrouble, SureButton, ThingCard, Things } from "../parts/resource";
import { MISSED, OVERLAP, SCHEDULE_PATHS, ScheduleFields, useSchedule, windowInWords } from "../parts/schedule-fields";
import { StatusBadge } from "../parts/status";
import { useTroubles } from "../parts/trouble";
import { VaultChoice } from "../parts/vault-choice";
import { ago } from "../parts/words";

export function DeploymentsPage() {
  const [archived, setArchived] = useState(false);
  const deployments = useDeployments(archived);
  const actions = (
    <>
      <Switch label="Archived" checked={archived} onChange={(event) => setArchived(event.currentTarget.checked)} />
      <FormButton label="New deployment" title="New deployment" form={(done) => <DeploymentForm done={done} />} />
    </>
  );
  return (
    <Page title="Deployments" actions={actions}>
      <Text size="sm" c="dimmed" mb="sm">
        Sessions that are made again and again in the same way, by hand or on a schedule.
      </Text>
      <Loaded query={deployments}>
        {(found) => (
          <Things none="No deployments yet.">
            {found.map((deployment) => (
              <ThingCard
                key={deployment.id}
                name={deployment.name}
                to={`/deployments/${deployment.id}`}
                about={<DeploymentFacts deployment={deployment} />}
                actions={<DeploymentActions deployment={deployment} />}
              />
            ))}
          </Things>
        )}
      </Loaded>
    </Page>
  );
}

/** How it stands and when it runs; `whole`: also with what. */
export function DeploymentFacts({ deployment, whole = false }: { deployment: Deployment; whole?: boolean }) {
  const { schedule, archived_at: archived, status, description } = deployment;
  const next = schedule?.upcoming_runs_at[0];
  return (
    <Stack gap={4} mb={whole ? 4 : 0}>
      <Group gap="xs">
        <StatusBadge status={archived === null ? status : "archived"} />
        {schedule === null ? <span>by hand only</span> : <Times {...schedule} />}
      </Group>
      {archived === null && status === "active" && next !== undefined && <span>next run {ago(next)}</span>}
      {!whole && archived === null && deployment.paused_reason?.type === "error" && <b>{heldBy(deployment)}</b>}
      {description !== null && <span>{description}</span>}
      {whole && <Parts deployment={deployment} />}
    </Stack>
  );
}

/** A schedule in words and as cron. */
function Times({ expression, timezone }: NonNullable<Planned["schedule"]>) {
  return (
    <span>
      {inWords(expression) ?? "On a schedule"}, {timezone} <Code style={{ whiteSpace: "nowrap" }}>{expression}</Code>
    </span>
  );
}

/** With what its sessions are made, by name where there is one, and its policies. */
function Parts({ deployment }: { deployment: Deployment }) {
  const { agent, environment_id: place, vault_ids: vaults, missed_runs: missed } = deployment;
  const nameOf = (id: string, all: { id: string; name: string }[] | undefined) => all?.find((one) => one.id === id)?.name ?? id;
  const known = (useVaults(false, vaults.length > 0).data ?? []).map(({ id, display_name }) => ({ id, name: display_name }));
  const agents = useAgents().data;
  const places = useEnvironments().data;
  return (
    <>
      <span>
        {nameOf(agent.id, agents)} (version {agent.version}) in {nameOf(place, places)}
        {vaults.length > 0 && `, with ${vaults.map((id) => nameOf(id, known)).join(", ")}`}
      </span>
      {deployment.schedule !== null && (
        <span>
          Times at which no server ran: {MISSED[missed.policy].toLowerCase()}
          {missed.policy !== "skip" && `, up to ${windowInWords(missed.window_seconds)} back`}. If the last run still works: {OVERLAP[deployment.overlap].toLowerCase()}.
        </span>
      )}
    </>
  );
}

export function DeploymentActions({ deployment }: { deployment: Deployment }) {
  const navigate = useNavigate();
  const run = useChange("deployments", changes.runDeployment);
  const pause = useChange("deployments", changes.pauseDeployment);
  const unpause = useChange("deployments", changes.unpauseDeployment);
  const archive = useChange("deployments", changes.archiveDeployment);
  const held = deployment.status === "paused" ? unpause : pause;
  if (deployment.archived_at !== null) return null;
  return (
    <>
      <Button variant="default" size="xs" loading={run.isPending} onClick={() => run.mutate(deployment.id, { onSuccess: () => navigate(`/deployments/${deployment.id}`) })}>
        Run now
      </Button>
      {(deployment.schedule !== null || deployment.status === "paused") && (
        <Button variant="default" size="xs" loading={held.isPending} onClick={() => held.mutate(deployment.id)}>
          {deployment.status === "paused" ? "Unpause" : "Pause"}
        </Button>
      )}
      <FormButton variant="default" label="Edit" title="Edit the deployment" form={(done) => <DeploymentForm of={deployment} done={done} />} />
      <SureButton
        label="Archive"
        title="Archive this deployment?"
        says="It runs no more, and cannot be brought back. Its sessions and the list of its runs stay."
        yes="Archive the deployment"
        busy={archive.isPending}
        act={(done) => archive.mutate(deployment.id, { onSuccess: done })}
      />
    </>
  );
}

/** Why nothing starts by itself; undefined if it does. */
export function heldBy({ status, paused_reason: reason }: Deployment): string | undefined {
  if (status !== "paused" || reason === null) return undefined;
  if (reason.type === "manual") return "It is paused: nothing starts at these times. What passes meanwhile is not made up for.";
  return `It was paused after an error (${reason.error.type}): nothing starts by itself. ${whatToDo(reason.error.type)} Then unpause it.`;
}

const TODO: Record<string, string> = {
  agent_archived_error: "Its agent is archived, and so is this deployment: make another one.",
  environment_archived_error: "Choose another environment under Edit.",
  environment_not_found_error: "Choose another environment under Edit.",
  vault_archived_error: "Choose other vaults under Edit.",
  vault_not_found_error: "Choose other vaults under Edit.",
  file_not_found_error: "Upload the file again, and name it in the deployment's resources by the API.",
  skill_not_found_error: "Change the agent's skills, then choose its newest version under Edit.",
  self_hosted_resources_unsupported_error: "Choose an environment that is not self-hosted under Edit, or remove the resources by the API.",
  session_rate_limited_error: "A quota is used up: end sessions that are not needed, or have it raised.",
  session_creation_rejected_error: "Change what does not fit under Edit.",
  unknown_error: "Look at the last run, which says what was wrong.",
};

/** What somebody can do about an error of a run. */
export const whatToDo = (error: string): string => TODO[error] ?? "";

/** The one message that its sessions begin with; undefined if they begin with anything else. */
export function messageOf(events: InitialEvent[]): string | undefined {
  const [only, ...others] = events;
  const texts = only?.type === "user.message" && others.length === 0 ? (only.content ?? []) : [];
  const all = texts.map((block) => block.text);
  return texts.length > 0 && texts.every((block) => block.type === "text") ? all.join("\n\n") : undefined;
}

const NEW: Planned = { schedule: null, missed_runs: { policy: "skip", window_seconds: 86_400 }, overlap: "allow", paused_reason: null };
const PATHS = { name: "name", description: "description", initial_events: "message", vault_ids: "vaults", harness: "harness", ...SCHEDULE_PATHS };

/** A new deployment, or a change of one; what only the API can say of it stays. */
function DeploymentForm({ of, done }: { of?: Deployment; done: () => void }) {
  const navigate = useNavigate();
  const create = useSave("deployments", changes.createDeployment);
  const change = useSave("deployments", changes.changeDeployment);
  const [name, setName] = useState(of?.name ?? "");
  const [description, setDescription] = useState(of?.description ?? "");
  const [message, setMessage] = useState(of === undefined ? "" : messageOf(of.initial_events));
  const [vaults, setVaults] = useState<string[]>(of?.vault_ids ?? []);
  const [newest, setNewest] = useState(false);
  const schedule = useSchedule(of ?? NEW);
  const placement = usePlacement({ agent: of?.agent.id, place: of?.environment_id, trust: of?.trust_level, workspace: of?.workspace, scope: of?.mount_scope, harness: of?.harness });
  const { form, troubles } = useTroubles(create.error ?? change.error, { paths: PATHS });
  const { submit, waiting, disabled } = useSubmit(placement, ({ agent, ...place }) => {
    const events = message === undefined ? {} : { initial_events: [{ type: "user.message", content: [{ type: "text", text: message }] }] };
    const given = { name, description, vault_ids: vaults, ...events, ...schedule.request };
    if (of === undefined) {
      create.mutate({ ...given, ...place, agent }, { onSuccess: ({ id }) => (done(), navigate(`/deployments/${id}`)) });
    } else {
      const options = { workspace: null, mount_scope: null, harness: null, ...place };
      change.mutate({ id: of.id, ...given, ...options, ...(newest || agent !== of.agent.id ? { agent } : {}) }, { onSuccess: done });
    }
  });
  return (
    <form ref={form} onSubmit={submit}>
      <Stack>
        <TextInput label="Name" value={name} onChange={(event) => setName(event.currentTarget.value)} error={troubles.name} required data-autofocus />
        <TextInput label="Description" value={description} onChange={(event) => setDescription(event.currentTarget.value)} error={troubles.description} />
        {message === undefined ? (
          <Text size="sm">What its sessions begin with was given by the API, and stays as it is.</Text>
        ) : (
          <Textarea label="What to do" description="The first message of each session." autosize minRows={3} maxRows={12} value={message} onChange={(event) => setMessage(event.currentTarget.value)} error={troubles.message} required />
        )}
        <ScheduleFields schedule={schedule} troubles={troubles} />
        <PlacementFields placement={placement} troubles={troubles} />
        <NewestVersion of={of} agent={placement.chosen.agent} newest={newest} setNewest={setNewest} />
        <VaultChoice chosen={vaults} setChosen={setVaults} error={troubles.vaults} />
        <FormTrouble>{troubles.form}</FormTrouble>
        <Button type="submit" loading={waiting || create.isPending || change.isPending} disabled={disabled}>
          {of === undefined ? "Create" : "Save"}
        </Button>
      </Stack>
    </form>
  );
}

/** A deployment keeps the version of its agent until somebody says otherwise. */
function NewestVersion({ of, agent, newest, setNewest }: { of?: Deployment; agent: string | null; newest: boolean; setNewest: (wanted: boolean) => void }) {
  const known = useAgents().data?.find(({ id }) => id === of?.agent.id);
  if (of === undefined || known === undefined || agent !== known.id || known.version === of.agent.version) return null;
  return (
    <Checkbox
      label={`Use the agent's newest version, ${known.version}`}
      description={`Until now it uses version ${of.agent.version}.`}
      checked={newest}
      onChange={(event) => setNewest(event.currentTarget.checked)}
    />
  );
}
