/** Pictures in a conversation: those of messages, and those that an answer shows of the workspace. */

import { Text } from "@mantine/core";
import { createContext, useContext, useState } from "react";

import { contentAddress, IMAGES } from "../api/files";
import { usePicture } from "../api/pictures";
import type { Block } from "../log/events";

/** The session whose files an answer may show; none where there is no session. */
export const ShownSession = createContext<string | undefined>(undefined);

interface Source {
  type?: string;
  media_type?: string;
  data?: string;
  file_id?: string;
  url?: string;
}

export function Picture({ block }: { block: Block }) {
  const source = (block.source ?? {}) as Source;
  if (source.type === "file" && source.file_id !== undefined) return <KeptPicture id={source.file_id} name="Picture" />;
  if (source.type === "base64") return <img className="sent-picture" src={`data:${source.media_type};base64,${source.data}`} alt="Picture" />;
  return <NotShown name={source.url ?? "picture"} />;
}

export function KeptPicture({ id, name }: { id: string; name: string }) {
  const picture = usePicture(id, useContext(ShownSession));
  if (picture.error !== null) return <NotShown name={`${name}, which cannot be shown`} />;
  return <img className="sent-picture" src={picture.data} alt={name} />;
}

/** A picture in an answer: shown if it is a file of the session's own; others are not fetched. */
export function AnswerPicture({ src, alt }: { src?: string; alt?: string }) {
  const session = useContext(ShownSession);
  const [failed, setFailed] = useState(false);
  const path = session === undefined ? undefined : workspacePath(src ?? "");
  if (path === undefined || failed) return <NotShown name={alt || src || "picture"} />;
  return <img className="answer-picture" src={contentAddress(session!, path, true)} alt={alt || path} onError={() => setFailed(true)} />;
}

function NotShown({ name }: { name: string }) {
  return (
    <Text span c="dimmed" size="sm">
      [image: {name}]
    </Text>
  );
}

/** Where in the workspace an address leads; undefined if it leads elsewhere, or is no picture. */
export function workspacePath(address: string): string | undefined {
  if (/^[a-z][a-z0-9+.-]*:/i.test(address) || address.startsWith("//")) return undefined;
  const path = decoded(address.replace(/[?#].*$/, "")).replace(/^\/workspace\//, "").replace(/^(\.\/)+/, "");
  const within = !path.startsWith("/") && !path.split("/").includes("..");
  return within && IMAGES.test(path) ? path : undefined;
}

function decoded(address: string): string {
  try {
    return decodeURI(address);
  } catch {
    return address;
  }
}
