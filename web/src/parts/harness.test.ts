import { expect, test } from "vitest";

import type { Harness } from "../api/types";
import { lacksOf } from "./harness";

const harness = (abilities: Harness["abilities"]): Harness => ({ name: "one", default: false, available: true, version: "1", unavailable: null, abilities });

test("what a program cannot do is said in words, and what it can is not", () => {
  expect(lacksOf(harness({ skills: false, mcp: true, fork: false, prestart: false }))).toBe("It cannot use skills, be forked.");
});

test("there is nothing to say of one that can do all, or that nobody knows", () => {
  expect(lacksOf(harness({ skills: true }))).toBeUndefined();
  expect(lacksOf(harness(null))).toBeUndefined();
  expect(lacksOf(undefined)).toBeUndefined();
});
