import { Alert, Anchor, Button, Card, Group, Modal, Stack, Text } from "@mantine/core";
import { CircleAlert } from "lucide-react";
import { useState, type ReactNode } from "react";
import { Link } from "react-router";

/** A card of a thing that has a name, with what is known of it and what can be done with it. */
export function ThingCard({ name, to, about, archived = false, actions }: { name: string; to?: string; about: ReactNode; archived?: boolean; actions: ReactNode }) {
  return (
    <Card withBorder padding="sm" component="li">
      <Group justify="space-between" align="flex-start">
        <Stack gap={2} miw={0} flex="1 1 240px">
          <Text fw={600} truncate>
            {to === undefined ? (
              name
            ) : (
              <Anchor component={Link} to={to} c="inherit" inherit>
                {name}
              </Anchor>
            )}
            {archived && (
              <Text span c="dimmed" fw={400}>
                {" "}
                (archived)
              </Text>
            )}
          </Text>
          <Text size="sm" c="dimmed" component="div">
            {about}
          </Text>
        </Stack>
        <Group gap="xs">{actions}</Group>
      </Group>
    </Card>
  );
}

/** What stands where nothing is. */
export function Nothing({ children }: { children: ReactNode }) {
  return (
    <Text c="dimmed" ta="center" py="xl">
      {children}
    </Text>
  );
}

export function Things({ children, none }: { children: ReactNode[]; none: string }) {
  if (children.length === 0) return <Nothing>{none}</Nothing>;
  return (
    <Stack gap="xs" component="ul" p={0} m={0} style={{ listStyle: "none" }}>
      {children}
    </Stack>
  );
}

/** A button that opens a form in a dialogue; the form closes it when it is done. */
export function FormButton({ label, title, variant = "filled", form }: { label: string; title: string; variant?: string; form: (done: () => void) => ReactNode }) {
  const [opened, setOpened] = useState(false);
  const close = () => setOpened(false);
  return (
    <>
      <Button variant={variant} size={variant === "filled" ? "sm" : "xs"} onClick={() => setOpened(true)}>
        {label}
      </Button>
      <Modal opened={opened} onClose={close} title={title} size="lg">
        {form(close)}
      </Modal>
    </>
  );
}

/** What is wrong with a form as a whole, above the button that sends it. */
export function FormTrouble({ children }: { children?: string }) {
  if (children === undefined) return null;
  return (
    <Alert color="red" variant="light" p="xs" icon={<CircleAlert size={16} aria-hidden />}>
      {children}
    </Alert>
  );
}

/** A button for what cannot be undone, which asks first and says what will happen. */
export function SureButton({ label, title, says, yes, act, busy }: { label: string; title: string; says: ReactNode; yes: string; act: (done: () => void) => void; busy: boolean }) {
  return <FormButton variant="default" label={label} title={title} form={(done) => <Sure says={says} yes={yes} done={done} act={() => act(done)} busy={busy} />} />;
}

/** What such a button asks. */
export function Sure({ says, yes, act, done, busy }: { says: ReactNode; yes: string; act: () => void; done: () => void; busy: boolean }) {
  return (
    <Stack>
      <Text size="sm" component="div">
        {says}
      </Text>
      <Group justify="flex-end">
        <Button variant="default" onClick={done} data-autofocus>
          Cancel
        </Button>
        <Button color="red.8" loading={busy} onClick={act}>
          {yes}
        </Button>
      </Group>
    </Stack>
  );
}
