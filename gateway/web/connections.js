// Who is connected at all doors, who consumes, and what producers have under way.

import { ask, ownAlone } from "./api.js"
import { banning } from "./bans.js"
import { confirm, form } from "./dialogs.js"
import { chip, h, link, note, text } from "./dom.js"
import { list, tabs, vhost } from "./lists.js"

const single = () => vhost.names.length < 2

export function connections(parameters) {
  return tabs("connections", parameters, {
    connections: ["Connections", () => list({
      title: "Connections", intro: ownAlone(), operation: "connections.list", byVhost: true, key: (row) => row.peer + row.connected_at_ms, empty: "nobody is connected",
      columns: { peer: { class: "name" }, name: {}, client_id: { title: "client id" }, user: {}, vhost: { unless: single }, protocol: {}, library: {}, channels: {}, unacknowledged: { title: "unacked" }, connected_at_ms: { title: "connected" } },
      tools: [["Close all of a user", "connections.close", closeUser]],
      actions: (row) => [
        ["Close", "connections.close", () => close(row), "danger"],
        ["Ban", "bans.add", () => banning({ kind: "address", value: host(row.peer) })],
      ],
    })],
    consumers: ["Consumers", () => list({
      title: "Consumers", intro: ownAlone() && "As this broker knows them: of queues that it leads, and of its own clients.", operation: "consumers.list", byVhost: true, key: (row) => JSON.stringify([row.vhost, row.queue, row.peer, row.tag]), empty: "nobody consumes",
      columns: { vhost: { unless: single }, queue: { show: (row) => link("queue", { name: row.queue, vhost: row.vhost }, text(row.queue)), class: "name" }, tag: {}, peer: {}, acknowledges: {}, prefetch: {}, unacknowledged: { title: "unacked" }, exclusive: {}, priority: {} },
    })],
    transactions: ["Transactions", () => list({
      title: "Transactions", operation: "transactions.list", key: (row) => row.transactional_id, empty: "no transaction is open",
      columns: { transactional_id: { class: "name" }, state: { show: (row) => chip(row.state) }, owner: {}, age_ms: { title: "age" }, timeout_ms: { title: "may take" } },
      actions: (row) => [["Abort", "transactions.abort", () => abort(row), "danger"]],
    })],
  })
}

/** The address without its port. */
export const host = (peer) => peer.replace(/:\d+$/, "").replace(/^\[(.*)\]$/, "$1")

async function close(row) {
  const sure = await confirm("Close connection?", [h("b", {}, text(row.peer)), " of user ", text(row.user), " is told that an operator did it, and may come again."], "Close it", () => ask("connections.close", { peer: row.peer }))
  if (sure) note(h("span", {}, "closed ", text(row.peer)))
}

async function closeUser() {
  const done = await form({
    title: "Close all connections of a user", action: "Close them", danger: true,
    fields: [{ name: "name", label: "User", required: true }, { name: "reason", label: "Reason", value: "closed by an operator" }],
    submit: (given) => ask("connections.close", given),
  })
  if (done) note(`closed ${done.value}`)
}

async function abort(row) {
  await confirm("Abort transaction?", ["What ", h("b", {}, text(row.transactional_id)), " has under way is not read by readers of committed records, and its producer is fenced."], "Abort", () => ask("transactions.abort", { transactional_id: row.transactional_id }))
}
