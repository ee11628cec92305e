"use strict";
// Draws the figures as SVG. A figure says its kind, its data and its columns; colours and shapes are
// those that every picture of hpcsweep has. Text and axes have the page's own colour.
const SHAPES = {
  o: "M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0Z", s: "M-4,-4H4V4H-4Z", "^": "M0,-5L5,4H-5Z", D: "M0,-5.5L5.5,0L0,5.5L-5.5,0Z",
  v: "M0,5L5,-4H-5Z", P: "M-2,-5H2V-2H5V2H2V5H-2V2H-5V-2H-2Z", X: "M-5,-3L-3,-5L0,-2L3,-5L5,-3L2,0L5,3L3,5L0,2L-3,5L-5,3L-2,0Z",
  "<": "M-5,0L4,-5V5Z", ">": "M5,0L-4,-5V5Z", p: "M0,-5L5,-1.5L3,4.5H-3L-5,-1.5Z", h: "M0,-5L4.5,-2.5V2.5L0,5L-4.5,2.5V-2.5Z",
  "*": "M0,-6L1.6,-2L6,-2L2.4,.8L3.8,5L0,2.4L-3.8,5L-2.4,.8L-6,-2L-1.6,-2Z",
};
const TEXT = 6.6; // pixels of a letter

function el(name, attributes = {}, ...inner) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...inner);
  return made;
}

// A number with as many digits as its interval knows; four where there is none.
function told(value, half = 0) {
  if (typeof value !== "number") return String(value ?? "");
  if (value === 0) return "0";
  const sure = half > 0 ? Math.ceil(Math.log10(Math.abs(value) / half)) + 2 : 4;
  const short = Number(value.toPrecision(Math.min(9, Math.max(2, sure))));
  return Math.abs(short) >= 1e7 || Math.abs(short) < 1e-4 ? short.toExponential() : String(short);
}

function compact(value) {
  const [unit, letter] = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e5, "k"], [1, ""]].find(([size]) => Math.abs(value) >= size) ?? [1, ""];
  return Number((value / (letter === "k" ? 1e3 : unit)).toPrecision(4)) + letter;
}

function ticksOf(low, high, most) {
  const raw = (high - low) / most, size = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find((one) => one * size >= raw) * size;
  const found = [];
  for (let at = Math.ceil(low / step); at * step <= high * (1 + 1e-9); at++) found.push(Number((at * step).toPrecision(12)));
  return found;
}

function logTicks(low, high) {
  const every = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) every.push(...[1, 2, 5].map((one) => Number((one * 10 ** power).toPrecision(3))));
  const inside = every.filter((one) => one >= low && one <= high);
  return inside.length > 7 ? inside.filter((one) => String(one.toExponential()).startsWith("1")) : inside;
}

// A scale maps a value to a pixel; `ticks` are the values with a label.
function quantity(values, { log = false, zero = false, at = null, pad = 0 } = {}) {
  let [low, high] = values.reduce(([a, b], value) => [Math.min(a, value), Math.max(b, value)], [Infinity, -Infinity]);
  log = log && low > 0;
  if (log) { low /= 1.15; high *= 1.15; } else if (zero) { low = Math.min(0, low); high = high * 1.05 || 1; }
  if (low === high) { low -= Math.abs(low) / 2 || 1; high += Math.abs(high) / 2 || 1; }
  if (pad && !log) { const room = (high - low) * pad; low -= room; high += room; }
  const put = log ? Math.log : (one) => one;
  const scale = (value, from, to) => from + (put(value) - put(low)) / (put(high) - put(low)) * (to - from);
  return { scale, ticks: at && at.length <= 12 ? at : log ? logTicks(low, high) : ticksOf(low, high, 6), low, high, label: compact };
}

function names(values) {
  const place = new Map(values.map((value, index) => [String(value), index]));
  const scale = (value, from, to) => from + (place.get(String(value)) + 0.5) / values.length * (to - from);
  return { scale, ticks: values, label: String, step: (from, to) => Math.abs(to - from) / values.length };
}

