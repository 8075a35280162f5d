// Exchanges, and who gets what is published to them.

import { ask } from "./api.js"
import { confirm, form } from "./dialogs.js"
import { chip, h, note, text } from "./dom.js"
import { chosenVhost, list, tabs, vhost } from "./lists.js"
import { publishing } from "./publish.js"
import { unbind } from "./queues.js"

const named = (name) => (name === "" ? h("i", { class: "dim" }, "(default)") : text(name))
const single = () => vhost.names.length < 2

export function exchanges(parameters) {
  return tabs("exchanges", parameters, {
    exchanges: ["Exchanges", () => list({
      title: "Exchanges", operation: "exchanges.list", byVhost: true, key: (row) => JSON.stringify([row.vhost, row.name]),
      columns: {
        vhost: { unless: single }, name: { show: (row) => named(row.name), class: "name" }, type: {},
        flags: { title: "kind", show: (row) => [!row.durable && chip("transient"), row.auto_delete && chip("auto-delete"), row.internal && chip("internal")].filter(Boolean) },
        bindings: {}, arguments: { class: "dim" },
      },
      hidden: ["durable", "auto_delete", "internal"],
      tools: [["Declare exchange", "exchanges.add", declare, "primary"]],
      actions: (row) => [
        !row.internal && ["Publish", "messages.publish", () => publishing({ exchange: row.name, vhost: row.vhost })],
        row.name !== "" && !row.name.startsWith("amq.") && ["Delete", "exchanges.delete", () => remove(row), "danger"],
      ],
    })],
    bindings: ["Bindings", () => list({
      title: "Bindings", operation: "bindings.list", byVhost: true, key: (row) => JSON.stringify(row), empty: "no bindings but those to the default exchange",
      columns: {
        vhost: { unless: single }, source: { show: (row) => named(row.source), class: "name" }, routing_key: { title: "key" },
        destination: { class: "name" }, destination_kind: { title: "kind" }, arguments: { class: "dim" },
      },
      tools: [["Bind", "bindings.add", bind, "primary"]],
      actions: (row) => [["Unbind", "bindings.delete", () => unbind(row), "danger"]],
    })],
  })
}

async function declare() {
  const done = await form({
    title: "Declare an exchange", action: "Declare",
    fields: [
      { name: "name", label: "Name", required: true },
      { name: "vhost", label: "Virtual host", value: chosenVhost() },
      { name: "kind", label: "Type", value: "topic", help: "direct, fanout, topic, headers, and others that the broker has" },
      { name: "durable", label: "Durable", kind: "check", value: true },
      { name: "auto_delete", label: "Delete it with its last binding", kind: "check" },
      { name: "internal", label: "Internal", kind: "check" },
      { name: "arguments", label: "Arguments", kind: "json", help: '{"alternate-exchange": "unrouted"}' },
    ],
    submit: (given) => ask("exchanges.add", given),
  })
  if (done) note("declared")
}

async function remove(row) {
  const sure = await confirm("Delete exchange?", [h("b", {}, text(row.name)), ` goes with its ${row.bindings} bindings.`], "Delete", () => ask("exchanges.delete", { name: row.name, vhost: row.vhost }))
  if (sure) note(h("span", {}, "deleted exchange ", text(row.name)))
}

async function bind() {
  const done = await form({
    title: "Bind", action: "Bind",
    fields: [
      { name: "vhost", label: "Virtual host", value: chosenVhost() },
      { name: "source", label: "Exchange", required: true },
      { name: "routing_key", label: "Routing key" },
      { name: "kind", label: "To", kind: "choice", options: [["queue", "a queue"], ["exchange", "an exchange"], ["topic", "a topic (a log)"]] },
      { name: "destination", label: "Called", required: true },
      { name: "arguments", label: "Arguments", kind: "json" },
    ],
    submit: (given) => ask("bindings.add", given),
  })
  if (done) note("bound")
}
