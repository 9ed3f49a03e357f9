/** The part of @opentelemetry/api that is used. */
interface TracingApi {
  context: { active(): unknown };
  propagation: { inject(context: unknown, carrier: Record<string, string>): void };
}

let api: TracingApi | null | undefined;

/** load finds @opentelemetry/api if the app has it. It is not a dependency. */
function load(): TracingApi | null {
  try {
    return require("@opentelemetry/api") as TracingApi;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "MODULE_NOT_FOUND") {
      return null;
    }
    throw error;
  }
}

/** traceHeaders are the headers that carry the active trace context: traceparent, tracestate, baggage. */
export function traceHeaders(): Record<string, string> {
  if (api === undefined) {
    api = load();
  }
  const headers: Record<string, string> = {};
  api?.propagation.inject(api.context.active(), headers);
  return headers;
}
