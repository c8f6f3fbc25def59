import { Button, Modal, Stack, TextInput } from "@mantine/core";
import { useState, type FormEvent } from "react";
import { useNavigate } from "react-router";

import { changes, useChange } from "../api/hooks";
import { PlacementFields, usePlacement } from "./placement";

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

  const submit = (event: FormEvent) => {
    event.preventDefault();
    create.mutate(
      { ...placement.request, ...(title ? { title } : {}) },
      { onSuccess: (session) => navigate(`/sessions/${session.id}`) },
    );
  };

  return (
    <form onSubmit={submit}>
      <Stack>
        <TextInput label="Title" placeholder="What is it about?" value={title} onChange={(event) => setTitle(event.currentTarget.value)} data-autofocus />
        <PlacementFields placement={placement} />
        <Button type="submit" loading={create.isPending} disabled={placement.request === undefined}>
          Begin
        </Button>
      </Stack>
    </form>
  );
}
