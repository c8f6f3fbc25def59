import { expect, it } from "vitest";

import { dayIn, timeIn, today, zones } from "./times";

const LATE = "2026-03-28T23:30:00Z";

it.each([
  ["UTC", "23:30", "Saturday 28 March 2026"],
  ["Asia/Tokyo", "08:30", "Sunday 29 March 2026"],
  ["America/New_York", "19:30", "Saturday 28 March 2026"],
])("in %s clocks show %s on %s", (zone, time, day) => {
  expect(timeIn(LATE, zone)).toBe(time);
  expect(dayIn(LATE, zone)).toBe(day);
});

it("says which days are around now, by the calendar of the zone", () => {
  const said = today("Asia/Tokyo", Date.parse(LATE));
  expect(said.get("Saturday 28 March 2026")).toBe(" (yesterday)");
  expect(said.get("Sunday 29 March 2026")).toBe(" (today)");
  expect(said.get("Monday 30 March 2026")).toBe(" (tomorrow)");
});

it("shows a zone that the browser does not know as the reader's own", () => {
  expect(timeIn(LATE, "Mars/Olympus")).toBe(timeIn(LATE, Intl.DateTimeFormat().resolvedOptions().timeZone));
  expect(zones("Mars/Olympus")).toContain("Mars/Olympus");
});
