// Where the sidecar listens, and how a connection to it is made there.
import { X509Certificate } from "node:crypto";
import { closeSync, openSync, readFileSync, readSync } from "node:fs";
import { createConnection, isIP, isIPv6, type OnReadOpts, Socket } from "node:net";
import { createSecureContext, type SecureContext, connect as tlsConnect } from "node:tls";
import { InvalidRequestError } from "./errors";
import { usualSocket } from "./socket";

/** A peer that vanishes closes nothing. So the system probes one that says nothing for this long, in ms. */
const probeMs = 3000;
/** The least time between two reads of a token's file, in ms. */
const tokenPauseMs = 1000;
const maxToken = 512;

/** A value, and where it was set, for messages. */
interface Setting {
  readonly name: string;
  readonly value: string;
}

/** The settings that name a sidecar. */
export interface EndpointOptions {
  socketPath?: string | undefined;
  url?: string | undefined;
  tokenFile?: string | undefined;
  caFile?: string | undefined;
}

/** endpointOf reads the settings. What is set in code wins over the environment, and a URL over a socket. */
export function endpointOf(options: EndpointOptions, environment: NodeJS.ProcessEnv = process.env): Endpoint {
  const { socketPath, url, tokenFile, caFile } = options;
  if (url !== undefined && socketPath !== undefined) {
    throw new InvalidRequestError("url and socketPath are both given; one names the sidecar");
  }
  const { LOCKSIDECAR_URL, LOCKSIDECAR_TOKEN_FILE, LOCKSIDECAR_CA_FILE } = environment;
  let where: Setting | undefined;
  if (url !== undefined) {
    where = { name: "url", value: url };
  } else if (socketPath === undefined && LOCKSIDECAR_URL) {
    where = { name: "LOCKSIDECAR_URL", value: LOCKSIDECAR_URL };
  }
  if (where === undefined) {
    return new Endpoint(socketPath ?? usualSocket(environment));
  }
  const target = parse(where);
  if (typeof target === "string") {
    return new Endpoint(target);
  }
  const token = setting("tokenFile", tokenFile) ?? setting("LOCKSIDECAR_TOKEN_FILE", LOCKSIDECAR_TOKEN_FILE);
  target.token = token && new Token(token);
  target.ca = setting("caFile", caFile) ?? setting("LOCKSIDECAR_CA_FILE", LOCKSIDECAR_CA_FILE);
  return new Endpoint(undefined, target);
}

function setting(name: string, value: string | undefined): Setting | undefined {
  return value ? { name, value } : undefined;
}

/** Where a sidecar listens over TCP. */
interface Target {
  /** The name of the setting with the URL. */
  setting: string;
  encrypted: boolean;
  /** As in the URL. */
  authority: string;
  host: string;
  port: number;
  token?: Token | undefined;
  /** Without one, Node's own list counts. */
  ca?: Setting | undefined;
}

