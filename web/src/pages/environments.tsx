import { Button, Radio, Stack, TagsInput, TextInput } from "@mantine/core";
import { useState, type FormEvent } from "react";

import { changes, useChange, useEnvironments } from "../api/hooks";
import type { Environment } from "../api/types";
import { Loaded, Page } from "../parts/page";
import { FormButton, SureButton, ThingCard, Things } from "../parts/resource";

export function EnvironmentsPage() {
  const places = useEnvironments();
  return (
    <Page title="Environments" actions={<FormButton label="New environment" title="New environment" form={(done) => <EnvironmentForm done={done} />} />}>
      <Loaded query={places}>
        {(found) => (
          <Things none="No environments yet. An environment says what a sandbox may reach.">
            {found.map((place) => (
              <ThingCard
                key={place.id}
                name={place.name}
                to={place.config.type === "self_hosted" ? `/environments/${place.id}` : undefined}
                archived={place.archived_at !== null}
                about={aboutOf(place)}
                actions={<EnvironmentActions place={place} />}
              />
            ))}
          </Things>
        )}
      </Loaded>
    </Page>
  );
}

export function EnvironmentActions({ place }: { place: Environment }) {
  const archive = useChange("environments", changes.archiveEnvironment);
  if (place.archived_at !== null) return null;
  return (
    <>
      <FormButton variant="default" label="Edit" title={`Edit ${place.name}`} form={(done) => <EnvironmentForm place={place} done={done} />} />
      <SureButton
        label="Archive"
        title={`Archive ${place.name}?`}
        says="Sessions in it go on; new ones cannot be made in it. This cannot be undone."
        yes="Archive it"
        act={(done) => archive.mutate(place.id, { onSuccess: done })}
        busy={archive.isPending}
      />
    </>
  );
}

function EnvironmentForm({ place, done }: { place?: Environment; done: () => void }) {
  const create = useChange("environments", changes.createEnvironment);
  const update = useChange("environments", changes.updateEnvironment);
  const [name, setName] = useState(place?.name ?? "");
  const [kind, setKind] = useState(place?.config.type ?? "cloud");
  const [reach, setReach] = useState(place?.config.networking?.type ?? "limited");
  const [hosts, setHosts] = useState(place?.config.networking?.allowed_hosts ?? []);

  const submit = (event: FormEvent) => {
    event.preventDefault();
    const networking = reach === "limited" ? { type: reach, allowed_hosts: hosts } : { type: reach };
    const body = { name, config: kind === "cloud" ? { type: kind, networking } : { type: kind } };
    if (place) update.mutate({ id: place.id, ...body }, { onSuccess: done });
    else create.mutate(body, { onSuccess: done });
  };

  return (
    <form onSubmit={submit}>
      <Stack>
        <TextInput label="Name" value={name} onChange={(event) => setName(event.currentTarget.value)} required data-autofocus />
        {place === undefined && (
          <Radio.Group label="Tools run" value={kind} onChange={setKind}>
            <Stack gap="xs" mt={4}>
              <Radio value="cloud" label="On this server" />
              <Radio value="self_hosted" label="On machines of yours" description="Workers there need a key, which is made on the environment's page." />
            </Stack>
          </Radio.Group>
        )}
        {kind === "cloud" && (
          <Radio.Group label="Network" value={reach} onChange={setReach}>
            <Stack gap="xs" mt={4}>
              <Radio value="limited" label="Only the hosts below" description="None named: the sandbox reaches nothing but the model." />
              <Radio value="unrestricted" label="Everything but private addresses" />
            </Stack>
          </Radio.Group>
        )}
        {kind === "cloud" && reach === "limited" && <TagsInput label="Allowed hosts" placeholder="example.org, *.example.org" value={hosts} onChange={setHosts} />}
        <Button type="submit" loading={create.isPending || update.isPending}>
          Save
        </Button>
      </Stack>
    </form>
  );
}

export function aboutOf(place: Environment): string {
  if (place.config.type === "self_hosted") return "tools run on machines of yours";
  const networking = place.config.networking;
  if (networking?.type === "unrestricted") return "reaches everything but private addresses";
  const hosts = networking?.allowed_hosts ?? [];
  return hosts.length === 0 ? "reaches nothing but the model" : `reaches ${hosts.join(", ")}`;
}
