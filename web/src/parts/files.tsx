/** The session's directory: look into it, view and fetch files, put some there. */

import { ActionIcon, Alert, Anchor, Breadcrumbs, Button, FileButton, Group, Loader, Menu, Modal, Stack, Table, Text, TextInput, Tooltip } from "@mantine/core";
import { useQueryClient } from "@tanstack/react-query";
import { CircleHelp, Download, EllipsisVertical, File as FileIcon, FileImage, Folder, FolderPlus, Info, Link2, RefreshCw, Trash2, Upload } from "lucide-react";
import { lazy, Suspense, useEffect, useState, type DragEvent, type FormEvent } from "react";
import { Link, useSearchParams } from "react-router";

import { contentAddress, fileChanges, useDirectory, type Directory } from "../api/files";
import { useChange } from "../api/hooks";
import type { Entry, Trust } from "../api/types";
import { Loaded } from "./page";
import { Nothing } from "./resource";
import { useUpload } from "./upload";
import { ago, bytes } from "./words";

// With the colours of all languages, which few need.
const FileView = lazy(() => import("./file-view").then(({ FileView }) => ({ default: FileView })));

export function Files({ session, trust, settled, ended }: { session: string; trust: Trust; settled: string; ended: boolean }) {
  const [query] = useSearchParams();
  const path = query.get("path") ?? "";
  const shown = query.get("file");
  const queries = useQueryClient();
  // What the agent has done shows when its turn is over.
  useEffect(() => void queries.invalidateQueries({ queryKey: ["files", session] }), [queries, session, settled]);
  const directory = useDirectory(session, path);
  const file = directory.data?.entries.find((entry) => entry.name === shown && entry.kind === "file");
  return (
    <div className={`files ${file ? "with-file" : ""}`}>
      {trust !== "sandboxed" && (
        <Alert color="yellow" variant="light" p="xs" className="all" icon={<Info size={16} aria-hidden />}>
          {trust === "vault" ? "This session works in the vault, on the server itself." : "This session works on the server itself."} Below is the session's own directory; what it changes elsewhere is not shown here.
        </Alert>
      )}
      <Folderful session={session} path={path} query={directory} shown={shown} ended={ended} />
      {file !== undefined && (
        <Suspense fallback={<Loader role="status" aria-label="Loading" />}>
          <FileView session={session} file={file} back={addressOf(path)} />
        </Suspense>
      )}
      {shown !== null && directory.data !== undefined && file === undefined && <Nothing>“{shown}” is not there any more.</Nothing>}
    </div>
  );
}

type Query = ReturnType<typeof useDirectory>;

function Folderful({ session, path, query, shown, ended }: { session: string; path: string; query: Query; shown: string | null; ended: boolean }) {
  const upload = useUpload(session, path, query.data?.entries ?? []);
  const [over, setOver] = useState(false);
  const drag = {
    onDragOver: (event: DragEvent) => {
      if (ended || !event.dataTransfer.types.includes("Files")) return;
      event.preventDefault();
      setOver(true);
    },
    onDragLeave: () => setOver(false),
    onDrop: (event: DragEvent) => {
      event.preventDefault();
      setOver(false);
      if (!ended) upload.begin([...event.dataTransfer.files]);
    },
  };
  return (
    <section className={`folder ${over ? "dropping" : ""}`} aria-label="Directory" {...drag}>
      <Group justify="space-between" mb="xs">
        <Trail path={path} />
        <Group gap="xs">
          <Tooltip label="Look again">
            <ActionIcon variant="default" aria-label="Look again" onClick={() => query.refetch()} loading={query.isFetching}>
              <RefreshCw size={14} aria-hidden />
            </ActionIcon>
          </Tooltip>
          {!ended && <NewDirectory session={session} path={path} />}
          {!ended && (
            <FileButton multiple onChange={upload.begin}>
              {(props) => (
                <Button {...props} size="xs" leftSection={<Upload size={14} aria-hidden />} loading={upload.busy}>
                  Upload
                </Button>
              )}
            </FileButton>
          )}
        </Group>
      </Group>
      {upload.dialogue}
      <Loaded query={query}>{(found) => <Entries session={session} path={path} directory={found} shown={shown} ended={ended} />}</Loaded>
      {!ended && (
        <Text size="xs" c="dimmed" mt="xs" visibleFrom="sm">
          {over ? "Drop them here." : "Files can be dropped here."}
        </Text>
      )}
    </section>
  );
}

function Trail({ path }: { path: string }) {
  const names = path === "" ? [] : path.split("/");
  return (
    <Breadcrumbs separatorMargin={4} component="nav" aria-label="Directory" className="trail">
      <Anchor component={Link} to={addressOf("")} size="sm">
        workspace
      </Anchor>
      {names.map((name, nth) => (
        <Anchor key={nth} component={Link} to={addressOf(names.slice(0, nth + 1).join("/"))} size="sm" aria-current={nth === names.length - 1 ? "page" : undefined}>
          {name}
        </Anchor>
      ))}
    </Breadcrumbs>
  );
}

