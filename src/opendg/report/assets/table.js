// The leaderboard: a table for each protocol, so that two protocols never share a ranking.

const metric = (name) => (run) => run.scores[state.score]?.[name] ?? null;
const ruleH = (key) => (run) => run.scores[state.score]?.rules[key]?.h ?? null;

const NUMBERS = [
  { key: "acc", name: "Acc", value: (run) => run.acc, hint: "known images of the right class, nothing rejected" },
  { key: "oscr", name: "OSCR", value: metric("oscr"), hint: "area under the OSCR curve" },
  { key: "auroc", name: "AUROC", value: metric("auroc"), hint: "a known image scores above an unknown one" },
  {
    key: "fpr95",
    name: "FPR95",
    value: metric("fpr95"),
    low: true,
    hint: "unknown accepted when 95 % of the known are; less is better",
  },
  ...data.rules.map((rule) => ({
    key: rule.key,
    name: rule.name.replace(/^H/, ""),
    rule: true,
    value: ruleH(rule.key),
    hint: `${rule.name}: ${rule.idea}; saw: ${rule.saw}`,
  })),
  {
    key: "acc_k",
    name: "acc_k",
    live: true,
    value: (run) => measure(run).accK,
    hint: "known images accepted and right",
  },
  { key: "acc_u", name: "acc_u", live: true, value: (run) => measure(run).accU, hint: "unknown images rejected" },
  { key: "h", name: "H", live: true, value: (run) => measure(run).h, hint: "harmonic mean of acc_k and acc_u" },
];

function texts() {
  const runs = state.rows === "runs";
  return [
    { key: "method", name: "Method", text: (row) => labelOf(row.runs[0]) },
    runs
      ? { key: "target", name: "Target", text: (row) => row.runs[0].target }
      : { key: "targets", name: "Targets", text: (row) => `${row.targets} of ${row.of}` },
    runs
      ? { key: "seed", name: "Seed", text: (row) => String(row.runs[0].seed ?? "–") }
      : { key: "seeds", name: "Seeds", text: (row) => String(distinct(row.runs, (run) => run.seed).length) },
  ];
}

// A mean over targets of means over seeds: each target counts the same, whatever its number of seeds. The same rule as
// that of tables, opendg/bench/means.py.
const meanOf = (runs, value) =>
  average([...collect(runs, (run) => run.target).values()].map((same) => average(same.map(value))));

// The standard deviation over seeds of the mean over targets, from the seeds that have every target.
function spreadOf(row, value) {
  const whole = [...collect(row.runs, (run) => run.seed).values()].filter(
    (runs) => distinct(runs, (run) => run.target).length === row.targets,
  );
  const means = whole.map((runs) => meanOf(runs, value));
  if (means.length < 2 || means.includes(null)) return null;
  const middle = average(means);
  return Math.sqrt(means.reduce((sum, mean) => sum + (mean - middle) ** 2, 0) / (means.length - 1));
}

function rowsOf(runs) {
  const of = distinct(runs, (run) => run.target).length;
  const sets = state.rows === "runs" ? runs.map((run) => [run]) : [...collect(runs, (run) => run.group).values()];
  return sets.map((set) => ({ runs: set, targets: distinct(set, (run) => run.target).length, of }));
}

// Rows that lack a target come last in means, and so does what has no number: neither can be ranked.
function sortRows(rows) {
  const { column, down } = state.sort;
  const number = NUMBERS.find((each) => each.key === column);
  const text = texts().find((each) => each.key === column) ?? texts()[0];
  const whole = (row) => state.rows === "runs" || row.targets === row.of;
  const order = (a, b) => {
    if (whole(a) !== whole(b)) return whole(a) ? -1 : 1;
    if (!number) return (down ? -1 : 1) * text.text(a).localeCompare(text.text(b), "en", { numeric: true });
    const [x, y] = [meanOf(a.runs, number.value), meanOf(b.runs, number.value)];
    if (x === null || y === null) return (x === null) - (y === null);
    return down ? y - x : x - y;
  };
  return rows.sort(
    (a, b) => order(a, b) || titleOf(a.runs[0]).localeCompare(titleOf(b.runs[0]), "en", { numeric: true }),
  );
}

function sortBy(key) {
  const low = NUMBERS.find((each) => each.key === key)?.low || !NUMBERS.some((each) => each.key === key);
  state.sort = { column: key, down: state.sort.column === key ? !state.sort.down : !low };
  render();
}

function headCell(column, rows) {
  const active = state.sort.column === column.key;
  const sorted = active ? (state.sort.down ? "descending" : "ascending") : "none";
  const button = el(
    "button",
    {
      type: "button",
      title: column.hint,
      "data-focus": `sort ${rows} ${column.key}`,
      onclick: () => sortBy(column.key),
    },
    column.name,
  );
  return el("th", { scope: "col", "aria-sort": sorted, class: column.live ? "live" : null }, button);
}

