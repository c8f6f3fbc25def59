import type { ErrorMessage } from "./messages.js";

/** The server does not take what was sent; `code` and `hint` say more. */
export class Refused extends Error {
  override name = "Refused";
  readonly code: string;
  readonly hint: string | undefined;

  constructor(error: ErrorMessage) {
    super(error.message);
    this.code = error.code;
    this.hint = error.hint;
  }
}

/** The session cannot be followed any more: logged out, deleted, or refused. */
export class Closed extends Error {
  override name = "Closed";
}

/** A request was answered with an HTTP status that is not a success. */
export class HttpError extends Error {
  override name = "HttpError";

  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}
