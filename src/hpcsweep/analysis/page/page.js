// The page's state: controls, what is drawn from it, the table, and the address that keeps it.
const read = (id) => JSON.parse(document.getElementById(id).textContent);
const data = read("data"), { figures, styles, palette } = read("specs");
const controls = [...document.querySelectorAll("#controls select, #controls input")];
const legend = [...document.querySelectorAll("#legend button")];
const search = document.getElementById("search"), tip = document.getElementById("tip");
const table = document.querySelector("table.sortable");
const heads = [...table.tHead.rows[0].cells], MOST = 500; // rows that a browser shows at once
const TIMES = ["median_ms", "ci95_lo_ms", "ci95_hi_ms"]; // have as many digits as the interval knows
const place = Object.fromEntries(heads.map((head, index) => [head.dataset.column, index]));
const lines = read("rows").map((cells) => {
  const doubtful = cells.pop(), half = (cells[place.ci95_hi_ms] - cells[place.ci95_lo_ms]) / 2 || 0;
  const texts = cells.map((cell, index) => Number.isInteger(cell) ? String(cell) : told(cell, TIMES.includes(heads[index].dataset.column) ? half : 0));
  return { doubtful, cells, texts, words: texts.join("\n").toLowerCase() };
});
const value = (one) => one.type === "checkbox" ? one.checked : one.value;
const hidden = () => legend.filter((one) => one.getAttribute("aria-pressed") === "false").map((one) => one.value);
let state = {};

function chosen(spec) {
  const away = new Set(hidden());
  return data[spec.data].filter((row) => (!spec.gpu || row.gpu === spec.gpu) && !(spec.kind !== "map" && away.has(String(row[spec.colour])))
    && !(state.reliable && row.doubtful)
    && [...spec.filters, spec.kind === "map" ? "" : spec.colour].every((axis) => !state[axis] || String(row[axis]) === state[axis])
    && !(spec.at && spec.x !== spec.colour && String(row[spec.x]) !== state.at));
}

function draw(id) {
  const spec = figures[id], chart = document.getElementById(id), figure = chart.closest("figure");
  figure.hidden = Boolean(state.gpu && spec.gpu && state.gpu !== spec.gpu);
  if (figure.hidden) return;
  const drawn = KINDS[spec.kind](chart, chosen(spec), spec, { ...state, styles, palette });
  const [svg, parts] = Array.isArray(drawn) ? drawn : [drawn, []];
  chart.replaceChildren(svg ?? "Nothing to draw with these filters.");
  svg?.setAttribute("aria-label", spec.about);
  const keys = figure.querySelector(".parts");
  keys.replaceChildren(...parts.map(([name, colour]) => {
    const key = document.createElement("span"), swatch = document.createElement("i");
    swatch.style.background = colour;
    key.append(swatch, name);
    return key;
  }));
  chart.dataset.drawn = "yes";
}

function filter() {
  const wanted = controls.filter((one) => one.dataset.axis in place && one.value);
  const away = new Set(hidden()), colour = place[document.getElementById("legend").dataset.axis], flags = place.flags;
  const shown = lines.filter((row) => wanted.every((one) => row.texts[place[one.dataset.axis]] === one.value)
    && !away.has(row.texts[colour]) && !(state.reliable && row.doubtful) && row.words.includes(search.value.toLowerCase()));
  table.tBodies[0].replaceChildren(...shown.slice(0, MOST).map((row) => {
    const line = document.createElement("tr");
    row.texts.forEach((text, index) => Object.assign(line.insertCell(), { textContent: text, title: text, className: typeof row.cells[index] === "number" ? "number" : "" }));
    return line;
  }));
  document.getElementById("shown").textContent = `${shown.length} of ${lines.length} points.${shown.length > MOST ? ` The first ${MOST} are here.` : ""}`;
  return shown;
}

function update() {
  state = Object.fromEntries(controls.map((one) => [one.dataset.axis, value(one)]));
  filter();
  Object.keys(figures).forEach(draw);
}

function keep() {
  const changed = controls.filter((one) => value(one) !== initial[one.dataset.axis]).map((one) => [one.dataset.axis, value(one)]);
  const words = new URLSearchParams([...changed, ...hidden().map((name) => ["hide", name]), ...(search.value ? [["search", search.value]] : [])]);
  history.replaceState(null, "", words.size ? `#?${words}` : "#");
}

