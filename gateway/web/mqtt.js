// MQTT: devices that are connected, their sessions, what is retained, and who may not come.

import { ask, ownAlone } from "./api.js"
import { banning, bans } from "./bans.js"
import { confirm, form } from "./dialogs.js"
import { chip, duration, h, note, number, text } from "./dom.js"
import { chosenVhost, list, tabs, vhost } from "./lists.js"
import { message } from "./messages.js"
import { publishingMqtt } from "./publish.js"

const single = () => vhost.names.length < 2
const publish = ["Publish", "messages.publish", () => publishingMqtt(), "primary"]

export function mqtt(parameters) {
  return tabs("mqtt", parameters, { clients: ["Clients", clients], sessions: ["Sessions", sessions], retained: ["Retained", () => retained(parameters)], bans: ["Bans", bans] })
}

// The topic of a routing key, and the other way round (protocols/convert.py).
const swapped = (name) => name.replace(/[./]/g, (one) => (one === "." ? "/" : "."))

const idOf = (row) => row.client_id ?? row.name

function clients() {
  return list({
    title: "Clients", intro: ownAlone(), operation: "connections.list", byVhost: true, where: (row) => /mqtt/i.test(row.protocol), key: (row) => row.peer + row.connected_at_ms,
    empty: "no device is connected",
    columns: { client: { title: "client id", show: (row) => text(idOf(row)), value: idOf, class: "name" }, user: {}, peer: {}, vhost: { unless: single }, protocol: {}, unacknowledged: { title: "unacked" }, connected_at_ms: { title: "connected" } },
    hidden: ["channels", "client_id", "name"], tools: [publish],
    actions: (row) => [
      ["Kick", "connections.close", () => kick(row), "danger"],
      ["Ban", "bans.add", () => banning({ kind: "client_id", value: idOf(row) }), "danger"],
    ],
  })
}

async function kick(row) {
  const id = idOf(row)
  const sure = await confirm("Kick client?", [h("b", {}, text(id)), " at ", text(row.peer), " is disconnected; it may come again at once. Its session stays if it lasts."], "Kick", () => ask("connections.close", { peer: row.peer }))
  if (sure) note(h("span", {}, "kicked ", text(id)))
}

function sessions() {
  return list({
    title: "Sessions", operation: "sessions.list", byVhost: true, key: (row) => JSON.stringify([row.vhost, row.client_id]), empty: "no sessions",
    columns: {
      client_id: { title: "client id", class: "name" }, user: {}, vhost: { unless: single },
      connected: { title: "state", show: (row) => (row.connected ? chip("connected", "good") : chip("away")) }, peer: {},
      waiting: {}, unacknowledged: { title: "unacked" }, subscriptions: { show: (row) => (Array.isArray(row.subscriptions) ? number(row.subscriptions.length) : number(row.subscriptions)), number: true },
      expiry_s: { title: "lasts", show: (row) => lasts(row.expiry_s) },
    },
    tools: [publish],
    actions: (row) => [
      ["Subscriptions", "sessions.describe", () => describe(row)],
      ["End", "sessions.delete", () => end(row), "danger"],
      ["Ban", "bans.add", () => banning({ kind: "client_id", value: row.client_id })],
    ],
  })
}

function lasts(seconds) {
  if (seconds === null || seconds === undefined || seconds >= 0xffffffff) return "for ever"
  return seconds ? duration(seconds) : "while connected"
}

async function describe(row) {
  const told = await ask("sessions.describe", { client_id: row.client_id, vhost: row.vhost })
  const found = told.subscriptions?.rows ?? told.subscriptions ?? []
  const lines = found.map((one) => h("li", {}, Array.isArray(one) ? one.map((value, index) => [index ? " · " : "", text(value)]) : Object.entries(one).map(([name, value], index) => [index ? ` · ${name.replaceAll("_", " ")} ` : "", text(value)])))
  await form({ title: "Subscriptions", intro: text(row.client_id), action: "Close", fields: [], extra: [lines.length ? h("ul", {}, lines) : h("p", {}, "none")], wide: true, submit: () => null })
}

async function end(row) {
  const sure = await confirm("End session?", [h("b", {}, text(row.client_id)), ` is disconnected, and what waits for it is lost: ${number(row.waiting ?? 0)} messages.`], "End it", () => ask("sessions.delete", { client_id: row.client_id, vhost: row.vhost }))
  if (sure) note(h("span", {}, "ended the session of ", text(row.client_id)))
}

function retained(parameters) {
  const shown = h("div", { class: "messages" })
  const found = list({
    title: "Retained", operation: "retained.list", given: () => ({ vhost: chosenVhost(), pattern: parameters.pattern || "#", limit: 1000 }), key: (row) => row.key, empty: "nothing is retained",
    columns: { key: { title: "topic", class: "name", show: (row) => text(swapped(row.key)), value: (row) => swapped(row.key) }, bytes: { title: "size" }, persistent: {}, ends_at_ms: { title: "ends", show: (row) => (row.ends_at_ms ? new Date(row.ends_at_ms).toLocaleString() : "never") } },
    tools: [publish, ["Clear by pattern", "retained.clear", clearing, "danger"]],
    actions: (row) => [
      ["Show", "retained.get", async () => {
        const told = await ask("retained.get", { key: row.key, vhost: chosenVhost() })
        shown.replaceChildren(h("h3", {}, text(swapped(row.key))), message(told))
      }],
      ["Clear", "retained.clear", () => clear(row), "danger"],
    ],
  })
  return { element: h("div", {}, found.element, shown), refresh: found.refresh }
}

async function clear(row) {
  const sure = await confirm("Clear?", ["Nothing is retained of ", h("b", {}, text(swapped(row.key))), " any more."], "Clear", () => ask("retained.clear", { pattern: row.key, vhost: chosenVhost() }))
  if (sure) note(h("span", {}, "cleared ", text(swapped(row.key))))
}

async function clearing() {
  const done = await form({
    title: "Clear retained messages", action: "Clear", danger: true,
    fields: [{ name: "pattern", label: "Of topics that match", required: true, help: "with + and #; # is all" }],
    submit: (given) => ask("retained.clear", { pattern: swapped(given.pattern), vhost: chosenVhost() }),
  })
  if (done) note(`cleared ${number(done.value)}`)
}
