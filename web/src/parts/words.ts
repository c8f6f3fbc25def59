/** Names, numbers and times as people read them. */

import type { Session } from "../api/types";

export function nameOf(session: Session): string {
  return session.title || `Session with ${session.agent.name}`;
}

/** Whether the session does nothing until somebody answers. */
export function waits(session: Session): boolean {
  return session.status === "idle" && session.waiting_for.length > 0;
}

const RELATIVE = new Intl.RelativeTimeFormat("en", { numeric: "auto" });
const STEPS: [Intl.RelativeTimeFormatUnit, number][] = [
  ["day", 86_400],
  ["hour", 3600],
  ["minute", 60],
];

export function ago(iso: string, now = Date.now()): string {
  const seconds = (Date.parse(iso) - now) / 1000;
  for (const [unit, size] of STEPS) {
    if (Math.abs(seconds) >= size) return RELATIVE.format(Math.trunc(seconds / size), unit);
  }
  return seconds > 5 ? "in a moment" : "just now"; // clocks differ a little
}

export function lasted(milliseconds: number): string {
  if (milliseconds < 999.5) return `${Math.max(0, Math.round(milliseconds))} ms`;
  const tenths = Math.round(milliseconds / 100);
  if (tenths < 600) return `${(tenths / 10).toFixed(1)} s`;
  const seconds = Math.round(milliseconds / 1000); // rounded first: 119.7 s are not 1 min 60 s
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  const minutes = Math.round(seconds / 60);
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export function tokens(count: number | undefined): string {
  return new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 }).format(count ?? 0);
}

/** Money, which comes as cents; what rounds to nothing was not nothing. */
export function money(cents: number, currency = "USD"): string {
  const format = new Intl.NumberFormat("en", { style: "currency", currency });
  return cents < 1 ? `< ${format.format(0.01)}` : format.format(cents / 100);
}

/** What a server says, as a sentence: some of it comes without a capital or an end. */
export function sentence(said: string): string {
  const begun = /^[a-z]+[ ,]/.test(said) ? said[0]!.toUpperCase() + said.slice(1) : said;
  return /[\p{L}\p{N})'"”`]$/u.test(begun) ? `${begun}.` : begun;
}

const SIZES = ["bytes", "kB", "MB", "GB", "TB"];

export function bytes(count: number): string {
  let [size, step] = [count, 0];
  while (Math.round(size) >= 1000 && step < SIZES.length - 1) [size, step] = [size / 1000, step + 1];
  return `${step === 0 || size >= 100 ? Math.round(size) : size.toFixed(1)} ${SIZES[step]}`;
}
