import { Button, Modal, Stack, TextInput } from "@mantine/core";
import { useState } from "react";
import { useNavigate } from "react-router";

import { changes, useSave } from "../api/hooks";
import { PlacementFields, usePlacement, useSubmit } from "./placement";
import { FormTrouble } from "./resource";
import { useTroubles } from "./trouble";
import { VaultChoice } from "./vault-choice";

export function NewSession({ opened, onClose }: { opened: boolean; onClose: () => void }) {
  return (
    <Modal opened={opened} onClose={onClose} title="New session" size="lg">
      <NewSessionForm />
    </Modal>
  );
}

function NewSessionForm() {
  const navigate = useNavigate();
  const create = useSave("sessions", changes.createSession);
  const placement = usePlacement();
  const [title, setTitle] = useState("");
  const [chosen, setChosen] = useState<string[]>([]);

  const { submit, waiting, disabled } = useSubmit(placement, (request) =>
    create.mutate({ ...request, ...(title ? { title } : {}), ...(chosen.length > 0 ? { vault_ids: chosen } : {}) }, { onSuccess: (session) => navigate(`/sessions/${session.id}`) }),
  );

  const { form, troubles } = useTroubles(create.error, { paths: { title: "title", vault_ids: "vaults", harness: "harness" } });

  return (
    <form ref={form} onSubmit={submit}>
      <Stack>
        <TextInput label="Title" placeholder="What is it about?" value={title} onChange={(event) => setTitle(event.currentTarget.value)} error={troubles.title} data-autofocus />
        <PlacementFields placement={placement} troubles={troubles} />
        <VaultChoice chosen={chosen} setChosen={setChosen} error={troubles.vaults} />
        <FormTrouble>{troubles.form}</FormTrouble>
        <Button type="submit" loading={waiting || create.isPending} disabled={disabled}>
          Begin
        </Button>
      </Stack>
    </form>
  );
}
