// Who may not connect, at any door.

import { ask } from "./api.js"
import { confirm, form } from "./dialogs.js"
import { chip, h, note, text, time } from "./dom.js"
import { list } from "./lists.js"

const KINDS = [["client_id", "client id"], ["user", "user"], ["address", "address or network"]]

export function bans() {
  return list({
    title: "Bans", operation: "bans.list", key: (row) => JSON.stringify([row.kind, row.value]), empty: "nobody is banned",
    columns: {
      kind: { show: (row) => chip(row.kind.replace("_", " ")) }, value: { class: "name" },
      ends_at_ms: { title: "until", show: (row) => (row.ends_at_ms ? time(row.ends_at_ms) : "for ever") }, reason: {}, by: {},
    },
    tools: [["Ban", "bans.add", () => banning(), "primary"]],
    actions: (row) => [["Lift", "bans.delete", () => lift(row)]],
  })
}

/** Ask whom to ban, and until when. */
export async function banning({ kind = "client_id", value = "" } = {}) {
  const done = await form({
    title: "Ban", action: "Ban", danger: true,
    intro: "Who matches is disconnected at once and refused at every door. Lasting sessions stay.",
    fields: [
      { name: "kind", label: "Which", kind: "choice", options: KINDS, value: kind },
      { name: "value", label: "Is", value, required: true, help: "an address may be a network: 192.0.2.0/24" },
      { name: "until", label: "Until", kind: "time", help: "empty: for ever" },
      { name: "reason", label: "Reason" },
      { name: "force", label: "Even if it is me", kind: "check" },
    ],
    submit: async ({ until, force, ...given }) => {
      await ask("bans.add", { ...given, until_ms: until ?? 0, ...(force ? { force } : {}) })
      return given.value
    },
  })
  if (done) note(h("span", {}, "banned ", text(done.value)))
}

async function lift(row) {
  const sure = await confirm("Lift the ban?", [h("b", {}, text(row.value)), " may connect again."], "Lift", () => ask("bans.delete", { kind: row.kind, value: row.value }))
  if (sure) note(h("span", {}, "may connect again: ", text(row.value)))
}