// Axes with their grid; returns where things are.
function framed(place, x, y, { height, xTitle, yTitle = "", left = 0 }) {
  const width = Math.max(280, place.clientWidth), longest = Math.max(...y.ticks.map((one) => y.label(one).length), 1);
  const box = { l: Math.min(left || longest * TEXT + (yTitle ? 34 : 14), width * 0.45), r: width - 14, t: 10, b: height - 44 };
  const svg = el("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", tabindex: 0, "font-size": 12, fill: "currentColor" });
  const px = (value) => x.scale(value, box.l, box.r), py = (value) => y.scale(value, box.b, box.t);
  const letters = Math.floor((box.l - 8) / TEXT);
  for (const one of y.ticks) {
    const name = y.label(one), short = name.length > letters ? `${name.slice(0, Math.max(1, letters - 1))}\u2026` : name;
    svg.append(el("line", { x1: box.l, x2: box.r, y1: py(one), y2: py(one), stroke: "currentColor", "stroke-opacity": 0.15 }));
    svg.append(el("text", { x: box.l - 6, y: py(one) + 4, "text-anchor": "end" }, short, ...(short === name ? [] : [el("title", {}, name)])));
  }
  let end = -Infinity;
  for (const one of x.ticks) {
    const label = x.label(one), half = label.length * TEXT / 2;
    svg.append(el("line", { x1: px(one), x2: px(one), y1: box.t, y2: box.b + 4, stroke: "currentColor", "stroke-opacity": 0.15 }));
    if (px(one) - half < end || px(one) + half > width) continue;
    end = px(one) + half + 6;
    svg.append(el("text", { x: px(one), y: box.b + 18, "text-anchor": "middle" }, label));
  }
  svg.append(el("text", { x: (box.l + box.r) / 2, y: height - 6, "text-anchor": "middle" }, xTitle));
  if (yTitle) svg.append(el("text", { transform: `translate(12,${(box.t + box.b) / 2}) rotate(-90)`, "text-anchor": "middle" }, yTitle));
  return { svg, px, py, box };
}

function mark(row, x, y, [colour, shape], { hollow = false } = {}) {
  const made = el("path", { d: SHAPES[shape], transform: `translate(${x},${y})`, class: "mark", stroke: colour, fill: hollow ? "var(--card)" : colour, "stroke-width": 1.4 });
  made.row = row;
  return made;
}

function path(points, colour, more = {}) {
  return el("path", { d: `M${points.map((one) => one.join(",")).join("L")}`, stroke: colour, fill: "none", "stroke-width": 1.5, ...more });
}

function grouped(rows, key) {
  const found = new Map();
  for (const row of rows) found.set(key(row), [...(found.get(key(row)) ?? []), row]);
  return found;
}

const styled = (row, spec, page) => page.styles[row[spec.colour] ?? "unset"];

const mean = (rows, name) => rows.reduce((sum, row) => sum + row[name], 0) / rows.length;