/** parse returns the path of a socket, or a target. */
function parse({ name, value }: Setting): string | Target {
  const path = /^unix:\/\/(\/[^\s?#@]+)$/i.exec(value)?.[1];
  if (path !== undefined && /^[^\0]*$/.test(decoded(path))) {
    return decoded(path);
  }
  const found = /^(https?):\/\/(([\w.-]+|\[[\da-f:.]+\]):(\d{1,5}))\/?$/i.exec(value);
  const [, scheme = "", authority = "", host = "", digits = ""] = found ?? [];
  const port = Number(digits);
  const bare = host.startsWith("[") ? host.slice(1, -1) : host;
  if (found === null || port < 1 || port > 65_535 || (bare !== host && !isIPv6(bare))) {
    // A URL with a password, which has no use here, is not shown.
    const shown = value.includes("@") ? "not a URL of a sidecar" : JSON.stringify(value);
    throw new InvalidRequestError(`${name} is ${shown}; allowed: unix:///PATH, http://HOST:PORT or https://HOST:PORT`);
  }
  return { setting: name, encrypted: scheme.toLowerCase() === "https", authority, host: bare, port };
}

/** decoded is a path of a URL; one that cannot be decoded has a zero byte, which no path has. */
function decoded(path: string): string {
  try {
    return decodeURIComponent(path);
  } catch {
    return "\0";
  }
}

/** Endpoint is where the sidecar listens: at a socket, or over TCP. */
export class Endpoint {
  /** The most time for a connection over TCP with its handshake, in ms. */
  static dialMs = 5000;
  /** The path of the socket, or the URL. */
  readonly address: string;
  /** Whether a connection may be written to only after its handshake, because the certificate is verified then. */
  readonly encrypted: boolean;
  /** The CA that was read last. */
  #ca: { pem: string; context: SecureContext } | undefined;

  constructor(
    /** Undefined over TCP. */
    readonly path: string | undefined,
    readonly target?: Target,
  ) {
    this.encrypted = target?.encrypted === true;
    this.address = target ? `${this.encrypted ? "https" : "http"}://${target.authority}` : (path as string);
  }

  /** head returns the lines that a request begins with. Throws an InvalidRequestError if there is no token in its file. */
  head(): string {
    const { target } = this;
    if (target === undefined) {
      return "Host: localhost\r\n";
    }
    const authorization = target.token ? `Authorization: Bearer ${target.token.read()}\r\n` : "";
    return `Host: ${target.authority}\r\n${authorization}`;
  }

  /** connect begins a connection. With TLS it does not use `onread`, and has `data` events. */
  connect(onread: OnReadOpts): Socket {
    const { target } = this;
    if (target === undefined) {
      return createConnection({ path: this.path as string, onread });
    }
    const { host, port } = target;
    const how = { host, port, autoSelectFamily: true };
    let socket: Socket;
    if (this.encrypted) {
      try {
        // The environment may turn the check of certificates off for all of Node (NODE_TLS_REJECT_UNAUTHORIZED), but not here.
        const checks = { secureContext: this.#context(), rejectUnauthorized: true };
        socket = tlsConnect({ ...how, ...checks, ...(isIP(host) === 0 && { servername: host }) });
      } catch (error) {
        return new Socket().destroy(error as Error);
      }
    } else {
      socket = createConnection({ ...how, onread });
    }
    // Node sends ten such probes, a second apart, and then ends the connection.
    socket.once("connect", () => socket.setNoDelay(true).setKeepAlive(true, probeMs));
    return socket;
  }

  /** #context reads the file of the CA each time, because it may be replaced. */
  #context(): SecureContext {
    const { ca } = this.target as Target;
    let pem = "";
    try {
      pem = ca === undefined ? "" : authorities(ca);
    } catch (error) {
      if (this.#ca === undefined || !isExhausted(error as Error)) {
        throw error;
      }
      return this.#ca.context;
    }
    if (this.#ca?.pem !== pem) {
      this.#ca = {
        pem,
        context: createSecureContext({ minVersion: "TLSv1.2", ...(ca !== undefined && { ca: pem }) }),
      };
    }
    return this.#ca.context;
  }

  /** whatToCheck says why there is no connection over TCP, and what to look at. */
  whatToCheck(cause: NodeJS.ErrnoException & { reason?: string }, isOfCertificate: boolean): string {
    const { setting: url, ca } = this.target as Target;
    const { code = "" } = cause;
    const why = cause.message || code;
    const certificate = `the certificate of the sidecar at ${this.address}`;
    if (code === "ERR_TLS_CERT_ALTNAME_INVALID") {
      return `${certificate} is for another name (${why}); ${url} has to use a name of the certificate`;
    }
    if (code === "CERT_HAS_EXPIRED" || code === "CERT_NOT_YET_VALID") {
      return `${certificate} is not valid now: ${why}`;
    }
    if (isOfCertificate) {
      const remedy = ca
        ? `${ca.name}, ${JSON.stringify(ca.value)}, has to be the file of its CA`
        : "LOCKSIDECAR_CA_FILE or caFile names the file of the CA";
      return `${certificate} is of a CA that this process does not trust (${why}); ${remedy}`;
    }
    if (code.startsWith("ERR_SSL") || code === "EPROTO") {
      return `what listens at ${this.address} does not speak TLS as this process does (${cause.reason ?? code}); is it http://, or another port? Check ${url}`;
    }
    if (cause.syscall === "getaddrinfo") {
      return `the host of ${this.address} is not known (${code}); check ${url}`;
    }
    if (code === "ECONNREFUSED") {
      return `no sidecar listens at ${this.address}; check that it runs, that its LOCKSIDECAR_TCP_ADDR has this port, and that ${url} is right`;
    }
    return `no connection to the sidecar at ${this.address}: ${why}; check ${url}, and the network`;
  }
}

/** isExhausted says whether something failed for want of a file descriptor. */
export function isExhausted(cause: NodeJS.ErrnoException | undefined): boolean {
  return cause?.code === "EMFILE" || cause?.code === "ENFILE";
}

/** authorities reads a file of CAs. Node would take its own list in place of an empty one. */
function authorities({ name, value }: Setting): string {
  let pem: string;
  try {
    pem = readFileSync(value, "latin1");
  } catch (cause) {
    if (isExhausted(cause as Error)) {
      throw cause; // that is the trouble, and not this file
    }
    throw new InvalidRequestError(`${name} cannot be read: ${(cause as Error).message}`, { cause });
  }
  try {
    new X509Certificate(pem);
  } catch {
    throw new InvalidRequestError(`${name} is ${JSON.stringify(value)}, and this file has no certificate in PEM`);
  }
  return pem;
}

/** Token is a file whose first line is the token. It may be replaced while it is used. */
class Token {
  readonly #setting: Setting;
  #token = "";
  #looked = Number.NEGATIVE_INFINITY;

  constructor(file: Setting) {
    this.#setting = file;
  }

  /** read returns the token. An error contains nothing of the file. A file that is away or incomplete for a moment changes nothing. */
  read(): string {
    const now = performance.now();
    if (this.#token === "" || now - this.#looked >= tokenPauseMs) {
      this.#looked = now;
      try {
        this.#token = this.#fromFile();
      } catch (error) {
        if (this.#token === "") {
          throw error;
        }
      }
    }
    return this.#token;
  }

  #fromFile(): string {
    const { name, value } = this.#setting;
    let text: string;
    try {
      text = beginning(value);
    } catch (cause) {
      throw new InvalidRequestError(`${name} cannot be read: ${(cause as Error).message}`, { cause });
    }
    const token = (text.split("\n", 1)[0] as string).trim();
    if (!/^[\x21-\x7e]+$/.test(token) || token.length > maxToken) {
      throw new InvalidRequestError(
        `${name} is ${JSON.stringify(value)}, and the first line of this file is no token: it has up to ${maxToken} printable characters and no space`,
      );
    }
    return token;
  }
}

/** beginning reads as much of a file as a token may have, and some more. */
function beginning(path: string): string {
  const file = openSync(path, "r");
  try {
    const bytes = Buffer.alloc(2 * maxToken);
    return bytes.toString("latin1", 0, readSync(file, bytes, 0, bytes.length, 0));
  } finally {
    closeSync(file);
  }
}
