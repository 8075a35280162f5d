// Users, and what they may do in virtual hosts.

import { ask } from "./api.js"
import { bans } from "./bans.js"
import { confirm, form } from "./dialogs.js"
import { chip, h, note, shown, text } from "./dom.js"
import { chosenVhost, list, tabs } from "./lists.js"

const PATTERNS = "regular expressions of names; empty: nothing, .*: everything"

export function access(parameters) {
  return tabs("access", parameters, {
    users: ["Users", users],
    permissions: ["Permissions", permissions],
    topicPermissions: ["Keys of topic exchanges", topicPermissions],
    vhosts: ["Virtual hosts", virtualHosts],
    bans: ["Bans", bans],
  })
}

function users() {
  return list({
    title: "Users", operation: "users.list", key: (row) => row.user,
    columns: { user: { class: "name" }, tags: { show: (row) => row.tags.map((one) => chip(text(one))) }, from: { title: "kept in" } },
    tools: [["Add user", "users.add", addUser, "primary"]],
    actions: (row) => [
      ["Permissions", "permissions.set", () => permit({ name: row.user })],
      row.from === "catalog" && ["Tags", "users.tags", () => tag(row)],
      row.from === "catalog" && ["Password", "users.password", () => password(row)],
      row.from === "catalog" && ["Delete", "users.delete", () => removeUser(row), "danger"],
    ],
  })
}

const TAGS = "words: administrator, monitoring, policymaker, or none"

async function addUser() {
  const done = await form({
    title: "Add a user", action: "Add",
    fields: [
      { name: "name", label: "Name", required: true },
      { name: "password", label: "Password", kind: "password", required: true },
      { name: "tags", label: "Tags", kind: "words", help: TAGS },
      { name: "vhost", label: "May in virtual host", value: chosenVhost(), help: "empty: nowhere yet" },
      { name: "configure", label: "Configure", value: "", help: PATTERNS },
      { name: "write", label: "Write", value: "" },
      { name: "read", label: "Read", value: "" },
    ],
    submit: async ({ vhost, configure, write, read, ...given }) => {
      await ask("users.add", given)
      if (vhost && (configure || write || read)) await ask("permissions.set", { vhost, name: given.name, configure, write, read })
      return given.name
    },
  })
  if (done) note(h("span", {}, "added user ", text(done.value)))
}

async function tag(row) {
  const done = await form({ title: "Tags", intro: text(row.user), action: "Set", fields: [{ name: "tags", label: "Tags", kind: "words", value: row.tags.join(" "), help: TAGS }], submit: (given) => ask("users.tags", { name: row.user, ...given }) })
  if (done) note("set")
}

async function password(row) {
  const done = await form({ title: "Another password", intro: text(row.user), action: "Set", fields: [{ name: "password", label: "Password", kind: "password", required: true }], submit: (given) => ask("users.password", { name: row.user, ...given }) })
  if (done) note("set")
}

async function removeUser(row) {
  const sure = await confirm("Delete user?", [h("b", {}, text(row.user)), " goes with all permissions, and is disconnected."], "Delete", () => ask("users.delete", { name: row.user }))
  if (sure) note(h("span", {}, "deleted user ", text(row.user)))
}

function permissions() {
  return list({
    title: "Permissions", operation: "permissions.list", byVhost: true, key: (row) => JSON.stringify([row.vhost, row.user]),
    columns: { user: { class: "name" }, vhost: {}, configure: { class: "code" }, write: { class: "code" }, read: { class: "code" } },
    tools: [["Set permission", "permissions.set", () => permit({}), "primary"]],
    actions: (row) => [
      ["Change", "permissions.set", () => permit({ ...row, name: row.user })],
      ["Clear", "permissions.clear", () => confirm("Clear permission?", [h("b", {}, text(row.user)), " may do nothing in ", text(row.vhost), " any more."], "Clear", () => ask("permissions.clear", { vhost: row.vhost, name: row.user })), "danger"],
    ],
  })
}

