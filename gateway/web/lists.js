// A list of the broker as a view: its page of rows, a filter, and what may be done with each and with all.

import { PAGE_ROWS, ask, can, objects } from "./api.js"
import { button, h, number } from "./dom.js"
import { Table } from "./tables.js"

/** Through so many pages a filter looks. */
const FILTERED_PAGES = 10

/** The virtual host that the page is about; "": all. */
export const vhost = { chosen: "", names: ["/"] }

/** The one for forms. */
export const chosenVhost = () => vhost.chosen || "/"

/** Buttons for those of [label, operation, action, kind] that the broker has and this user may. */
export function buttons(offered) {
  return offered.filter((one) => one && can(one[1])).map(([label, , action, kind]) => button(label, action, kind))
}

/**
 * A list: `operation` with `given()`, `byVhost`: it takes a virtual host. `where(row)` leaves rows out. Of `tools` and
 * `actions(row, again)` see `buttons`; the rest is as for a Table.
 */
export function list({ title, intro, operation, given = () => ({}), byVhost = false, where = null, tools = [], actions, ...rest }) {
  let start = 0
  const filter = h("input", { type: "search", placeholder: "Filter", "aria-label": `Filter ${title}`, spellcheck: "false", class: "filter" })
  const count = h("span", { class: "count" })
  const pages = h("span", { class: "pages" })
  const again = () => refresh()
  const table = new Table({
    label: title, ...rest, actions: actions ? (row) => buttons(actions(row, again).map((one) => one && [one[0], one[1], () => done(one[2]), one[3]])) : null,
  })
  const done = async (action) => {
    await action()
    await refresh()
  }
  let wait = 0
  filter.addEventListener("input", () => {
    clearTimeout(wait)
    start = 0
    wait = setTimeout(() => refresh().catch(() => {}), 150)
  })
  const element = h(
    "section", { class: "list" },
    h("div", { class: "bar" }, h("h2", {}, title), count, filter, pages, h("span", { class: "tools" }, buttons(tools.map((one) => one && [one[0], one[1], () => done(one[2]), one[3] ?? ""])))),
    intro ? h("p", { class: "intro" }, intro) : "", table.element,
  )

  async function page(from) {
    const asked = { ...given(), ...(byVhost ? { vhost: vhost.chosen || null } : {}), start: from }
    return ask(operation, asked)
  }

  async function fetched(wanted) {
    let found = await page(wanted ? 0 : start)
    const columns = found.columns
    let rows = objects(found)
    let looked = 1
    while (wanted && found.rows.length === PAGE_ROWS && looked < FILTERED_PAGES) {
      found = await page(looked * PAGE_ROWS)
      rows = rows.concat(objects(found))
      looked += 1
    }
    return { columns, rows, full: found.rows.length === PAGE_ROWS }
  }

  let last = 0
  async function refresh() {
    const mine = ++last
    const wanted = filter.value.toLowerCase()
    const { columns, rows, full } = await fetched(wanted !== "" || where !== null)
    if (mine !== last) return
    const matching = rows.filter((row) => (where === null || where(row)) && (wanted === "" || said(row).includes(wanted)))
    table.draw(matching.slice(0, PAGE_ROWS), columns)
    tell(matching.length, rows.length, full, wanted !== "")
  }

  function tell(matching, looked, full, filtered) {
    const cut = matching > PAGE_ROWS ? `, the first ${number(PAGE_ROWS)} shown` : ""
    count.textContent = filtered ? `${number(matching)} of ${full ? "the first " : ""}${number(looked)}${cut}` : full || start ? `${number(start + 1)} to ${number(start + looked)}` : number(matching)
    if (filtered || (!full && start === 0)) return pages.replaceChildren()
    const turn = (step) => button(step < 0 ? "Earlier" : "Later", async () => {
      start = Math.max(0, start + step * PAGE_ROWS)
      await refresh()
    })
    pages.replaceChildren(...(start ? [turn(-1)] : []), ...(full ? [turn(1)] : []))
  }

  return { element, refresh, table }
}

const said = (row) => Object.values(row).map((value) => (typeof value === "object" ? JSON.stringify(value) : String(value))).join("\n").toLowerCase()

/** Several parts of a view, one of which is seen: {name: [title, part()]}. Where one is is in the address. */
export function tabs(view, parameters, parts) {
  const names = Object.keys(parts)
  const chosen = names.includes(parameters.tab) ? parameters.tab : names[0]
  const part = parts[chosen][1]()
  const bar = h(
    "nav", { class: "tabs", "aria-label": "Parts" },
    names.map((name) => h("a", { href: `#/${view}?${new URLSearchParams({ ...parameters.kept, tab: name })}`, "aria-current": name === chosen ? "page" : null }, parts[name][0])),
  )
  return { element: h("div", {}, names.length > 1 ? bar : "", part.element), refresh: part.refresh }
}
