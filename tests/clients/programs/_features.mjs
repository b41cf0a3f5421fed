// What a program of this folder does with a client, feature by feature: each ends in a line of JSON.
import { readFileSync } from "node:fs";
import { join } from "node:path";

export const ECHO = {
  type: "object",
  properties: { text: { type: "string" } },
  required: ["text"],
  additionalProperties: false,
};
export const ASK = "Call the tool twice";
export const DONE = "Both were called: one-21 and two-42";

export async function run(client, features) {
  const [url, key, model] = process.argv.slice(2);
  const path = join(process.cwd(), "node_modules", client, "package.json");
  const { version } = JSON.parse(readFileSync(path, "utf8"));
  let failed = false;
  for (const [feature, call] of Object.entries(features)) {
    const line = { client: `npm ${client}`, version, feature, ok: true };
    try {
      await call(url, key, model);
    } catch (error) {
      failed = true;
      console.error(error);
      Object.assign(line, { ok: false, error: `${error?.name}: ${error?.message}`.slice(0, 500) });
    }
    console.log(JSON.stringify(line));
  }
  process.exit(failed ? 1 : 0);
}
