/** What the server has against what somebody gave in a form, beside the field that it is about. */

import { useEffect, useRef } from "react";

import { ApiError } from "../api/http";
import { sentence } from "./words";

/** What is wrong, by field; `form` has what is about none of them. */
export type Troubles = Partial<Record<string, string>>;

/** Which field of a form a path of the API is, the longest path first; `same` is the one that says what two cannot share. */
export type FieldsOf = { same?: string; paths: Record<string, string> };

export function troublesOf(error: unknown, { same, paths }: FieldsOf): Troubles {
  if (!(error instanceof Error)) return {};
  const hint = error instanceof ApiError && error.hint ? ` ${error.hint}` : "";
  if (same !== undefined && error instanceof ApiError && error.status === 409) return { [same]: sentence(error.message) + hint };
  const [, path, said] = /^([\w.-]+): (.+)$/s.exec(error.message) ?? [];
  const known = Object.keys(paths).filter((one) => path === one || path?.startsWith(`${one}.`));
  const longest = known.sort((one, other) => other.length - one.length)[0];
  if (said === undefined || longest === undefined) return { form: sentence(error.message) + hint };
  return { [paths[longest]!]: sentence(said) + hint };
}

/** The same, and the form: what is wrong there has the cursor, so that nobody has to look for it. */
export function useTroubles(error: unknown, fields: FieldsOf) {
  const form = useRef<HTMLFormElement>(null);
  useEffect(() => {
    const wrong = error ? form.current?.querySelector<HTMLElement>("[aria-invalid=true]") : undefined;
    wrong?.focus({ preventScroll: true });
    wrong?.scrollIntoView({ block: "center" }); // at the edge, the heading of a dialogue would lie on it
  }, [error]);
  return { form, troubles: troublesOf(error, fields) };
}
