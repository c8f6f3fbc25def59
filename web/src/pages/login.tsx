import { Alert, Button, Center, Code, Paper, PasswordInput, Stack, Text, Title } from "@mantine/core";
import { useQueryClient } from "@tanstack/react-query";
import { useState, type FormEvent } from "react";

import { changes } from "../api/hooks";
import { ApiError } from "../api/http";

export function LoginPage() {
  const queries = useQueryClient();
  const [key, setKey] = useState("");
  const [trouble, setTrouble] = useState<string>();
  const [busy, setBusy] = useState(false);

  const login = async (event: FormEvent) => {
    event.preventDefault();
    setBusy(true);
    try {
      await changes.login(key.trim());
      await queries.invalidateQueries({ queryKey: ["me"] });
    } catch (error) {
      setTrouble(troubleOf(error));
    } finally {
      setBusy(false);
    }
  };

  return (
    <Center mih="100vh" p="md" component="main">
      <Paper withBorder p="xl" w={420} maw="100%" component="form" onSubmit={login}>
        <Stack>
          <Title order={1} size="h2">
            Roost
          </Title>
          <PasswordInput
            label="API key"
            description={
              <>
                The administrator's is in <Code>keys/admin.key</Code> of the server's data directory.
              </>
            }
            value={key}
            onChange={(event) => setKey(event.currentTarget.value)}
            autoComplete="current-password"
            data-autofocus
            autoFocus
            required
          />
          {trouble !== undefined && (
            <Alert color="red" role="alert">
              {trouble}
            </Alert>
          )}
          <Button type="submit" loading={busy} disabled={key.trim() === ""}>
            Log in
          </Button>
          <Text size="sm" c="dimmed">
            The key itself is not kept in this browser.
          </Text>
        </Stack>
      </Paper>
    </Center>
  );
}

/** What went wrong, for a person at this page: hints of the API are for programs. */
function troubleOf(error: unknown): string {
  if (!(error instanceof ApiError)) return error instanceof Error ? error.message : String(error);
  if (error.status === 401) return "This key is not valid. Check that it was copied whole, or ask an administrator for another one.";
  return [error.message, error.hint].filter(Boolean).join(" ");
}
