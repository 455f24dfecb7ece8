"use strict";
// Shows a run live: the status twice a second, and the event log as it is written. All text is set as text, never as HTML.

const POLL_MS = 500;
const KEPT_POINTS = 1200; // ten minutes
const KEPT_EVENTS = 2000;
const SHOWN_EVENTS = 200;
const SHOWN_ROWS = 20;
const SVG = "http://www.w3.org/2000/svg";
const SUSPICIOUS = /^(straggler|slow_|corrupt|sdc|quarantine|state_differs|two_histories|heal_sources_disagree|heal_source_rejected)/;
const HIDDEN = new Set(["id", "t_ns", "wall", "rank", "kind", "member", "member_id", "run_id"]);

const byId = (id) => document.getElementById(id);
const points = [];
let events = [];
let kinds = new Set();
let status = null;
let askedAt = 0;
let sites = new Map(); // name -> {tx, rx, at, txRate, rxRate}

function make(tag, text, classes) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (classes) element.className = classes;
  return element;
}

const number = (value, digits = 0) =>
  value === null || value === undefined || Number.isNaN(value)
    ? "" : value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
const ms = (ns) => (ns === undefined ? "" : number(ns / 1e6, ns < 1e8 ? 1 : 0));

function bytes(value) {
  if (value === undefined || value === null || Number.isNaN(value)) return "";
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) { value /= 1000; unit += 1; }
  return `${number(value, unit && value < 100 ? 1 : 0)} ${units[unit]}`;
}

function duration(seconds) {
  if (seconds < 90) return `${number(seconds, seconds < 10 ? 1 : 0)} s`;
  if (seconds < 5400) return `${number(seconds / 60)} min`;
  return `${number(seconds / 3600, 1)} h`;
}

const clock = (wall) => new Date(wall).toLocaleTimeString("en-GB", { hour12: false }) +
  "." + String(new Date(wall).getMilliseconds()).padStart(3, "0");

/** Fills a table: columns are [heading, class]; a cell is text or an element. */
function fill(id, columns, rows) {
  const table = byId(id);
  table.hidden = rows.length === 0;
  const head = make("tr");
  for (const [name, kind] of columns) head.append(make("th", name, kind));
  table.tHead.replaceChildren(head);
  table.tBodies[0].replaceChildren(...rows.map((row) => {
    const line = make("tr");
    row.forEach((cell, n) => {
      const field = make("td", cell instanceof Node ? undefined : cell, columns[n][1]);
      if (cell instanceof Node) field.append(cell);
      line.append(field);
    });
    return line;
  }));
}

function showStatus() {
  const { generation, members } = status;
  byId("title").textContent = status.run_id || status.run;
  document.title = `${status.step === null ? "" : `step ${number(status.step)} · `}${status.run} · farstep`;
  byId("subtitle").textContent = generation
    ? `generation ${generation.number}: ${generation.reason || "no reason given"}`
    : "no generation yet";
  const banner = byId("banner");
  const text = status.ended ? `The run has ended: ${status.ended}` : status.lost ? `Lost: ${status.lost}.`
    : status.waiting ? `Waiting: ${status.waiting}` : "";
  banner.textContent = text;
  banner.hidden = !text;
  banner.className = `banner ${status.ended ? "good" : status.lost ? "bad" : ""}`;
  const training = members.filter((member) => member.state === "training");
  const wanted = Math.max(status.config.groups ?? status.config.min_groups, generation ? generation.seats.length : 0);
  const slowest = worst(training, "step_max_ns");
  const facts = [
    ["Step", number(status.step)],
    ["Training", `${training.length} of ${wanted}`],
    ["Spares", String(members.filter((member) => member.state === "spare").length)],
    ["Step P50", withUnit(worst(training, "step_p50_ns"))],
    ["Step P99", withUnit(worst(training, "step_p99_ns"))],
    ["Step P100", withUnit(slowest)],
    ["Loss", number(training.find((member) => "loss" in member.figures)?.figures.loss, 4)],
    ["Sent", rate("tx")],
  ];
  byId("facts").replaceChildren(...facts.map(([name, value]) => {
    const card = make("div");
    card.append(make("dt", name), make("dd", value || "–"));
    return card;
  }));
  showMembers();
  showSites();
  showPlanes();
  byId("footer").textContent =
    `coordinator ${status.coordinator}, up for ${duration(status.uptime_s)}; it may be killed and started anywhere, the run does not notice`;
}

