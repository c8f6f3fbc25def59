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
    if (Math.abs(seconds) >= size) return RELATIVE.format(Math.round(seconds / size), unit);
  }
  return "just now";
}

export function lasted(milliseconds: number): string {
  if (milliseconds < 1000) return `${Math.max(0, Math.round(milliseconds))} ms`;
  const seconds = milliseconds / 1000;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.round((seconds % 3600) / 60)} min`;
}

export function tokens(count: number | undefined): string {
  return new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 }).format(count ?? 0);
}

/** Money, which comes as cents; what rounds to nothing was not nothing. */
export function money(cents: number, currency = "USD"): string {
  const format = new Intl.NumberFormat("en", { style: "currency", currency });
  return cents < 1 ? `< ${format.format(0.01)}` : format.format(cents / 100);
}

const SIZES = ["bytes", "kB", "MB", "GB", "TB"];

export function bytes(count: number): string {
  let [size, step] = [count, 0];
  while (size >= 1000 && step < SIZES.length - 1) [size, step] = [size / 1000, step + 1];
  return `${step === 0 || size >= 100 ? Math.round(size) : size.toFixed(1)} ${SIZES[step]}`;
}
