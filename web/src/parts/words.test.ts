import { expect, it } from "vitest";

import { ago, bytes, lasted, sentence } from "./words";

it.each([
  [0, "0 ms"],
  [999.7, "1.0 s"],
  [1500, "1.5 s"],
  [59_970, "1 min 0 s"],
  [119_700, "2 min 0 s"],
  [3_599_700, "1 h 0 min"],
  [7_190_000, "2 h 0 min"],
])("%d milliseconds are %s", (milliseconds, words) => {
  expect(lasted(milliseconds)).toBe(words);
});

it.each([
  [-119, "in 1 minute"],
  [-59, "in a moment"],
  [59, "just now"],
  [119, "1 minute ago"],
  [3599, "59 minutes ago"],
  [86_399, "23 hours ago"],
])("%d seconds before now are %s", (seconds, words) => {
  const now = Date.now();
  expect(ago(new Date(now - seconds * 1000).toISOString(), now)).toBe(words);
});

it.each([
  [999, "999 bytes"],
  [999_600, "1.0 MB"],
  [1500, "1.5 kB"],
])("%d bytes are %s", (count, words) => {
  expect(bytes(count)).toBe(words);
});

it.each([
  ["the workspace is used by a session", "The workspace is used by a session."],
  ["Nothing is lost.", "Nothing is lost."],
  ["config.networking: this is not known", "config.networking: this is not known."],
  ["`force` is needed…", "`force` is needed…"],
])("%s is said as %s", (said, shown) => {
  expect(sentence(said)).toBe(shown);
});