const withUnit = (ns) => (ns === undefined ? "" : `${ms(ns)} ms`);

function worst(members, key) {
  const values = members.map((member) => member.figures[key]).filter((value) => value !== undefined);
  return values.length ? Math.max(...values) : undefined;
}

function rate(way) {
  let sum = 0;
  for (const site of sites.values()) sum += site[`${way}Rate`] || 0;
  return sum ? `${bytes(sum)}/s` : "";
}

function showMembers() {
  const columns = [["Seat", "number"], ["Group"], ["Site"], ["State"], ["Step", "number"], ["P50 ms", "number"], ["P99 ms", "number"],
    ["P100 ms", "number"], ["Waits ms", "number"], ["Sent", "number"], ["Heard s ago", "number"], ["Where"], ["Why", "text"]];
  fill("members", columns, status.members.map((member) => {
    const { figures } = member;
    return [
      member.seat === null ? "" : String(member.seat), member.name, member.site, make("span", member.state, `state ${member.state}`),
      number(member.step), ms(figures.step_p50_ns ?? figures.step_time_ns), ms(figures.step_p99_ns), ms(figures.step_max_ns),
      ms(figures.wait_ns), bytes(figures.tx_bytes), member.silent_s === null ? "–" : number(member.silent_s, 1),
      `${member.host}:${member.pid}`, member.cause,
    ];
  }));
  byId("no-members").hidden = status.members.length > 0;
}

function showSites() {
  const now = performance.now() / 1000;
  const sums = new Map();
  for (const member of status.members) {
    if (member.state === "observer") continue; // agents and watchers are no replica groups
    const sum = sums.get(member.site) || { tx: 0, rx: 0, groups: 0, resent: 0 };
    sum.tx += member.figures.tx_bytes || 0;
    sum.rx += member.figures.rx_bytes || 0;
    sum.resent += member.figures.retransmitted_packets || 0;
    sum.groups += 1;
    sums.set(member.site, sum);
  }
  for (const [name, sum] of sums) {
    const before = sites.get(name);
    const passed = before ? now - before.at : 0;
    if (!before || sum.tx < before.tx || passed > 10) sites.set(name, { ...sum, at: now });
    else if (passed >= 2) {
      sites.set(name, { ...sum, at: now, txRate: (sum.tx - before.tx) / passed, rxRate: Math.max(0, sum.rx - before.rx) / passed });
    } else Object.assign(before, { groups: sum.groups, resent: sum.resent });
  }
  for (const name of sites.keys()) if (!sums.has(name)) sites.delete(name);
  const columns = [["Site"], ["Groups", "number"], ["Sent", "number"], ["Received", "number"], ["Sent /s", "number"], ["Received /s", "number"], ["Resent", "number"]];
  fill("sites", columns, [...sites].sort().map(([name, site]) => [
    name || "–", String(site.groups), bytes(site.tx), bytes(site.rx), bytes(site.txRate), bytes(site.rxRate), number(site.resent),
  ]));
  byId("no-sites").hidden = sites.size > 0;
}

function showPlanes() {
  const planes = new Map();
  for (const member of status.members) {
    for (const [key, value] of Object.entries(member.figures)) {
      const found = /^plane\.(\d+)\.(tx_bytes|good|bad)$/.exec(key);
      if (!found) continue;
      const plane = planes.get(Number(found[1])) || { tx_bytes: 0, good: 0, bad: 0 };
      plane[found[2]] += value;
      planes.set(Number(found[1]), plane);
    }
  }
  const columns = [["Plane", "number"], ["Sent", "number"], ["Ways in use", "number"], ["Ways avoided", "number"]];
  const rows = [...planes].sort((a, b) => a[0] - b[0]).map(([plane, sum]) => [
    String(plane), bytes(sum.tx_bytes), number(sum.good), number(sum.bad),
  ]);
  fill("planes", columns, rows);
  byId("no-planes").hidden = rows.length > 0;
}

function notePoint() {
  const training = status.members.filter((member) => member.state === "training");
  points.push({
    at: Date.now(), p50: worst(training, "step_p50_ns") ?? worst(training, "step_time_ns"),
    p99: worst(training, "step_p99_ns"), p100: worst(training, "step_max_ns"),
  });
  if (points.length > KEPT_POINTS) points.shift();
}

