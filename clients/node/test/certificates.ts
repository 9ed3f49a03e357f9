// A CA for a test, and sidecars over TCP.
import { execFileSync } from "node:child_process";
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import type { Client, ClientOptions } from "locksidecar";
import { Sidecar, until } from "./sidecar";

export const tcpToken = "0123456789abcdef0123456789abcdef";

/** write makes a file that only this user may read, and returns its path. */
export function write(folder: string, name: string, text: string): string {
  const file = join(folder, name);
  writeFileSync(file, text, { mode: 0o600 });
  return file;
}

const newKey = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];

function openssl(...args: string[]): void {
  execFileSync("openssl", args, { stdio: ["ignore", "ignore", "pipe"] });
}

export class Authority {
  /** The file of the CA. */
  readonly file: string;
  readonly #key: string;
  #made = 0;

  constructor(readonly folder: string) {
    mkdirSync(folder, { recursive: true });
    this.file = join(folder, "ca.crt");
    this.#key = join(folder, "ca.key");
    const usage = ["-addext", "keyUsage=critical,keyCertSign"];
    openssl(
      "req",
      "-x509",
      ...newKey,
      "-keyout",
      this.#key,
      "-out",
      this.file,
      "-days",
      "1",
      "-subj",
      "/CN=CA",
      ...usage,
    );
  }

  /** sign makes a certificate, which has expired if `days` is negative. */
  sign(name = "DNS:localhost", days = 1): { cert: string; key: string } {
    const made = join(this.folder, String(this.#made++));
    const [key, request, cert] = [`${made}.key`, `${made}.csr`, `${made}.crt`];
    const subject = ["-subj", "/CN=x", "-addext", `subjectAltName=${name}`];
    openssl("req", ...newKey, "-keyout", key, "-out", request, ...subject);
    const signer = ["-CA", this.file, "-CAkey", this.#key, "-CAcreateserial"];
    const how = ["-copy_extensions", "copy", "-days", String(days)];
    openssl("x509", "-req", "-in", request, ...signer, ...how, "-out", cert);
    return { cert, key };
  }

  /** settings are those of a sidecar with a certificate, and a token. */
  settings(name?: string, days?: number): Record<string, string> {
    const { cert, key } = this.sign(name, days);
    return { TCP_TLS_CERT_FILE: cert, TCP_TLS_KEY_FILE: key, ...plain(this.folder) };
  }
}

/** plain are the settings of a sidecar without a certificate. */
export function plain(folder: string): Record<string, string> {
  return { TCP_ADDR: "127.0.0.1:0", TCP_TOKEN_FILE: write(folder, "tokens", tcpToken) };
}

/** portOf returns the port of a sidecar. Its log says it, soon after its first answer. */
export async function portOf(sidecar: Sidecar): Promise<number> {
  let port = 0;
  await until("the log has the port", () => {
    for (const line of sidecar.log.split("\n")) {
      const found = /"msg":"serving".*"tcp":"[^"]*:(\d+)"/.exec(line);
      port = Number(found?.[1] ?? port);
    }
    return port !== 0;
  });
  return port;
}

/** TlsSidecar is a sidecar whose clients call it over TCP, with TLS and a token. */
export class TlsSidecar extends Sidecar {
  readonly #ca = new Authority(join(this.folder, "ca"));
  readonly #token = write(this.folder, "token", tcpToken);
  #url = "";

  override async start(how?: { ready?: boolean }): Promise<void> {
    Object.assign(this.settings, this.#ca.settings(), { LOG_LEVEL: "info" }); // the log has the port
    await super.start(how);
    this.#url = `https://localhost:${await portOf(this)}`;
  }

  override client(options: ClientOptions = {}): Client {
    const where = { socketPath: undefined, url: this.#url, tokenFile: this.#token, caFile: this.#ca.file };
    return super.client({ ...where, ...options });
  }
}
