// Writes each file of the built app a second and a third time, compressed, for servers that send them as they are.
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { brotliCompressSync, constants, gzipSync } from "node:zlib";

const DIST = new URL("../src/roost/web/dist", import.meta.url).pathname;
const SMALLEST = 1024; // bytes: below that a request costs more than it saves

for (const name of readdirSync(DIST, { recursive: true })) {
  if (!/\.(js|css|html|svg)$/.test(name)) continue;
  const path = join(DIST, name);
  const data = readFileSync(path);
  if (data.length < SMALLEST) continue;
  writeFileSync(`${path}.br`, brotliCompressSync(data, { params: { [constants.BROTLI_PARAM_SIZE_HINT]: data.length } }));
  writeFileSync(`${path}.gz`, gzipSync(data, { level: 9 }));
}