function showSteps() {
  const svg = byId("steps");
  const { width, height } = svg.getBoundingClientRect();
  if (!width) return;
  const left = 56, right = 8, top = 18, bottom = 22;
  const begin = points.length ? points[0].at : Date.now();
  const end = Math.max(Date.now(), begin + 30000);
  const values = points.flatMap((point) => [point.p50, point.p99, point.p100]).filter((value) => value !== undefined);
  const peak = Math.max(1e6, ...values) * 1.1;
  const x = (at) => left + ((at - begin) / (end - begin)) * (width - left - right);
  const y = (ns) => height - bottom - (ns / peak) * (height - top - bottom);
  const parts = [];
  const draw = (tag, attributes, text) => {
    const element = document.createElementNS(SVG, tag);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== undefined) element.textContent = text;
    parts.push(element);
    return element;
  };
  for (const share of [0, 0.25, 0.5, 0.75, 1]) {
    const at = y(share * peak);
    draw("line", { x1: left, x2: width - right, y1: at, y2: at, stroke: "var(--grid)" });
    draw("text", { x: left - 6, y: at + 4, "text-anchor": "end" }, number((share * peak) / 1e6, peak < 2e7 ? 1 : 0));
  }
  draw("text", { x: left - 6, y: 10, "text-anchor": "end" }, "ms");
  const ticks = width < 600 ? 2 : 4;
  for (let n = 0; n <= ticks; n += 1) {
    const at = begin + ((end - begin) * n) / ticks;
    const anchor = n === 0 ? "start" : n === ticks ? "end" : "middle";
    draw("text", { x: x(at), y: height - 4, "text-anchor": anchor }, new Date(at).toLocaleTimeString("en-GB"));
  }
  for (const line of events) {
    const at = Date.parse(line.wall);
    if (line.kind !== "generation" || at < begin) continue;
    const color = line.urgent ? "var(--bad)" : "var(--plan)";
    draw("line", { x1: x(at), x2: x(at), y1: top, y2: height - bottom, stroke: color, "stroke-dasharray": "2 3" });
    const mark = draw("text", { x: x(at), y: top - 4, "text-anchor": "middle", style: `fill: ${color}` }, "▲");
    const title = document.createElementNS(SVG, "title");
    title.textContent = `generation ${line.number}: ${line.reason}`;
    mark.append(title);
  }
  for (const [key, color] of [["p100", "var(--p100)"], ["p99", "var(--p99)"], ["p50", "var(--p50)"]]) {
    const path = points.filter((point) => point[key] !== undefined).map((point, n) => `${n ? "L" : "M"}${x(point.at).toFixed(1)} ${y(point[key]).toFixed(1)}`);
    if (path.length) draw("path", { d: path.join(""), fill: "none", stroke: color, "stroke-width": 1.8 });
  }
  ["P50", "P99", "P100"].forEach((name, n) =>
    draw("text", { x: width - right - (2 - n) * 46, y: 10, "text-anchor": "end", style: `fill: var(--${name.toLowerCase()})` }, name));
  svg.replaceChildren(...parts);
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
}

const sentence = (line) => Object.entries(line).filter(([key, value]) => !HIDDEN.has(key) && value !== "" && value !== null)
  .map(([key, value]) => `${key} ${Array.isArray(value) ? value.join(", ") || "none" : typeof value === "object" ? JSON.stringify(value) : value}`).join("; ");

/** Every loss, failed step or report, with the generation that answered it and how long that took. */
function showFailures() {
  const rows = [];
  let open = [];
  let numbers = new Set(); // generations of the run
  let run = null;
  for (const line of events) {
    if (line.kind === "generation" && line.run_id !== run) {
      run = line.run_id;
      numbers = new Set();
    }
    if (line.kind === "generation") numbers.add(line.number);
    if (line.kind === "run_dropped") {
      rows.push([clock(line.wall), `${line.run_id} ${line.reason}`, "it has to start from its newest checkpoint", ""]);
      open = [];
    } else if (numbers.has(line.generation + 1)) continue; // a member tells late of what was answered already
    else if (["member_lost", "failure_report", "step_failed", "evict"].includes(line.kind)) open.push(line);
    else if (line.kind === "generation") {
      // A planned one answers losses, but not reports that came too late to be told apart.
      if (!line.urgent) open = open.filter((cause) => cause.kind === "member_lost" || cause.kind === "evict");
      if (!open.length) continue;
      const causes = [...new Set(open.map((cause) => `${cause.member || "?"}: ${cause.cause || cause.reason || cause.kind}`))];
      rows.push([clock(open[0].wall), causes.join("; "), `generation ${line.number}: ${(line.changes || []).join("; ")}`, number(line.took_ms, 1)]);
      open = [];
    } else if (line.kind === "checkpoint_failed" || line.kind === "checkpoint_broken") {
      rows.push([clock(line.wall), `${line.kind}: ${line.cause || ""}`, "training goes on", ""]);
    }
  }
  for (const line of open) rows.push([clock(line.wall), `${line.member || "?"}: ${line.cause || line.reason || line.kind}`, "nothing yet", ""]);
  fill("failures", [["When"], ["What", "text"], ["What was done", "text"], ["Took ms", "number"]], rows.reverse().slice(0, SHOWN_ROWS));
  byId("no-failures").hidden = rows.length > 0;
}

