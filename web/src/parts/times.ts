/** Moments as clocks and calendars show them, in the zone of a schedule and in the reader's. */

/** The zone that this browser is in. */
export const here = (): string => Intl.DateTimeFormat().resolvedOptions().timeZone;

/** A zone that this browser does not know is shown as the reader's own. */
function formatIn(zone: string, options: Intl.DateTimeFormatOptions): Intl.DateTimeFormat {
  try {
    return new Intl.DateTimeFormat("en-GB", { ...options, timeZone: zone });
  } catch {
    return new Intl.DateTimeFormat("en-GB", options);
  }
}

export const timeIn = (iso: string, zone: string): string => formatIn(zone, { hour: "2-digit", minute: "2-digit" }).format(new Date(iso));

/** Without the commas that some browsers put there. */
export const dayIn = (iso: string, zone: string): string =>
  formatIn(zone, { weekday: "long", day: "numeric", month: "long", year: "numeric" })
    .formatToParts(new Date(iso))
    .filter(({ type }) => type !== "literal")
    .map(({ value }) => value)
    .join(" ");

const DAY = 86_400_000;

/** What is said of the days around now, after their date. */
export function today(zone: string, now = Date.now()): Map<string, string> {
  const said: [number, string][] = [
    [-1, " (yesterday)"],
    [0, " (today)"],
    [1, " (tomorrow)"],
  ];
  return new Map(said.map(([days, word]) => [dayIn(new Date(now + days * DAY).toISOString(), zone), word]));
}

/** All zones that can be chosen; one that this browser does not know is there if it is in use. */
export function zones(used: string): string[] {
  return [...new Set(["UTC", here(), used, ...Intl.supportedValuesOf("timeZone")])];
}
