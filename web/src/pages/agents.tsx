import { Button, Select, Stack, Textarea, TextInput } from "@mantine/core";
import { useState, type FormEvent } from "react";

import { changes, useAgents, useChange } from "../api/hooks";
import type { Agent, Toolset } from "../api/types";
import { Loaded, Page } from "../parts/page";
import { FormButton, ThingCard, Things } from "../parts/resource";

const TOOLSET = "agent_toolset_20260401";
const POLICIES = [
  { value: "always_allow", label: "Runs its tools by itself" },
  { value: "always_ask", label: "Asks before every tool" },
  { value: "auto", label: "Reads by itself, asks before it changes anything" },
];

export function AgentsPage() {
  const agents = useAgents();
  const archive = useChange("agents", changes.archiveAgent);
  return (
    <Page title="Agents" actions={<FormButton label="New agent" title="New agent" form={(done) => <AgentForm done={done} />} />}>
      <Loaded query={agents}>
        {(found) => (
          <Things none="No agents yet. An agent is a model, a system prompt and the tools it may use.">
            {found.map((agent) => (
              <ThingCard
                key={agent.id}
                name={agent.name}
                archived={agent.archived_at !== null}
                about={`${agent.model.id} · version ${agent.version} · ${policyLabel(agent)}`}
                actions={
                  agent.archived_at === null && (
                    <>
                      <FormButton variant="default" label="Edit" title={`Edit ${agent.name}`} form={(done) => <AgentForm agent={agent} done={done} />} />
                      <Button variant="default" size="xs" onClick={() => archive.mutate(agent.id)}>
                        Archive
                      </Button>
                    </>
                  )
                }
              />
            ))}
          </Things>
        )}
      </Loaded>
    </Page>
  );
}

function AgentForm({ agent, done }: { agent?: Agent; done: () => void }) {
  const create = useChange("agents", changes.createAgent);
  const update = useChange("agents", changes.updateAgent);
  const [name, setName] = useState(agent?.name ?? "");
  const [model, setModel] = useState(agent?.model.id ?? "claude-opus-5-5");
  const [system, setSystem] = useState(agent?.system ?? "");
  const [policy, setPolicy] = useState(agent ? policyOf(agent) : "always_allow");

  const submit = (event: FormEvent) => {
    event.preventDefault();
    const body = { name, model, system: system || null, tools: withPolicy(agent?.tools ?? [], policy) };
    if (agent) update.mutate({ id: agent.id, version: agent.version, ...body }, { onSuccess: done });
    else create.mutate(body, { onSuccess: done });
  };

  return (
    <form onSubmit={submit}>
      <Stack>
        <TextInput label="Name" value={name} onChange={(event) => setName(event.currentTarget.value)} required data-autofocus />
        <TextInput label="Model" value={model} onChange={(event) => setModel(event.currentTarget.value)} required />
        <Textarea label="System prompt" autosize minRows={3} maxRows={12} value={system} onChange={(event) => setSystem(event.currentTarget.value)} />
        <Select label="Tools" data={POLICIES} value={policy} onChange={(value) => setPolicy(value ?? "always_ask")} allowDeselect={false} />
        <Button type="submit" loading={create.isPending || update.isPending}>
          Save
        </Button>
      </Stack>
    </form>
  );
}

function policyOf(agent: Agent): string {
  const toolset = agent.tools.find((one) => one.type === TOOLSET);
  return toolset?.default_config?.permission_policy.type ?? "always_allow";
}

function policyLabel(agent: Agent): string {
  if (!agent.tools.some((one) => one.type === TOOLSET)) return "no built-in tools";
  return POLICIES.find(({ value }) => value === policyOf(agent))?.label.toLowerCase() ?? "";
}

/** The tools with another policy for the built-in ones; whatever else the agent has stays. */
function withPolicy(tools: Toolset[], policy: string): unknown[] {
  const others = tools.filter((one) => one.type !== TOOLSET);
  const built = tools.find((one) => one.type === TOOLSET) ?? { type: TOOLSET };
  return [{ ...built, default_config: { enabled: true, permission_policy: { type: policy } } }, ...others];
}
