import { Button, Group, List, Modal, Stack, Text } from "@mantine/core";
import { useQueryClient } from "@tanstack/react-query";
import { useState, type ReactNode } from "react";

import { fileChanges } from "../api/files";
import { complain } from "../api/hooks";
import type { Entry } from "../api/types";

interface Uploading {
  begin: (files: File[]) => void;
  busy: boolean;
  /** Asks before anything is replaced, and says how far it is. */
  dialogue: ReactNode;
}

/** Puts files into a directory, one after the other; what is there already is replaced only on a yes. */
export function useUpload(session: string, path: string, entries: Entry[]): Uploading {
  const queries = useQueryClient();
  const [asking, setAsking] = useState<File[]>([]);
  const [done, setDone] = useState<{ count: number; of: number }>();
  const taken = (file: File) => entries.some((entry) => entry.name === file.name);

  const put = async (files: File[], overwrite: boolean) => {
    setAsking([]);
    try {
      for (const [count, file] of files.entries()) {
        setDone({ count, of: files.length });
        await fileChanges.upload({ session, path, file, overwrite });
      }
    } catch (error) {
      complain(error);
    } finally {
      setDone(undefined);
      await queries.invalidateQueries({ queryKey: ["files", session] });
    }
  };
  const begin = (files: File[]) => {
    if (files.length === 0) return;
    if (files.some(taken)) setAsking(files);
    else void put(files, false);
  };

  const there = asking.filter(taken);
  const others = asking.filter((file) => !taken(file));
  const dialogue = (
    <>
      {done !== undefined && (
        <Text size="sm" role="status" mb="xs">
          Uploading {done.count + 1} of {done.of}…
        </Text>
      )}
      <Modal opened={asking.length > 0} onClose={() => setAsking([])} title={there.length === 1 ? "Replace this file?" : `Replace ${there.length} files?`}>
        <Stack>
          <Text size="sm">There already:</Text>
          <List size="sm">
            {there.slice(0, 10).map((file) => (
              <List.Item key={file.name}>{file.name}</List.Item>
            ))}
          </List>
          <Group justify="flex-end">
            <Button variant="default" onClick={() => setAsking([])} data-autofocus>
              Cancel
            </Button>
            {others.length > 0 && (
              <Button variant="default" onClick={() => put(others, false)}>
                Upload the others
              </Button>
            )}
            <Button onClick={() => put(asking, true)}>Replace</Button>
          </Group>
        </Stack>
      </Modal>
    </>
  );
  return { begin, busy: done !== undefined, dialogue };
}
