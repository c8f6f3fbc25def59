// Writes each file of the built app a second and a third time, compressed, for servers that send them as they are.
// Then puts all of them at once where servers look: one that runs sees the app of before or this one, never a part.
import { readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { brotliCompressSync, constants, gzipSync } from "node:zlib";

const BUILT = new URL("dist", import.meta.url).pathname;
const SERVED = new URL("../src/roost/web/dist", import.meta.url).pathname;
const BEFORE = new URL("node_modules/.dist-before", import.meta.url).pathname;
const SMALLEST = 1024; // bytes: below that a request costs more than it saves

for (const name of readdirSync(BUILT, { recursive: true })) {
  if (!/\.(js|css|html|svg)$/.test(name)) continue;
  const path = join(BUILT, name);
  const data = readFileSync(path);
  if (data.length < SMALLEST) continue;
  writeFileSync(`${path}.br`, brotliCompressSync(data, { params: { [constants.BROTLI_PARAM_SIZE_HINT]: data.length } }));
  writeFileSync(`${path}.gz`, gzipSync(data, { level: 9 }));
}

rmSync(BEFORE, { recursive: true, force: true });
try {
  renameSync(SERVED, BEFORE);
} catch (error) {
  if (error.code !== "ENOENT") throw error;
}
renameSync(BUILT, SERVED);
rmSync(BEFORE, { recursive: true, force: true });
