import { existsSync } from "node:fs";
import { dirname, isAbsolute, join } from "node:path";

/** The socket in pods, which have its folder. */
export const podSocket = "/run/locksidecar/locksidecar.sock";
/** The socket of other machines, in the home of each user. */
const homeSocket = ".locksidecar/locksidecar.sock";

/** usualSocket is the socket of a sidecar that was not told another one. The sidecar has the same rule. */
export function usualSocket(
  environment: NodeJS.ProcessEnv = process.env,
  exists: (path: string) => boolean = existsSync,
): string {
  const { LOCKSIDECAR_SOCKET: given, HOME: home = "" } = environment;
  if (given) {
    return given;
  }
  return !isAbsolute(home) || exists(dirname(podSocket)) ? podSocket : join(home, homeSocket);
}
