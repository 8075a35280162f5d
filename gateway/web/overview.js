// How the broker and its cluster are doing, as `millrace status` says it.

import { PAGE_ROWS, all, ask } from "./api.js"
import { chip, h, link, number, shown, text } from "./dom.js"
import { Table, facts } from "./tables.js"

const NAMED = 10
const LONGEST = 8

export function overview() {
  const alarms = h("ul", { class: "alarms" })
  const figures = h("div", { class: "figures" })
  const who = h("div")
  const brokers = new Table({
    label: "Brokers", key: (row) => row.id, hidden: ["broker"],
    columns: {
      id: { title: "broker", number: false },
      state: { show: (row) => stateOf(row), value: (row) => row.alive },
      version: {}, rack: {},
      addresses: { unless: (rows) => rows.every((row) => !Object.keys(row.addresses ?? {}).length), show: (row) => text(Object.entries(row.addresses ?? {}).map(([name, where]) => `${name} ${where}`).join(", ")) },
      alive: {}, draining: {},
    },
  })
  for (const name of ["alive", "draining"]) brokers.hidden.add(name)
  const longest = new Table({
    label: "Longest queues", key: (row) => JSON.stringify([row.vhost, row.name]), empty: "nothing waits in queues",
    columns: {
      name: { show: (row) => link("queue", { name: row.name, vhost: row.vhost }, text(row.name)), class: "name" }, vhost: {}, type: {},
      ready: {}, unacknowledged: { title: "unacked" }, delayed: {}, consumers: {},
    },
    hidden: ["durable", "auto_delete", "exclusive", "policy", "operator_policy", "arguments"],
  })
  const looked = h("h3")
  const element = h(
    "section", {}, h("div", { class: "bar" }, h("h2", {}, "Overview")), alarms, figures, who,
    looked, longest.element, h("h3", {}, "Brokers"), brokers.element,
  )

  async function refresh() {
    const [me, cluster, vhosts, partitions, topics, groups, queues] = await Promise.all([
      ask("whoami"), maybe(ask("cluster.brokers")), maybe(all("vhosts.list")), maybe(all("cluster.partitions")),
      maybe(all("topics.list")), maybe(all("groups.list")), maybe(all("queues.list", {}, PAGE_ROWS)),
    ])
    const refused = [cluster, vhosts, partitions, queues].find((one) => one instanceof Error)
    who.replaceChildren(facts([
      ["user", text(me.user)], ["tags", text((me.tags ?? []).join(", ") || "none")], ["version", text(me.version)],
      ["cluster", me.cluster ? text(me.cluster) : "none, a single broker"], ["this broker", String(me.broker_id)],
    ]))
    const sum = (name) => vhosts.reduce((total, one) => total + (one[name] ?? 0), 0)
    figures.replaceChildren(
      ...(vhosts instanceof Error ? [] : [figure("queues", "Queues", sum("queues")), figure("queues", "Messages", sum("messages")), figure("connections", "Connections", sum("connections"))]),
      ...(topics instanceof Error ? [] : [figure("topics", "Topics", topics.length)]),
      ...(groups instanceof Error ? [] : [figure("groups", "Groups", groups.length)]),
    )
    if (refused) {
      alarms.replaceChildren()
      throw refused
    }
    const found = troubles(cluster, partitions)
    if (me.blocked) found.unshift(h("span", {}, "publishers to this broker wait: ", text(me.blocked)))
    alarms.replaceChildren(...(found.length ? found.map((one) => h("li", {}, one)) : [h("li", { class: "well" }, "No alarms: all brokers run, all partitions have a leader and their replicas, and nobody has to wait with publishing to this broker")]))
    brokers.draw(cluster.brokers)
    looked.textContent = `Longest queues${queues.length === PAGE_ROWS ? `, of the first ${number(PAGE_ROWS)}` : ""}`
    longest.draw(queues.filter((one) => one.ready).sort((one, other) => other.ready - one.ready).slice(0, LONGEST))
  }
  return { element, refresh }
}

/** What somebody without a tag may not see is left out, all else is shown. */
const maybe = (asked) => asked.catch((error) => {
  if (error.status === 401 || error.status === 0) throw error
  return error
})

const figure = (view, title, value) => h("a", { class: "figure", href: `#/${view}` }, h("b", {}, number(value)), h("span", {}, title))

function stateOf(row) {
  const marks = [row.alive ? chip("running", "good") : chip("gone", "bad")]
  if (row.draining) marks.push(chip("drains", "warn"))
  return marks
}

/** What is not as it should be, in words. */
function troubles(cluster, partitions) {
  const found = []
  const say = (what, which) => {
    if (which.length)
      found.push(`${what}, ${number(which.length)} of ${number(partitions.length)} partitions: ` + which.slice(0, NAMED).map((one) => `${one.topic}-${one.partition}`).join(", ") + (which.length > NAMED ? " …" : ""))
  }
  if (!cluster.has_lease) found.push(`broker ${cluster.broker} has no lease, as etcd does not renew it: ${cluster.serves ? "it goes on serving" : "it leads nothing"}, and what is said here is what it knew last`)
  if (cluster.etcd_refuses) found.push(`etcd takes no changes, so nothing is declared and nobody is elected: ${cluster.etcd_refuses}`)
  const gone = cluster.brokers.filter((one) => !one.alive).map((one) => one.id)
  if (gone.length) found.push(`brokers that are gone: ${gone.join(", ")}`)
  for (const one of cluster.brokers) {
    for (const what of ["refusing", "stalled", "low_on_disk", "unreachable", "lost", "unopened", "unreadable"]) {
      const value = one[what]
      if (Array.isArray(value) ? value.length : value) found.push(h("span", {}, `broker ${one.id}: ${what} `, value === true ? "" : shown(value)))
    }
  }
  say("without a leader", partitions.filter((one) => one.leader === null))
  say("under-replicated", partitions.filter((one) => one.isr.length < one.replicas.length))
  say("elected uncleanly once", partitions.filter((one) => one.unclean_epoch))
  if (cluster.brokers.length > 1) say("single copy (acks=all proves no more than one)", partitions.filter((one) => one.single_copy))
  return found
}
