/** A session's directory: what is in it, what a file says, and putting files there. */

import { useQuery } from "@tanstack/react-query";

import { get, post, remove, request } from "./http";
import type { Entry } from "./types";

const MOST_ENTRIES = 2000;
/** What is shown in a page; more is for programs that are made for it. */
export const MOST_TEXT = 1_000_000;
export const IMAGES = /\.(png|jpe?g|gif|webp|avif|bmp)$/i;

export interface Directory {
  entries: Entry[];
  /** There is more than is shown. */
  cut: boolean;
}

interface Listing {
  data: Entry[];
  next_page: string | null;
  truncated: boolean;
}

const filesOf = (session: string) => `/roost/v1/sessions/${session}/files`;

export const useDirectory = (session: string, path: string) =>
  useQuery({ queryKey: ["files", session, path], queryFn: () => directory(session, path) });

async function directory(session: string, path: string): Promise<Directory> {
  const entries: Entry[] = [];
  let page: string | null = null;
  let truncated = false;
  do {
    const query: URLSearchParams = new URLSearchParams({ path, limit: "200", ...(page === null ? {} : { page }) });
    const answer: Listing = await get<Listing>(`${filesOf(session)}?${query}`);
    entries.push(...answer.data);
    page = answer.next_page;
    truncated ||= answer.truncated;
  } while (page !== null && entries.length < MOST_ENTRIES);
  return { entries, cut: truncated || page !== null };
}

export function contentAddress(session: string, path: string, inline = false): string {
  const query = new URLSearchParams({ path, ...(inline ? { inline: "true" } : {}) });
  return `${filesOf(session)}/content?${query}`;
}

/** Where a tool's output is that was too long for the log; `path` is what the log says. */
export function outputAddress(session: string, path: string): string {
  return `/roost/v1/sessions/${session}/tool_outputs/content?${new URLSearchParams({ path })}`;
}

export type Content = { kind: "text"; text: string } | { kind: "image"; address: string } | { kind: "binary" } | { kind: "large" };

/** What a file is, as far as a page can show it. */
export const useContent = (session: string, file: Entry) =>
  useQuery({
    queryKey: ["files", session, file.path, "content", file.modified_at, file.size_bytes],
    queryFn: () => contentOf(session, file),
  });

async function contentOf(session: string, file: Entry): Promise<Content> {
  const path = file.path ?? "";
  if (IMAGES.test(file.name)) return { kind: "image", address: `${contentAddress(session, path, true)}#${encodeURIComponent(file.modified_at)}` };
  if (file.size_bytes > MOST_TEXT) return { kind: "large" };
  const data = await request<ArrayBuffer>("GET", contentAddress(session, path), undefined, "bytes");
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(data);
    return text.includes("\0") ? { kind: "binary" } : { kind: "text", text };
  } catch {
    return { kind: "binary" };
  }
}

export const fileChanges = {
  upload: (given: { session: string; path: string; file: File; overwrite: boolean }) => {
    const form = new FormData();
    form.set("path", given.path);
    form.set("overwrite", String(given.overwrite));
    form.append("files[]", given.file, given.file.name);
    return post<{ data: Entry[] }>(filesOf(given.session), form);
  },
  makeDirectory: (given: { session: string; path: string }) => post<Entry>(`${filesOf(given.session)}/directories`, { path: given.path }),
  remove: (given: { session: string; entry: Entry }) => {
    const query = new URLSearchParams({ path: given.entry.path ?? "", recursive: String(given.entry.kind === "directory") });
    return remove(`${filesOf(given.session)}?${query}`);
  },
};
