import { expect, it } from "vitest";

import { ApiError } from "../api/http";
import { troublesOf } from "./trouble";

const FIELDS = { same: "server", paths: { auth: "kind", "auth.networking.allowed_hosts": "hosts", "auth.token": "secret" } };
const of = (status: number, message: string, hint?: string) => troublesOf(new ApiError(status, message, hint), FIELDS);

it("is said beside the field that it is about", () => {
  expect(of(400, "auth.token: a token has no spaces")).toEqual({ secret: "A token has no spaces." });
  expect(of(400, "auth.networking.allowed_hosts.3: give a name")).toEqual({ hosts: "Give a name." });
  expect(of(400, "auth.tokens: unknown")).toEqual({ kind: "unknown." });
});

it("is said beside what two of them cannot share, with what to do", () => {
  expect(of(409, "the vault has one already", "Archive it first.")).toEqual({ server: "The vault has one already. Archive it first." });
});

it("is said of the whole form where it is about no field", () => {
  expect(of(400, "a vault has at most 20 credentials", "Archive one.")).toEqual({ form: "A vault has at most 20 credentials. Archive one." });
  expect(of(400, "metadata.roost.x: unknown")).toEqual({ form: "metadata.roost.x: unknown." });
  expect(troublesOf(new Error("The server cannot be reached."), FIELDS)).toEqual({ form: "The server cannot be reached." });
  expect(troublesOf(null, FIELDS)).toEqual({});
});
