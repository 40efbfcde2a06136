// A client generated from the contract, over gRPC and over gRPC-Web: creates a rollout, starts it, posts a reward, reads
// its events, and reads an error with its details. In: base URL, transport. Out: one JSON line.
import { Code, ConnectError, createClient } from "@connectrpc/connect";
import { createGrpcTransport, createGrpcWebTransport } from "@connectrpc/connect-node";
import { EventService } from "./gen/whippletree/v1/event_pb.js";
import { RolloutService, RolloutState } from "./gen/whippletree/v1/rollout_pb.js";
import { RunService } from "./gen/whippletree/v1/run_pb.js";

const [baseUrl, kind] = process.argv.slice(2);
const transport = kind === "web"
  ? createGrpcWebTransport({ baseUrl, httpVersion: "1.1" })
  : createGrpcTransport({ baseUrl });
const [runs, rollouts, events] = [RunService, RolloutService, EventService].map((s) => createClient(s, transport));

const id = `node-${kind}`;
const name = `rollouts/${id}`;
await runs.createRun({ runId: id, run: { policy: "models/tiny" } });
const created = await rollouts.createRollout({
  rolloutId: id,
  rollout: { run: `runs/${id}`, input: { question: "1 + 1", deep: { list: [1, "two"] } } },
});
const repeated = await rollouts.createRollout({
  rolloutId: id,
  rollout: { run: `runs/${id}`, input: { question: "1 + 1", deep: { list: [1, "two"] } } },
});
await rollouts.startRollout({ name, worker: "node" });
await events.appendEvent({ parent: name, attempt: 1, payload: { case: "reward", value: { value: 0 } } });
const read = await events.listEvents({ parent: name });
let refused;
try {
  await rollouts.getRollout({ name: "rollouts/none" });
} catch (error) {
  const known = ConnectError.from(error);
  refused = { code: Code[known.code], details: known.details.map((detail) => detail.type) };
}
console.log(JSON.stringify({
  state: RolloutState[created.rollout.state],
  existed: [created.existed, repeated.existed],
  input: repeated.rollout.input,
  events: read.events.map((event) => [typeof event.sequence, event.payload.case, event.payload.value.value]),
  refused,
}));