function Entries({ session, path, directory, shown, ended }: { session: string; path: string; directory: Directory; shown: string | null; ended: boolean }) {
  if (directory.entries.length === 0) return <Nothing>This directory is empty.</Nothing>;
  return (
    <>
      <Table verticalSpacing={4} highlightOnHover layout="fixed">
        <Table.Thead>
          <Table.Tr>
            <Table.Th>Name</Table.Th>
            <Table.Th w={90} ta="right">
              Size
            </Table.Th>
            <Table.Th w={140} visibleFrom="sm" className="changed">
              Changed
            </Table.Th>
            <Table.Th w={44}>
              <span className="unseen">Actions</span>
            </Table.Th>
          </Table.Tr>
        </Table.Thead>
        <Table.Tbody>
          {directory.entries.map((entry) => (
            <EntryRow key={entry.name} session={session} path={path} entry={entry} chosen={entry.name === shown} ended={ended} />
          ))}
        </Table.Tbody>
      </Table>
      {directory.cut && (
        <Alert color="gray" variant="light" p="xs" mt="xs">
          There are more; only the first {directory.entries.length} are shown.
        </Alert>
      )}
    </>
  );
}

const ICONS = { directory: Folder, file: FileIcon, symlink: Link2, other: CircleHelp };

function EntryRow({ session, path, entry, chosen, ended }: { session: string; path: string; entry: Entry; chosen: boolean; ended: boolean }) {
  const image = entry.kind === "file" && /\.(png|jpe?g|gif|webp|avif|bmp|svg)$/i.test(entry.name);
  const Icon = image ? FileImage : ICONS[entry.kind];
  return (
    <Table.Tr className={chosen ? "chosen" : undefined}>
      <Table.Td>
        <Group gap={6} wrap="nowrap">
          <Icon size={15} aria-hidden style={{ flexShrink: 0 }} />
          <EntryName path={path} entry={entry} chosen={chosen} />
        </Group>
      </Table.Td>
      <Table.Td ta="right">{entry.kind === "file" ? bytes(entry.size_bytes) : ""}</Table.Td>
      <Table.Td visibleFrom="sm" className="changed">{ago(entry.modified_at)}</Table.Td>
      <Table.Td>{entry.path !== null && <EntryMenu session={session} entry={entry} ended={ended} />}</Table.Td>
    </Table.Tr>
  );
}

function EntryName({ path, entry, chosen }: { path: string; entry: Entry; chosen: boolean }) {
  if (entry.path === null || entry.kind === "other") {
    return (
      <Text size="sm" truncate title="It cannot be shown here.">
        {entry.name}
      </Text>
    );
  }
  if (entry.kind === "symlink") {
    return (
      <Text size="sm" truncate title="Links are not followed.">
        {entry.name} <Text span size="xs" c="dimmed">(link)</Text>
      </Text>
    );
  }
  const to = entry.kind === "directory" ? addressOf(entry.path) : addressOf(path, entry.name);
  return (
    <Anchor component={Link} to={to} size="sm" truncate c={entry.kind === "file" ? "inherit" : undefined} aria-current={chosen ? "true" : undefined}>
      {entry.name}
    </Anchor>
  );
}

function EntryMenu({ session, entry, ended }: { session: string; entry: Entry; ended: boolean }) {
  const remove = useChange("files", fileChanges.remove);
  const [asking, setAsking] = useState(false);
  return (
    <>
      <Menu position="bottom-end">
        <Menu.Target>
          <ActionIcon variant="subtle" color="gray" size="sm" aria-label={`Actions for ${entry.name}`}>
            <EllipsisVertical size={14} aria-hidden />
          </ActionIcon>
        </Menu.Target>
        <Menu.Dropdown>
          {entry.kind === "file" && (
            <Menu.Item component="a" href={contentAddress(session, entry.path ?? "")} download={entry.name} leftSection={<Download size={14} aria-hidden />}>
              Download
            </Menu.Item>
          )}
          <Menu.Item leftSection={<Trash2 size={14} aria-hidden />} disabled={ended} onClick={() => setAsking(true)}>
            Delete
          </Menu.Item>
        </Menu.Dropdown>
      </Menu>
      <Modal opened={asking} onClose={() => setAsking(false)} title={`Delete ${entry.name}?`}>
        <Stack>
          <Text size="sm">{entry.kind === "directory" ? "The directory goes with everything in it." : "It is removed from the workspace."} The agent is not told.</Text>
          <Group justify="flex-end">
            <Button variant="default" onClick={() => setAsking(false)} data-autofocus>
              Cancel
            </Button>
            <Button color="red.8" loading={remove.isPending} onClick={() => remove.mutate({ session, entry }, { onSuccess: () => setAsking(false) })}>
              Delete
            </Button>
          </Group>
        </Stack>
      </Modal>
    </>
  );
}

function NewDirectory({ session, path }: { session: string; path: string }) {
  const make = useChange("files", fileChanges.makeDirectory);
  const [name, setName] = useState<string>();
  const close = () => setName(undefined);
  const submit = (event: FormEvent) => {
    event.preventDefault();
    make.mutate({ session, path: path === "" ? name! : `${path}/${name}` }, { onSuccess: close });
  };
  return (
    <>
      <Tooltip label="New directory">
        <ActionIcon variant="default" aria-label="New directory" onClick={() => setName("")}>
          <FolderPlus size={14} aria-hidden />
        </ActionIcon>
      </Tooltip>
      <Modal opened={name !== undefined} onClose={close} title="New directory">
        <form onSubmit={submit}>
          <Stack>
            <TextInput label="Name" value={name ?? ""} onChange={(event) => setName(event.currentTarget.value)} required data-autofocus />
            <Button type="submit" loading={make.isPending}>
              Make it
            </Button>
          </Stack>
        </form>
      </Modal>
    </>
  );
}

/** Where a directory, or a file in it, is on the page. */
function addressOf(path: string, file?: string): string {
  return `?${new URLSearchParams({ ...(path === "" ? {} : { path }), ...(file === undefined ? {} : { file }) })}`;
}
