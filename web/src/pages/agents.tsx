import { Button, Select, Stack, Textarea, TextInput } from "@mantine/core";
import { useState, type FormEvent } from "react";

import { changes, useAgents, useChange } from "../api/hooks";
import type { Agent } from "../api/types";
import { Loaded, Page } from "../parts/page";
import { FormButton, SureButton, ThingCard, Things } from "../parts/resource";
import { POLICIES, policyLabel, policyOf, withPolicy } from "../parts/tools";

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
                      <SureButton
                        label="Archive"
                        title={`Archive ${agent.name}?`}
                        says="Sessions that it works in go on; new ones cannot be made with it. This cannot be undone."
                        yes="Archive it"
                        act={(done) => archive.mutate(agent.id, { onSuccess: done })}
                        busy={archive.isPending}
                      />
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
  const [policy, setPolicy] = useState(agent ? policyOf(agent) : "auto");

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
