/** What a tool has put out: what the log has of it, and the whole of it where that was too long for the log. */

import { Anchor, Button, Code, Group, ScrollArea, Stack } from "@mantine/core";
import { Download } from "lucide-react";
import { useContext, useState } from "react";

import { outputAddress } from "../api/files";
import { complain } from "../api/hooks";
import { request } from "../api/http";
import { ShownSession } from "./picture";

const LONGEST = 20_000;
const LONGEST_WHOLE = 1_000_000;
const KEPT = /Full output saved to: (\S*\.claude\/projects\/\S+\/tool-results\/\S+)/;

export function Output({ text, failed }: { text: string; failed: boolean }) {
  const session = useContext(ShownSession);
  const [whole, setWhole] = useState<string>();
  const kept = KEPT.exec(text)?.[1];
  const address = session === undefined || kept === undefined ? undefined : outputAddress(session, kept);
  return (
    <Stack gap="xs">
      <ScrollArea.Autosize mah={whole === undefined ? 320 : 640} type="auto" viewportProps={{ tabIndex: 0 }}>
        <Code block className={failed ? "failed" : undefined}>
          {shortened(whole ?? text, whole === undefined ? LONGEST : LONGEST_WHOLE)}
        </Code>
      </ScrollArea.Autosize>
      {address !== undefined && (
        <Group gap="xs">
          {whole === undefined && <WholeButton address={address} show={setWhole} />}
          <Anchor href={address} download size="sm">
            <Group gap={4}>
              <Download size={14} aria-hidden /> Download the full output
            </Group>
          </Anchor>
        </Group>
      )}
    </Stack>
  );
}

function WholeButton({ address, show }: { address: string; show: (text: string) => void }) {
  const [busy, setBusy] = useState(false);
  const load = async () => {
    setBusy(true);
    try {
      show(new TextDecoder().decode(await request<ArrayBuffer>("GET", address, undefined, "bytes")));
    } catch (error) {
      complain(error);
    } finally {
      setBusy(false);
    }
  };
  return (
    <Button size="xs" variant="default" loading={busy} onClick={load}>
      Show the full output
    </Button>
  );
}

function shortened(text: string, longest: number): string {
  if (text === "") return "(no output)";
  return text.length > longest ? `${text.slice(0, longest)}\n… ${text.length - longest} more characters` : text;
}
