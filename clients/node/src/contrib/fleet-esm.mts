export * from "./fleet.js";
