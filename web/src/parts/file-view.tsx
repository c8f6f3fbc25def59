import { ActionIcon, Alert, Button, Group, Text, Tooltip } from "@mantine/core";
import hljs from "highlight.js/lib/common";
import { Download, FileQuestion, X } from "lucide-react";
import { useMemo } from "react";
import { Link } from "react-router";

import { contentAddress, MOST_TEXT, useContent, type Content } from "../api/files";
import type { Entry } from "../api/types";
import { Loaded } from "./page";
import { bytes } from "./words";

/** Above this, colours cost more than they help. */
const MOST_COLOURED = 200_000;

export function FileView({ session, file, back }: { session: string; file: Entry; back: string }) {
  const content = useContent(session, file);
  return (
    <section className="file" aria-label={file.name}>
      <Group justify="space-between" wrap="nowrap" mb="xs">
        <Text fw={600} size="sm" truncate>
          {file.name}{" "}
          <Text span size="xs" c="dimmed" fw={400}>
            {bytes(file.size_bytes)}
          </Text>
        </Text>
        <Group gap="xs" wrap="nowrap">
          <DownloadButton session={session} file={file} />
          <Tooltip label="Close">
            <ActionIcon component={Link} to={back} variant="default" aria-label="Close the file">
              <X size={14} aria-hidden />
            </ActionIcon>
          </Tooltip>
        </Group>
      </Group>
      <Loaded query={content}>{(found) => <Shown content={found} session={session} file={file} />}</Loaded>
    </section>
  );
}

function DownloadButton({ session, file }: { session: string; file: Entry }) {
  return (
    <Button component="a" href={contentAddress(session, file.path ?? "")} download={file.name} size="xs" variant="default" leftSection={<Download size={14} aria-hidden />}>
      Download
    </Button>
  );
}

function Shown({ content, session, file }: { content: Content; session: string; file: Entry }) {
  switch (content.kind) {
    case "text":
      return <Source text={content.text} name={file.name} />;
    case "image":
      return <img className="picture" src={content.address} alt={file.name} />;
    case "binary":
      return <Unshown title="This file is not text" says="It can be downloaded." session={session} file={file} />;
    case "large":
      return <Unshown title="This file is too large to be shown" says={`It has ${bytes(file.size_bytes)}; up to ${bytes(MOST_TEXT)} are shown here. It can be downloaded.`} session={session} file={file} />;
  }
}

function Unshown({ title, says, session, file }: { title: string; says: string; session: string; file: Entry }) {
  return (
    <Alert color="gray" variant="light" title={title} icon={<FileQuestion size={18} aria-hidden />}>
      <Text size="sm" mb="sm">
        {says}
      </Text>
      <DownloadButton session={session} file={file} />
    </Alert>
  );
}

function Source({ text, name }: { text: string; name: string }) {
  const coloured = useMemo(() => colour(text, name), [text, name]);
  if (text === "") return <Text c="dimmed">The file is empty.</Text>;
  return (
    <pre className="source" tabIndex={0} aria-label={`What is in ${name}`}>
      {coloured === undefined ? <code>{text}</code> : <code dangerouslySetInnerHTML={{ __html: coloured }} />}
    </pre>
  );
}

const CALLED: Record<string, string> = { Makefile: "makefile", Dockerfile: "bash", mjs: "javascript", cjs: "javascript", tsx: "typescript", jsx: "javascript", toml: "ini", cfg: "ini", h: "c", hpp: "cpp", yml: "yaml", htm: "xml", svg: "xml", html: "xml" };

/** The text with its colours, as HTML that the library has escaped; undefined if it has no known language. */
function colour(text: string, name: string): string | undefined {
  const ending = name.split(".").at(-1) ?? "";
  const language = CALLED[name] ?? CALLED[ending] ?? ending;
  if (text.length > MOST_COLOURED || hljs.getLanguage(language) === undefined) return undefined;
  return hljs.highlight(text, { language, ignoreIllegals: true }).value;
}
