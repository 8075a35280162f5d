// Queues and streams: what waits in them, and what an operator does with it.

import { ask } from "./api.js"
import { confirm, form } from "./dialogs.js"
import { chip, duration, h, link, note, number, text } from "./dom.js"
import { buttons, chosenVhost, list, vhost } from "./lists.js"
import { message } from "./messages.js"
import { facts } from "./tables.js"

const keyOf = (row) => JSON.stringify([row.vhost, row.name])
const of = (row) => ({ name: row.name, vhost: row.vhost })

function flags(row) {
  return [!row.durable && chip("transient"), row.auto_delete && chip("auto-delete"), row.exclusive && chip("exclusive")].filter(Boolean)
}

export function queues() {
  return list({
    title: "Queues", operation: "queues.list", byVhost: true, key: keyOf, empty: "no queues",
    columns: {
      vhost: { unless: () => vhost.names.length < 2 },
      name: { show: (row) => link("queue", of(row), text(row.name)), class: "name" },
      type: {},
      flags: { title: "kind", show: flags, unless: (rows) => rows.every((row) => row.durable && !row.auto_delete && !row.exclusive) },
      ready: {}, unacknowledged: { title: "unacked" }, delayed: {}, consumers: {},
      policy: {}, operator_policy: {},
      arguments: { class: "dim" },
    },
    hidden: ["durable", "auto_delete", "exclusive"],
    tools: [["Declare queue", "queues.add", declare, "primary"]],
    actions: (row) => row.type === "stream" ? [["Delete", "queues.delete", () => remove(row), "danger"]] : [
      ["Purge", "queues.purge", () => purge(row)],
      ["Delete", "queues.delete", () => remove(row), "danger"],
    ],
  })
}

async function declare() {
  const done = await form({
    title: "Declare a queue", action: "Declare",
    fields: [
      { name: "name", label: "Name", required: true },
      { name: "vhost", label: "Virtual host", value: chosenVhost() },
      { name: "type", label: "Type", kind: "choice", options: [["", "classic"], ["quorum", "quorum"], ["stream", "stream"]] },
      { name: "durable", label: "Durable", kind: "check", value: true },
      { name: "auto_delete", label: "Delete it with its last consumer", kind: "check" },
      { name: "arguments", label: "Arguments", kind: "json", help: '{"x-message-ttl": 60000, "x-dead-letter-exchange": "dead"}' },
    ],
    submit: async ({ type, ...given }) => {
      if (type) given.arguments["x-queue-type"] = type
      await ask("queues.add", given)
      return given.name
    },
  })
  if (done) note(h("span", {}, "declared queue ", text(done.value)))
}

async function purge(row) {
  let dropped = 0
  const sure = await confirm("Purge queue?", ["All that waits in ", h("b", {}, text(row.name)), ` (${number(row.ready)} messages now) is lost. What consumers hold stays.`], "Purge", async () => {
    dropped = await ask("queues.purge", of(row))
  })
  if (sure) note(h("span", {}, `dropped ${number(dropped)} messages of `, text(row.name)))
}

async function remove(row) {
  const total = (row.ready ?? 0) + (row.unacknowledged ?? 0) + (row.delayed ?? 0)
  const sure = await confirm("Delete queue?", [h("b", {}, text(row.name)), ` goes with its ${number(total)} messages and its bindings; it has ${number(row.consumers)} consumers.`], "Delete", () => ask("queues.delete", of(row)))
  if (sure) note(h("span", {}, "deleted queue ", text(row.name)))
  return sure
}

async function move(row) {
  const done = await form({
    title: "Move messages", action: "Move",
    intro: "A message leaves its queue once the copy is safe. Dead letters go back this way.",
    fields: [
      { name: "destination", label: "To queue", required: true },
      { name: "limit", label: "At most", kind: "number", value: 10000 },
    ],
    submit: ({ destination, limit }) => ask("queues.move", { source: row.name, destination, vhost: row.vhost, limit: limit ?? 10000 }),
  })
  if (done) note(`moved ${number(done.value.moved)}, ${number(done.value.left)} still wait`)
}

