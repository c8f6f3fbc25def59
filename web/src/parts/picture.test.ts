import { expect, it } from "vitest";

import { workspacePath } from "./picture";

it.each([
  ["plot.png", "plot.png"],
  ["./out/plot one.png", "out/plot one.png"],
  ["out/plot%20one.png", "out/plot one.png"],
  ["/workspace/out/plot.JPG", "out/plot.JPG"],
  ["plot.png?v=2#top", "plot.png"],
  ["/etc/plot.png", undefined],
  ["../plot.png", undefined],
  ["out/../../plot.png", undefined],
  ["https://example.org/plot.png", undefined],
  ["//example.org/plot.png", undefined],
  ["data:image/png;base64,AAAA", undefined],
  ["notes.txt", undefined],
  ["", undefined],
])("%s leads to %s", (address, path) => {
  expect(workspacePath(address)).toBe(path);
});
