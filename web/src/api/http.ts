/** Requests to the server, as whoever is logged in by cookie. */

import type { Page } from "./types";

const HEADERS = {
  "anthropic-version": "2023-06-01",
  "anthropic-beta": "managed-agents-2026-04-01",
};

export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
    readonly hint?: string,
    readonly code?: string,
  ) {
    super(message);
  }
}

/** Whether there is no such thing as was asked for. */
export function isGone(error: unknown): boolean {
  return error instanceof ApiError && error.status === 404;
}

/** A form is sent as it is, anything else as JSON; what comes is JSON, or bytes where that is asked for. */
export async function request<T>(method: string, path: string, body?: unknown, wanted: "json" | "bytes" = "json"): Promise<T> {
  const plain = body === undefined || body instanceof FormData;
  const response = await fetch(path, {
    method,
    credentials: "same-origin",
    headers: plain ? HEADERS : { ...HEADERS, "content-type": "application/json" },
    body: plain ? body : JSON.stringify(body),
  }).catch(() => {
    throw new ApiError(0, "The server cannot be reached.", "Check that it runs; this page keeps trying.");
  });
  if (response.ok && wanted === "bytes") return (await response.arrayBuffer()) as T;
  const text = await response.text();
  const parsed: unknown = text ? safeParse(text) : undefined;
  if (!response.ok) throw failure(response.status, parsed);
  return parsed as T;
}

export const get = <T>(path: string) => request<T>("GET", path);
export const post = <T>(path: string, body: unknown = {}) => request<T>("POST", path, body);
export const remove = <T>(path: string) => request<T>("DELETE", path);

/** Every item of a listing, page by page, up to a bound that no screen needs. */
export async function all<T>(path: string, most = 2000): Promise<T[]> {
  const found: T[] = [];
  let page: string | null = null;
  do {
    const cursor: string = page === null ? "" : `&page=${encodeURIComponent(page)}`;
    const answer: Page<T> = await get<Page<T>>(`${path}${path.includes("?") ? "&" : "?"}limit=100${cursor}`);
    found.push(...answer.data);
    page = answer.next_page;
  } while (page !== null && found.length < most);
  return found;
}

function safeParse(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

interface Envelope {
  error?: { message?: string; details?: { error_code?: string; hint?: string } };
}

function failure(status: number, parsed: unknown): ApiError {
  const error = (parsed as Envelope | undefined)?.error;
  const said = error?.message ?? `The server answered ${status}.`;
  return new ApiError(status, said, error?.details?.hint, error?.details?.error_code);
}
