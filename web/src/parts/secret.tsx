import { Alert, Button, Code, CopyButton, Group } from "@mantine/core";

/** A secret that the server gives once. */
export function Secret({ secret }: { secret: string }) {
  return (
    <Alert color="yellow" title="Copy it now: it is not shown again">
      <Group mt="xs">
        <Code block className="secret">{secret}</Code>
        <CopyButton value={secret}>
          {({ copied, copy }) => (
            <Button size="xs" onClick={copy}>
              {copied ? "Copied" : "Copy"}
            </Button>
          )}
        </CopyButton>
      </Group>
    </Alert>
  );
}
