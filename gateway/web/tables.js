// A table of rows (objects by column): filtered, sorted, and drawn again without losing where somebody is.

import { bytes, duration, h, number, shown, time } from "./dom.js"

/** How a column is shown that nobody says more of: by its name's unit. */
function byName(name, value) {
  if (name.endsWith("_at_ms") || name === "timestamp_ms") return time(value, name === "timestamp_ms")
  if (name.endsWith("_ms") && typeof value === "number") return duration(value / 1000)
  if (name.endsWith("_s") && typeof value === "number") return duration(value)
  if (name === "bytes" || name.endsWith("_bytes")) return bytes(value)
  return shown(value)
}

const titled = (name) => name.replace(/(_at)?_m?s$/, "").replaceAll("_", " ")

const nothing = (value) => value === undefined || value === null || value === "" || value === false || (typeof value === "object" && Object.keys(value).length === 0)

/** Numbers by size, all else by letters; what is not there comes last. */
function compare(one, other) {
  if (one === null || one === undefined) return other === null || other === undefined ? 0 : 1
  if (other === null || other === undefined) return -1
  if (typeof one === "number" && typeof other === "number") return one - other
  const [left, right] = [one, other].map((value) => (typeof value === "object" ? JSON.stringify(value) : String(value)))
  return left.localeCompare(right, "en", { numeric: true })
}

export class Table {
  /** `key(row)` names a row. `columns` are {name: {title, show(row), number, hidden, value(row)}}, in the order shown;
   * columns of the answer that are not in it follow as they are, those of `hidden` do not, nor those in which no row has
   * anything. `actions(row)` are buttons. */
  constructor({ key, columns = {}, hidden = [], actions = null, empty = "nothing here", label = "" }) {
    Object.assign(this, { key, columns, hidden: new Set(hidden), actions, empty })
    this.rows = []
    this.sort = null // [name, 1 or -1]
    this.drawn = new Map()
    this.head = h("tr")
    this.body = h("tbody")
    this.none = h("p", { class: "none", hidden: true }, empty)
    this.element = h(
      "div", { class: "table" }, h("table", { "aria-label": label }, h("thead", {}, this.head), this.body), this.none,
    )
  }

  /** Show these rows; `names` are the columns of the answer. */
  draw(rows, names = rows.length ? Object.keys(rows[0]) : []) {
    this.rows = rows
    const known = [...Object.keys(this.columns), ...names.filter((name) => !(name in this.columns))]
    this.names = known.filter((name) => !this.hidden.has(name) && !(this.columns[name]?.unless?.(rows) ?? (rows.length > 0 && rows.every((row) => nothing(row[name])) && !this.columns[name]?.show)))
    const shape = JSON.stringify([this.names, this.numeric()])
    if (shape !== this.shape) this.drawn.clear()
    this.shape = shape
    this.drawHead()
    this.drawBody()
  }

  numeric() {
    return this.names.map((name) => this.columns[name]?.number ?? (this.rows.some((row) => typeof row[name] === "number") && !/_at_ms$|^timestamp_ms$/.test(name)))
  }

  drawHead() {
    const numeric = this.numeric()
    const cells = this.names.map((name, index) => {
      const [by, way] = this.sort ?? [null, 0]
      const turned = by === name ? (way > 0 ? "ascending" : "descending") : "none"
      const turn = () => {
        this.sort = by === name ? (way > 0 ? [name, -1] : null) : [name, 1]
        this.draw(this.rows, this.names)
        this.head.children[index]?.firstChild.focus()
      }
      const label = this.columns[name]?.title ?? titled(name)
      return h("th", { scope: "col", "aria-sort": turned, class: numeric[index] ? "number" : "" }, h("button", { type: "button", onclick: turn }, label))
    })
    if (this.actions) cells.push(h("th", { scope: "col", class: "does", "aria-label": "actions" }))
    const focused = [...this.head.children].indexOf(document.activeElement?.closest?.("th"))
    this.head.replaceChildren(...cells)
    if (focused >= 0) this.head.children[focused]?.firstChild?.focus()
  }

  sorted() {
    if (this.sort === null) return this.rows
    const [name, way] = this.sort
    const value = this.columns[name]?.value ?? ((row) => row[name])
    return [...this.rows].sort((one, other) => way * compare(value(one), value(other)))
  }

  drawBody() {
    const held = document.activeElement?.closest?.("tr")
    const place = held && this.body.contains(held) ? [held.dataset.key, [...held.querySelectorAll("a, button")].indexOf(document.activeElement)] : null
    const drawn = new Map()
    const numeric = this.numeric()
    const lines = this.sorted().map((row) => {
      let key = String(this.key(row))
      while (drawn.has(key)) key += "'" // consumers of two channels may have one tag
      const told = JSON.stringify(row)
      const before = this.drawn.get(key)
      const line = before?.told === told ? before.line : this.line(row, key, numeric)
      drawn.set(key, { told, line })
      return line
    })
    this.drawn = drawn
    if (lines.length !== this.body.children.length || lines.some((line, index) => line !== this.body.children[index])) this.body.replaceChildren(...lines)
    this.none.hidden = lines.length > 0
    this.element.firstChild.hidden = lines.length === 0
    if (place) drawn.get(place[0])?.line.querySelectorAll("a, button")[place[1]]?.focus()
  }

  line(row, key, numeric) {
    const cells = this.names.map((name, index) => {
      const column = this.columns[name] ?? {}
      const cell = h("td", { "data-label": column.title ?? titled(name), class: column.class ?? "" }, column.show ? column.show(row) : byName(name, row[name]))
      if (numeric[index]) cell.classList.add("number")
      if (cell.textContent === "") cell.classList.add("empty")
      return cell
    })
    if (this.actions) cells.push(h("td", { class: "does" }, this.actions(row)))
    const made = h("tr", {}, cells)
    made.dataset.key = key
    return made
  }
}

/** Values by name, one under the other. */
export function facts(pairs) {
  const lines = pairs.filter((pair) => pair[1] !== null).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, typeof value === "number" ? number(value) : value)))
  return h("dl", { class: "facts" }, lines.filter((line) => line.lastChild.textContent !== ""))
}