function restore() {
  if (!location.hash.startsWith("#?")) return;
  const words = new URLSearchParams(location.hash.slice(2));
  for (const one of controls) {
    const wanted = words.get(one.dataset.axis);
    if (one.type === "checkbox") one.checked = wanted === null ? initial[one.dataset.axis] : wanted === "true";
    else if ([...one.options].some((option) => option.value === wanted)) one.value = wanted;
    else one.value = initial[one.dataset.axis];
  }
  legend.forEach((one) => one.setAttribute("aria-pressed", String(!words.getAll("hide").includes(one.value))));
  search.value = words.get("search") ?? "";
}

function sort(head) {
  const index = heads.indexOf(head), down = head.getAttribute("aria-sort") === "ascending";
  const compare = (a, b) => typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
  const of = (row) => row.cells[index];
  lines.sort((a, b) => (of(a) === null) - (of(b) === null) || (down ? -1 : 1) * compare(of(a), of(b)));
  filter();
  heads.forEach((other) => other.removeAttribute("aria-sort"));
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
}

function tell(row, x, y) {
  tip.hidden = !row;
  if (!row) return;
  const half = typeof row.ci95_hi_ms === "number" ? (row.ci95_hi_ms - row.ci95_lo_ms) / 2 : 0;
  tip.replaceChildren(...Object.entries(row).filter(([name, cell]) => cell !== null && cell !== "" && name !== "doubtful").map(([name, cell]) => {
    const line = document.createElement("div");
    line.append(Object.assign(document.createElement("b"), { textContent: labels[name] ?? name.replaceAll("_", " ") }), ` ${told(cell, name === "median_ms" ? half : 0)}`);
    return line;
  }));
  const [width, height] = [tip.offsetWidth, tip.offsetHeight];
  tip.style.left = `${Math.max(4, Math.min(x + 12, innerWidth - width - 8))}px`;
  tip.style.top = `${y + height + 20 > innerHeight ? Math.max(4, y - height - 12) : y + 14}px`;
}

// The arrow keys go from mark to mark of the figure that has the focus.
function step(event) {
  const svg = event.target.closest(".chart svg"), by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  if (!svg || !by) return;
  event.preventDefault();
  const marks = [...svg.querySelectorAll(".mark")], at = marks.findIndex((one) => one.classList.contains("at"));
  const next = marks[at < 0 ? 0 : (at + by + marks.length) % marks.length];
  marks[at]?.classList.remove("at");
  next.classList.add("at");
  const { right, bottom } = next.getBoundingClientRect();
  tell(next.row, right, bottom);
}

function offer(name, content, type) {
  Object.assign(document.createElement("a"), { download: name, href: URL.createObjectURL(new Blob([content], { type })) }).click();
}

function csv() {
  const quoted = (cell) => /[",\n]/.test(cell) ? `"${String(cell).replaceAll('"', '""')}"` : cell;
  const rows = [heads.map((head) => head.dataset.column), ...filter().map((row) => row.cells.map((cell) => cell ?? ""))];
  offer("points.csv", rows.map((row) => row.map(quoted).join(",")).join("\n") + "\n", "text/csv");
}

function save(id) {
  const svg = document.getElementById(id).querySelector("svg").cloneNode(true);
  svg.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  svg.setAttribute("style", "color:#000;background:#fff;--card:#fff;font-family:sans-serif");
  offer(`${id}.svg`, svg.outerHTML, "image/svg+xml");
}

const labels = read("labels");
const initial = Object.fromEntries(controls.map((one) => [one.dataset.axis, value(one)]));
restore();
update();
controls.forEach((one) => one.addEventListener("change", () => { update(); keep(); }));
legend.forEach((one) => one.addEventListener("click", () => {
  one.setAttribute("aria-pressed", String(one.getAttribute("aria-pressed") === "false"));
  update();
  keep();
}));
search.addEventListener("input", () => { filter(); keep(); });
heads.forEach((head) => head.firstElementChild.addEventListener("click", () => sort(head)));
document.querySelectorAll("button.save").forEach((one) => one.addEventListener("click", () => save(one.value)));
document.getElementById("csv").addEventListener("click", csv);
document.querySelectorAll("button.copy").forEach((one) => one.addEventListener("click", () => navigator.clipboard.writeText(one.nextElementSibling.textContent)));
document.addEventListener("pointerover", (event) => tell(event.target.row, event.clientX, event.clientY));
document.addEventListener("keydown", step);
document.addEventListener("focusout", () => { tip.hidden = true; });
window.addEventListener("hashchange", () => { restore(); update(); });
let waiting = 0;
window.addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(update, 100); });
