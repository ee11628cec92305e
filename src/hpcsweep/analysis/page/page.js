"use strict";
// Hands data and filters to the figures; filters, searches and sorts the table.
const read = (id) => JSON.parse(document.getElementById(id).textContent);
const data = read("data");
const options = { renderer: "svg", actions: { export: true, source: false, compiled: false, editor: false } };
const controls = [...document.querySelectorAll("#controls select")];
const views = [];

async function draw(id, spec) {
  const place = document.getElementById(id);
  try {
    spec.config.legend.columns = Math.max(1, Math.floor((place.clientWidth - 160) / 130));
    spec.params.filter((one) => one.name.startsWith("f_")).forEach((one) => { one.value = document.getElementById(one.name.replace("_", "-"))?.value ?? ""; });
    views.push((await vegaEmbed(place, { ...spec, datasets: { ...spec.datasets, ...data } }, options)).view);
    place.querySelector("summary")?.setAttribute("aria-label", "Save this figure");
    place.dataset.drawn = "yes";
  } catch (error) {
    place.textContent = String(error);
    console.error(error);
  }
}

const search = document.getElementById("search");
const table = document.querySelector("table.sortable");
const heads = [...table.tHead.rows[0].cells];
const rows = [...table.tBodies[0].rows];
const place = Object.fromEntries(heads.map((head, index) => [head.dataset.column, index]));

function filter() {
  const wanted = controls.filter((one) => one.value && one.dataset.axis in place);
  let shown = 0;
  for (const row of rows) {
    row.hidden = !wanted.every((one) => row.cells[place[one.dataset.axis]].textContent === one.value)
      || !row.textContent.toLowerCase().includes(search.value.toLowerCase());
    shown += !row.hidden;
  }
  document.getElementById("shown").textContent = `${shown} of ${rows.length} points.`;
  const gpu = document.getElementById("f-gpu")?.value;
  for (const figure of document.querySelectorAll("figure")) {
    figure.hidden = Boolean(gpu && figure.dataset.gpu && figure.dataset.gpu !== gpu);
  }
}

async function choose(control) {
  filter();
  if (control.dataset.axis !== "gpu") {
    await Promise.all(views.map((view) => view.signal(`f_${control.dataset.axis}`, control.value).runAsync()));
  }
  window.dispatchEvent(new Event("resize"));  // a figure that was hidden has a width now
}

function sort(head) {
  const index = heads.indexOf(head);
  const down = head.getAttribute("aria-sort") === "ascending";
  const key = (row) => {
    const cell = row.cells[index];
    return cell.classList.contains("number") ? Number(cell.dataset.value ?? cell.textContent) : cell.textContent;
  };
  const compare = (a, b) => typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
  rows.sort((a, b) => (down ? -1 : 1) * compare(key(a), key(b)));
  table.tBodies[0].append(...rows);
  heads.forEach((other) => other.removeAttribute("aria-sort"));
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
}

controls.forEach((one) => one.addEventListener("change", () => choose(one)));
search.addEventListener("input", filter);
heads.forEach((head) => head.firstElementChild.addEventListener("click", () => sort(head)));
window.addEventListener("beforeprint", () => document.querySelectorAll("details:not(.vega-embed details)").forEach((one) => { one.open = true; }));
filter();
(async () => {
  for (const [id, spec] of Object.entries(read("specs"))) {
    await new Promise((next) => setTimeout(next));  // so that the page can be used meanwhile
    await draw(id, spec);
  }
})();