function showEvents() {
  showFailures();
  const suspects = events.filter((line) => SUSPICIOUS.test(line.kind)).reverse().slice(0, SHOWN_ROWS);
  fill("suspects", [["When"], ["Group"], ["What"], ["Details", "text"]], suspects.map((line) => [clock(line.wall), line.member || "–", line.kind, sentence(line)]));
  byId("no-suspects").hidden = suspects.length > 0;
  const generations = events.filter((line) => line.kind === "generation").reverse().slice(0, SHOWN_ROWS);
  fill("generations", [["When"], ["Number", "number"], ["Kind"], ["What changed", "text"], ["Seats", "text"], ["Spares"], ["Took ms", "number"]],
    generations.map((line) => [
      clock(line.wall), String(line.number), make("span", line.urgent ? "urgent" : "planned", line.urgent ? "urgent" : "planned"),
      (line.changes || []).join("; ") || line.reason, (line.members || []).join(", "), (line.spares || []).join(", ") || "none", number(line.took_ms, 1),
    ]));
  const wanted = byId("filter").value;
  const shown = events.filter((line) => !wanted || line.kind === wanted).slice(-SHOWN_EVENTS).reverse();
  fill("events", [["When"], ["Group"], ["Kind"], ["Details", "text"]], shown.map((line) => [clock(line.wall), line.member || "–", line.kind, sentence(line)]));
  const seen = new Set(events.map((line) => line.kind));
  if (seen.size !== kinds.size) {
    kinds = seen;
    const filter = byId("filter");
    const options = ["", ...[...kinds].sort()].map((kind) => {
      const option = make("option", kind || "all events");
      option.value = kind;
      option.selected = kind === wanted;
      return option;
    });
    filter.replaceChildren(...options);
  }
}

function lose(text) {
  const banner = byId("banner");
  banner.hidden = false;
  banner.className = "banner bad";
  banner.textContent = text;
}

async function poll() {
  try {
    const answer = await fetch("/v1/status", { cache: "no-store", signal: AbortSignal.timeout(5000) });
    if (!answer.ok) throw new Error(`HTTP ${answer.status}`);
    const fresh = await answer.json();
    status = fresh;
    askedAt = Date.now();
    notePoint();
    showStatus();
  } catch (error) {
    const since = askedAt ? ` for ${duration((Date.now() - askedAt) / 1000)}` : "";
    lose(`The coordinator has not answered${since}. The run goes on without it; this page goes on when it is back.`);
  }
  showSteps();
  setTimeout(poll, POLL_MS);
}

let stream = null;
let isDrawing = false;
const newestOf = new Map(); // coordinator -> id of its newest event on this page; each counts from 1

/** Follows the event log. What an earlier coordinator has told stays on the page. */
function follow() {
  if (stream) stream.close();
  stream = new EventSource("/v1/events/stream");
  stream.addEventListener("line", (message) => {
    const line = JSON.parse(message.data);
    const coordinator = message.lastEventId.split("/")[0];
    if (line.id <= (newestOf.get(coordinator) || 0)) return;
    newestOf.set(coordinator, line.id);
    events.push(line);
    if (events.length > KEPT_EVENTS) events.shift();
    if (!isDrawing) {
      isDrawing = true;
      requestAnimationFrame(() => { isDrawing = false; showEvents(); });
    }
  });
  stream.onerror = () => { if (stream.readyState === EventSource.CLOSED) setTimeout(follow, 1000); };
}

byId("filter").addEventListener("change", showEvents);
window.addEventListener("resize", showSteps);
follow();
poll();
