export { Chat, Client, mint, type ClientOptions, type FollowOptions } from "./chat.js";
export { Closed, HttpError, Refused } from "./errors.js";
export * from "./messages.js";
export { SessionSocket, type Connection, type Handlers, type Outbox, type SocketOptions, type WebSocketLike } from "./socket.js";
