import react from "@vitejs/plugin-react";
import { defaultClientConditions, defineConfig, loadEnv } from "vite";

export default defineConfig(({ mode }) => {
  // `npm run dev` talks to the server that `make up` started.
  const target = loadEnv(mode, ".", "ROOST_").ROOST_URL ?? "http://127.0.0.1:8700";
  const proxy = Object.fromEntries(["/v1", "/roost", "/auth"].map((path) => [path, { target }]));
  return {
    plugins: [react()],
    resolve: { conditions: ["source", ...defaultClientConditions] }, // the client as it is written
    build: { outDir: "dist", emptyOutDir: true }, // install.mjs puts it where servers look
    server: { proxy: { ...proxy, "/ws": { target, ws: true } } },
  };
});
