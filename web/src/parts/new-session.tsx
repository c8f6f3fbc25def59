import { Button, Modal, Stack, TextInput } from "@mantine/core";
import { useState } from "react";
import { useNavigate } from "react-router";

import { changes, useChange } from "../api/hooks";
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
  const [title, setTitle] = useState("");

  const { submit, waiting, disabled } = useSubmit(placement, (request) =>
    create.mutate({ ...request, ...(title ? { title } : {}) }, { onSuccess: (session) => navigate(`/sessions/${session.id}`) }),
  );

  return (
    <form onSubmit={submit}>
      <Stack>
        <TextInput label="Title" placeholder="What is it about?" value={title} onChange={(event) => setTitle(event.currentTarget.value)} data-autofocus />
        <PlacementFields placement={placement} />
        <Button type="submit" loading={waiting || create.isPending} disabled={disabled}>
          Begin
        </Button>
      </Stack>
    </form>
  );
}