async function alter(row) {
  const done = await form({
    title: "Change arguments", action: "Change",
    intro: "What is named changes in place, null takes one away; messages and consumers stay.",
    fields: [{ name: "arguments", label: "Arguments", kind: "json", value: JSON.stringify(row.arguments) }],
    submit: (given) => ask("queues.alter", { ...of(row), ...given }),
  })
  if (done) note("changed")
}

async function bind(row) {
  const done = await form({
    title: "Bind to an exchange", action: "Bind",
    fields: [
      { name: "source", label: "Exchange", required: true },
      { name: "routing_key", label: "Routing key" },
      { name: "arguments", label: "Arguments", kind: "json" },
    ],
    submit: (given) => ask("bindings.add", { ...given, destination: row.name, kind: "queue", vhost: row.vhost }),
  })
  if (done) note("bound")
}

/** One queue: its figures, its first messages, who consumes, and from where it gets messages. */
export function queue(parameters) {
  const named = { name: parameters.name ?? "", vhost: parameters.vhost ?? "/" }
  let row = { ...named }
  const head = h("div")
  const tools = h("span", { class: "tools" })
  const peeked = h("div", { class: "messages" })
  const here = (one) => one.queue === named.name && one.vhost === named.vhost
  const consumers = list({ title: "Consumers", operation: "consumers.list", given: () => ({ vhost: named.vhost }), where: here, key: (one) => JSON.stringify([one.peer, one.tag]), hidden: ["vhost", "queue"], empty: "no consumers" })
  const bindings = list({
    title: "Bindings", operation: "bindings.list", given: () => ({ vhost: named.vhost }), empty: "only that of the default exchange",
    where: (one) => one.destination_kind === "queue" && one.destination === named.name,
    key: (one) => JSON.stringify(one), hidden: ["vhost", "destination", "destination_kind"],
    actions: (one) => [["Unbind", "bindings.delete", () => unbind(one), "danger"]],
  })
  const again = (action) => async () => {
    await action()
    await refresh()
  }
  tools.append(...buttons([
    ["Peek", "queues.peek", peek, "primary"], ["Publish", "messages.publish", publish], ["Bind", "bindings.add", again(() => bind(row))],
    ["Move", "queues.move", again(() => move(row))], ["Arguments", "queues.alter", again(() => alter(row))],
    ["Purge", "queues.purge", again(() => purge(row))],
    ["Delete", "queues.delete", async () => { if (await remove(row)) location.hash = "#/queues" }, "danger"],
  ]))

  async function publish() {
    const { publishing } = await import("./publish.js")
    await publishing({ exchange: "", routing_key: named.name, vhost: named.vhost })
    await refresh()
  }

  async function peek() {
    const found = await ask("queues.peek", { ...named, limit: 20 })
    const messages = Array.isArray(found) ? found : found.messages
    peeked.replaceChildren(
      h("h3", {}, messages.length ? `The first ${messages.length} that wait` : "Nothing waits"),
      ...messages.map(message),
    )
  }

  async function refresh() {
    row = await ask("queues.describe", named)
    head.replaceChildren(facts([
      ["ready", row.ready], ["unacknowledged", row.unacknowledged], ["delayed", row.delayed], ["consumers", row.consumers],
      ["oldest waits", row.oldest_s === null ? null : duration(row.oldest_s)], ["type", text(row.type)], ["vhost", text(row.vhost)],
      ["kind", flags(row).length ? h("span", {}, flags(row)) : "durable"], ["policy", text(row.policy)], ["operator policy", text(row.operator_policy)],
      ["arguments", Object.keys(row.arguments).length ? text(JSON.stringify(row.arguments)) : null],
    ]))
    await Promise.all([consumers.refresh(), bindings.refresh()])
  }
  const element = h(
    "div", {}, h("div", { class: "bar" }, h("h2", {}, link("queues", {}, "Queues"), " / ", text(named.name)), tools),
    head, peeked, consumers.element, bindings.element,
  )
  return { element, refresh }
}

/** Take a binding away. */
export async function unbind(one) {
  await confirm("Remove the binding?", [text(one.destination), " gets nothing more of ", text(one.source || "(default)"), " by the key ", h("b", {}, text(one.routing_key))], "Remove", () =>
    ask("bindings.delete", { source: one.source, destination: one.destination, kind: one.destination_kind, routing_key: one.routing_key, vhost: one.vhost, arguments: one.arguments }))
}
