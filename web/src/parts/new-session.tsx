import { Button, Modal, MultiSelect, Stack, TextInput } from "@mantine/core";
import { useState } from "react";
import { useNavigate } from "react-router";

import { changes, useChange, useVaults } from "../api/hooks";
import { PlacementFields, usePlacement, useSubmit } from "./placement";

export function NewSession({ opened, onClose }: { opened: boolean; onClose: () => void }) {
  return (
    <Modal opened={opened} onClose={onClose} title="New session" size="lg">
      <NewSessionForm />
    </Modal>
  );
}

function NewSessionForm() {
  const navigate = useNavigate();
  const create = useChange("sessions", changes.createSession);
  const placement = usePlacement();
  const vaults = useVaults(false).data ?? [];
  const [title, setTitle] = useState("");
  const [chosen, setChosen] = useState<string[]>([]);

  const { submit, waiting, disabled } = useSubmit(placement, (request) =>
    create.mutate({ ...request, ...(title ? { title } : {}), ...(chosen.length > 0 ? { vault_ids: chosen } : {}) }, { onSuccess: (session) => navigate(`/sessions/${session.id}`) }),
  );

  return (
    <form onSubmit={submit}>
      <Stack>
        <TextInput label="Title" placeholder="What is it about?" value={title} onChange={(event) => setTitle(event.currentTarget.value)} data-autofocus />
        <PlacementFields placement={placement} />
        {vaults.length > 0 && (
          <MultiSelect
            label="Credential vaults"
            description="Their secrets are used in this session, and never seen in it. If two vaults have one for the same purpose, the vault that was chosen first counts."
            data={vaults.map(({ id, display_name }) => ({ value: id, label: display_name }))}
            value={chosen}
            onChange={setChosen}
            searchable
          />
        )}
        <Button type="submit" loading={waiting || create.isPending} disabled={disabled}>
          Begin
        </Button>
      </Stack>
    </form>
  );
}