function head(name) {
  const spans = [
    ["evaluated", NUMBERS.filter((column) => !column.live && !column.rule).length],
    ["H, threshold by rule", data.rules.length],
    [`at ${thresholdText()}`, 3, "live"],
  ];
  const over = spans.map(([text, colspan, style]) => el("th", { scope: "colgroup", colspan, class: style }, text));
  return el(
    "thead",
    {},
    el("tr", { class: "over" }, ...texts().map(() => el("td")), ...over),
    el("tr", {}, ...[...texts(), ...NUMBERS].map((column) => headCell(column, name))),
  );
}

function numberCell(row, column, best) {
  const value = meanOf(row.runs, column.value);
  const spread = state.rows === "runs" ? null : spreadOf(row, column.value);
  const classes = [column.live ? "live" : "", value !== null && value === best ? "best" : ""].join(" ").trim();
  const extra = spread === null ? null : el("small", {}, `±${percent(spread, 1)}`);
  return el("td", { class: classes || null, "data-column": column.key, "data-value": value }, percent(value), extra);
}

function bodyRow(row, best) {
  const run = row.runs[0];
  const single = state.rows === "runs";
  const chosen = single && run === state.run;
  const hint = single ? `Show ${titleOf(run)} below` : `Show the runs of ${labelOf(run)}`;
  const name = el(
    "button",
    {
      type: "button",
      class: "name",
      title: hint,
      "data-focus": `row ${run.number}`,
      onclick: () => (single ? choose(run) : drill(row)),
    },
    el("span", { class: "method" }, run.method),
    run.variant ? " " : null,
    run.variant ? el("span", { class: "variant" }, run.variant) : null,
  );
  const rest = texts()
    .slice(1)
    .map((column) => el("td", { class: "text" }, column.text(row)));
  const seeds = distinct(row.runs, (each) => each.seed).length;
  const narrow = single
    ? `${run.target}, seed ${run.seed ?? "–"}`
    : `${row.targets}/${counted(row.of, "target")}, ${counted(seeds, "seed")}`;
  return el(
    "tr",
    { class: row.targets < row.of && !single ? "partial" : null, "aria-current": chosen ? "true" : null },
    el("th", { scope: "row" }, name, el("span", { class: "narrow", "aria-hidden": "true" }, narrow)),
    ...rest,
    ...NUMBERS.map((column) => numberCell(row, column, best.get(column.key))),
  );
}

// Best of a column, where its rows can be compared: one target, or the same targets in every row.
function bestOf(rows) {
  const fair = rows.filter((row) => row.targets === row.of);
  const found = new Map();
  if (fair.length < 2) return found;
  for (const column of NUMBERS) {
    const values = fair.map((row) => meanOf(row.runs, column.value)).filter((value) => value !== null);
    if (values.length) found.set(column.key, column.low ? Math.min(...values) : Math.max(...values));
  }
  return found;
}

// Names of classes; of many the first, and all of them under the pointer.
function named(classes) {
  const more = classes.length > 20 ? ` and ${classes.length - 12} more` : "";
  const first = more ? classes.slice(0, 12) : classes;
  return classes.length ? el("span", { title: more ? classes.join(", ") : null }, first.join(", ") + more) : null;
}

function tableOf(protocol, runs, number) {
  const rows = sortRows(rowsOf(runs));
  const best = bestOf(rows);
  const run = runs[0];
  const selections = distinct(runs, (each) => each.selection);
  const lacking = rows.some((row) => row.targets < row.of) && state.rows !== "runs";
  const facts = [
    ["Protocol", el("code", {}, protocol)],
    ["Known", named(run.known) ?? "–"],
    ["Unknown", named(run.unknown) ?? "none"],
    ["Backbone", distinct(runs, (each) => each.backbone).join(", ")],
    ["Weights", selections.join("; or ")],
    ["Score", `${state.score} (${data.scores[state.score].title})`],
    ["Thresholds", `${data.rules.map((rule) => rule.name).join(", ")}; on the right ${thresholdText()}`],
  ];
  const foot = [
    "Percent.",
    state.rows === "runs"
      ? ""
      : "Means over targets, of each the mean over its seeds; ± over the seeds that have every target.",
    lacking ? "Rows that lack a target stand last, unranked." : "",
    best.size ? "Bold: best of its column." : "",
  ];
  const table = el(
    "table",
    { "aria-label": `Leaderboard of ${protocol}` },
    head(number),
    el("tbody", {}, ...rows.map((row) => bodyRow(row, best))),
  );
  return el(
    "article",
    { "data-protocol": protocol },
    el("h3", {}, run.dataset),
    el("p", { class: "facts" }, ...facts.map(([name, value]) => el("span", {}, el("b", {}, name), " ", value))),
    el(
      "div",
      {
        class: "scroll",
        role: "region",
        "aria-label": `Table of ${protocol}`,
        tabindex: "0",
        "data-focus": `table ${number}`,
      },
      table,
    ),
    el("p", { class: "quiet" }, foot.filter((text) => text).join(" ")),
  );
}

function drawTables(runs) {
  const places = [...document.querySelectorAll("#tables .scroll")].map((each) => each.scrollLeft);
  byId("tables").replaceChildren(
    ...[...collect(runs, (run) => run.protocol)].map(([protocol, own], number) => tableOf(protocol, own, number)),
  );
  document.querySelectorAll("#tables .scroll").forEach((each, number) => {
    each.scrollLeft = places[number] ?? 0;
  });
}
