import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { propagation, type TextMapPropagator } from "@opentelemetry/api";
import { Sidecar } from "./sidecar";

const traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
let sidecar: Sidecar;
before(async () => {
  sidecar = await Sidecar.start();
});
after(() => sidecar.remove());

test("the app's trace context goes with the calls", async () => {
  const propagator: TextMapPropagator = {
    inject: (_context, carrier, setter) => setter.set(carrier, "traceparent", traceparent),
    extract: (context) => context,
    fields: () => ["traceparent"],
  };
  const client = sidecar.client();
  await client.acquire("without");
  assert.equal((await client.get("without")).holder?.traceparent, null);
  propagation.setGlobalPropagator(propagator);
  await client.acquire("with");
  assert.equal((await client.get("with")).holder?.traceparent, traceparent);
  propagation.disable();
});