async function permit({ name = "", vhost = chosenVhost(), configure = "", write = "", read = "" }) {
  const done = await form({
    title: "Permission", action: "Set", intro: PATTERNS,
    fields: [
      { name: "name", label: "User", value: name, required: true }, { name: "vhost", label: "Virtual host", value: vhost, required: true },
      { name: "configure", label: "Configure", value: configure }, { name: "write", label: "Write", value: write }, { name: "read", label: "Read", value: read },
    ],
    submit: (given) => ask("permissions.set", given),
  })
  if (done) note("set")
}

function topicPermissions() {
  return list({
    title: "Keys of topic exchanges", operation: "topic-permissions.list", byVhost: true, key: (row) => JSON.stringify([row.vhost, row.user, row.exchange]), empty: "no keys are limited",
    columns: { user: { class: "name" }, vhost: {}, exchange: {}, write: { class: "code" }, read: { class: "code" } },
    tools: [["Limit keys", "topic-permissions.set", limitKeys, "primary"]],
    actions: (row) => [["Clear", "topic-permissions.clear", () => confirm("Clear limit?", [h("b", {}, text(row.user)), " may use all keys of ", text(row.exchange), "."], "Clear", () => ask("topic-permissions.clear", { vhost: row.vhost, name: row.user, exchange: row.exchange })), "danger"]],
  })
}

async function limitKeys() {
  const done = await form({
    title: "Limit keys", action: "Limit", intro: PATTERNS,
    fields: [
      { name: "name", label: "User", required: true }, { name: "vhost", label: "Virtual host", value: chosenVhost(), required: true },
      { name: "exchange", label: "Exchange", value: "amq.topic", required: true }, { name: "write", label: "Write" }, { name: "read", label: "Read" },
    ],
    submit: (given) => ask("topic-permissions.set", given),
  })
  if (done) note("set")
}

function virtualHosts() {
  return list({
    title: "Virtual hosts", operation: "vhosts.list", key: (row) => row.name,
    columns: { name: { class: "name" }, description: {}, queues: {}, messages: {}, connections: {}, limits: { show: (row) => shown(row.limits) }, tracing: { show: (row) => (row.tracing ? chip("traced", "warn") : "") } },
    tools: [["Add virtual host", "vhosts.add", addVhost, "primary"]],
    actions: (row) => [
      ["Limits", "vhosts.limits", () => limit(row)],
      [row.tracing ? "Trace off" : "Trace on", "vhosts.trace", () => ask("vhosts.trace", { name: row.name, on: !row.tracing })],
      ["Delete", "vhosts.delete", () => removeVhost(row), "danger"],
    ],
  })
}

async function addVhost() {
  const done = await form({ title: "Add a virtual host", action: "Add", fields: [{ name: "name", label: "Name", required: true }, { name: "description", label: "Description" }], submit: (given) => ask("vhosts.add", given) })
  if (!done) return
  note("added")
  document.dispatchEvent(new Event("vhosts"))
}

async function limit(row) {
  const done = await form({
    title: "Limits", intro: text(row.name), action: "Set",
    fields: [["max-connections", "Connections"], ["max-queues", "Queues"]].map(([name, label]) => ({ name, label, kind: "number", value: row.limits[name] ?? -1, help: "-1: no limit" })),
    submit: (limits) => ask("vhosts.limits", { name: row.name, limits: Object.fromEntries(Object.entries(limits).filter((one) => one[1] !== null)) }),
  })
  if (done) note("set")
}

async function removeVhost(row) {
  const sure = await confirm("Delete virtual host?", [h("b", {}, text(row.name)), ` goes with its ${row.queues} queues and all in them; its ${row.connections} connections are closed.`], "Delete", () => ask("vhosts.delete", { name: row.name }))
  if (!sure) return
  note(h("span", {}, "deleted ", text(row.name)))
  document.dispatchEvent(new Event("vhosts"))
}