// How each kind of figure is drawn: from rows, its specification and the state of the page.
const KINDS = {
  lines(place, rows, spec, page) {
    const y = page.y in spec.ys ? page.y : Object.keys(spec.ys)[0], { label, low, high } = spec.ys[y];
    rows = rows.filter((row) => typeof row[y] === "number");
    if (!rows.length) return null;
    const sure = (row) => !row.doubtful && typeof row[low] === "number";
    const ends = rows.filter(sure).flatMap((row) => [row[low], row[high]]);
    const ys = [...rows.map((row) => row[y]), ...ends, ...(y === "speedup" ? [1] : [])];
    const xs = rows.map((row) => row[spec.x]), numeric = xs.every((one) => typeof one === "number");
    const x = numeric ? quantity(xs, { log: page.logx, at: [...new Set(xs)].sort((a, b) => a - b), pad: 0.03 }) : names(spec.values);
    const frame = framed(place, x, quantity(ys, { log: page.logy, zero: true }), { height: 280, xTitle: spec.xTitle, yTitle: label });
    const { svg, px, py, box } = frame;
    if (y === "speedup") svg.append(path([[box.l, py(1)], [box.r, py(1)]], "currentColor", { "stroke-dasharray": "4 4" }));
    for (const line of grouped(rows, (row) => [spec.colour, ...spec.filters].map((name) => row[name]).join("\u0000")).values()) {
      const style = styled(line[0], spec, page);
      line.sort((a, b) => a[spec.x] - b[spec.x]);
      if (numeric && spec.x !== spec.colour) svg.append(path(line.map((row) => [px(row[spec.x]), py(row[y])]), style[0]));
      for (const row of line) {
        const at = px(row[spec.x]);
        if (typeof row[low] === "number" && py(row[low]) <= box.b + 1 && py(row[high]) >= 0) svg.append(path([[at, py(row[low])], [at, py(row[high])]], style[0], { "stroke-width": 2.5 }));
        svg.append(mark(row, at, py(row[y]), style, { hollow: row.doubtful }));
      }
    }
    return svg;
  },
  bars(place, rows, spec, page) {
    const parts = [...new Set(rows.map((row) => row[spec.part]))], lanes = spec.values.filter((name) => rows.some((row) => row[spec.colour] === name));
    const cells = lanes.map((name) => parts.map((part) => rows.filter((row) => row[spec.colour] === name && row[spec.part] === part)));
    const widths = cells.map((lane) => lane.map((some) => some.length ? mean(some, "ms") : 0));
    if (!lanes.length) return null;
    const x = quantity(widths.map((lane) => lane.reduce((a, b) => a + b, 0)), { zero: true });
    const { svg, px, py } = framed(place, x, names([...lanes].reverse()), { height: 60 + 34 * lanes.length, xTitle: "mean ms" });
    lanes.forEach((name, at) => {
      let from = 0;
      parts.forEach((part, index) => {
        const to = from + widths[at][index];
        const bar = el("rect", { x: px(from), y: py(name) - 11, width: Math.max(0, px(to) - px(from)), height: 22, class: "mark", fill: page.palette[index % page.palette.length] });
        bar.row = { [spec.colour]: name, [spec.part]: part, ms: widths[at][index] };
        svg.append(bar);
        from = to;
      });
    });
    return [svg, parts.map((part, index) => [part, page.palette[index % page.palette.length]])];
  },
  dots(place, rows, spec, page) {
    const layers = [...grouped(rows, (row) => row[spec.row])].sort((a, b) => Math.max(...b[1].map((row) => row.ms)) - Math.max(...a[1].map((row) => row.ms)));
    if (!layers.length) return null;
    const { svg, px, py } = framed(place, quantity(rows.map((row) => row.ms), { zero: true }), names(layers.map(([name]) => name).reverse()), { height: 60 + 19 * layers.length, xTitle: "mean ms" });
    for (const [name, of] of layers) for (const same of grouped(of, (row) => row[spec.colour]).values()) svg.append(mark({ ...same[0], ms: mean(same, "ms") }, px(mean(same, "ms")), py(name), styled(same[0], spec, page)));
    return svg;
  },
  map(place, rows, spec, page) {
    const layers = [...new Set(rows.map((row) => row.layer))], xs = [...new Set(rows.map((row) => row[spec.x]))].sort((a, b) => a - b);
    if (!layers.length) return null;
    const x = names(xs), y = names([...layers].reverse());
    const { svg, px, py, box } = framed(place, x, y, { height: 60 + 17 * layers.length, xTitle: spec.xTitle });
    const [width, height] = [x.step(box.l, box.r) - 1, y.step(box.b, box.t) - 1];
    for (const row of rows) {
      const cell = el("rect", { x: px(row[spec.x]) - width / 2, y: py(row.layer) - height / 2, width, height, class: "mark", fill: page.styles[row.algorithm]?.[0] ?? "currentColor" });
      cell.row = row;
      svg.append(cell);
    }
    return svg;
  },
  roofline(place, rows, spec, page) {
    if (!rows.length) return null;
    const ends = spec.roofs.flatMap((roof) => roof.points);
    const x = quantity([...rows.map((row) => row.flop_per_byte), ...ends.map((one) => one[0])], { log: true });
    const y = quantity([...rows.map((row) => row.tflops), ...ends.map((one) => one[1])], { log: true });
    const { svg, px, py, box } = framed(place, x, y, { height: 300, xTitle: "FLOP/byte", yTitle: "TFLOP/s" });
    for (const { name, points } of spec.roofs) {
      svg.append(path(points.map(([a, b]) => [px(a), py(b)]), "currentColor"));
      svg.append(el("text", { x: box.r - 4, y: py(points.at(-1)[1]) + 14, "text-anchor": "end", "font-size": 11 }, name));
    }
    for (const row of rows) svg.append(mark(row, px(row.flop_per_byte), py(row.tflops), styled(row, spec, page)));
    return svg;
  },
};
