import { Button, Stack, Text, TextInput } from "@mantine/core";
import { useState, type FormEvent } from "react";
import { useParams } from "react-router";

import { changes, useChange, useEnvironment, useEnvironmentKeys } from "../api/hooks";
import type { Environment } from "../api/types";
import { Loaded, Section } from "../parts/page";
import { FormButton, SureButton, ThingCard, Things } from "../parts/resource";
import { Secret } from "../parts/secret";
import { ThingPage } from "../parts/thing-page";
import { ago } from "../parts/words";
import { EnvironmentActions, aboutOf } from "./environments";
import { NotFoundPage } from "./not-found";

export function EnvironmentPage() {
  const { id = "" } = useParams();
  return (
    <ThingPage
      query={useEnvironment(id)}
      all={{ to: "/environments", label: "all environments" }}
      gone={<NotFoundPage />}
      show={(found) => ({
        title: found.name,
        about: <>{aboutOf(found)} · </>,
        actions: <EnvironmentActions place={found} />,
        children: found.config.type === "self_hosted" && <WorkerKeys place={found} />,
      })}
    />
  );
}

/** What lets the workers of a self-hosted environment in. */
function WorkerKeys({ place }: { place: Environment }) {
  const keys = useEnvironmentKeys(place.id);
  const revoke = useChange("environments", changes.revokeEnvironmentKey);
  const make = <FormButton label="New key" title="New key for workers" form={() => <WorkerKeyForm place={place} />} />;
  return (
    <Section title="Keys for workers" controls={place.archived_at === null && make}>
      <Loaded query={keys}>
        {(found) => (
          <Things none="No keys yet. A worker needs one to run this environment's tools.">
            {found.map((key) => (
              <ThingCard
                key={key.id}
                name={key.name}
                about={`made ${ago(key.created_at)}`}
                actions={
                  <SureButton
                    label="Revoke"
                    title={`Revoke ${key.name}?`}
                    says="Workers that use this key are cut off at once. What they have begun is told to the model as unknown. This cannot be undone; another key can be made."
                    yes="Revoke the key"
                    act={(done) => revoke.mutate({ environment: place.id, id: key.id }, { onSuccess: done })}
                    busy={revoke.isPending}
                  />
                }
              />
            ))}
          </Things>
        )}
      </Loaded>
    </Section>
  );
}

function WorkerKeyForm({ place }: { place: Environment }) {
  const create = useChange("environments", changes.createEnvironmentKey);
  const [name, setName] = useState("");
  if (create.data?.secret !== undefined) {
    return (
      <Stack>
        <Secret secret={create.data.secret} />
        <Text size="sm">
          Workers read it from the variable ANTHROPIC_ENVIRONMENT_KEY. This environment&apos;s id is {place.id}.
        </Text>
      </Stack>
    );
  }
  const submit = (event: FormEvent) => {
    event.preventDefault();
    create.mutate({ environment: place.id, name });
  };
  return (
    <form onSubmit={submit}>
      <Stack>
        <TextInput label="Name" description="Which machine it is for." value={name} onChange={(event) => setName(event.currentTarget.value)} maxLength={256} required data-autofocus />
        <Button type="submit" loading={create.isPending}>
          Create
        </Button>
      </Stack>
    </form>
  );
}
