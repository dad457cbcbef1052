// Curves: OSCR by target, and one run over every threshold.

// Six colours and five dashes, so that pairs repeat late; a method keeps its pair whatever is filtered.
function lineOf(run) {
  const number = labels.indexOf(labelOf(run));
  return `line c${number % 6} d${number % 5}`;
}

const round = (number) => Math.round(10 * number) / 10;

function frame(width, height, margin, label) {
  const inner = { left: margin.left, top: margin.top, right: width - margin.right, bottom: height - margin.bottom };
  const x = (share) => round(inner.left + share * (inner.right - inner.left));
  const y = (share) => round(inner.bottom - share * (inner.bottom - inner.top));
  const ticks = [0, 0.25, 0.5, 0.75, 1].map((share) =>
    svg(
      "g",
      { class: "tick" },
      svg("line", { x1: inner.left, x2: inner.right, y1: y(share), y2: y(share) }),
      svg("text", { x: inner.left - 6, y: y(share) + 3.5, "text-anchor": "end" }, String(100 * share)),
    ),
  );
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, ...ticks);
  return { root, inner, x, y };
}

function oscrPath(run, x, y) {
  const { above, total, rungs } = tally(run);
  const known = total[1] + total[2];
  const points = [];
  for (let k = rungs - 1; k >= 0; k -= 1) {
    const point = `${x(above[0][k] / total[0])} ${y(above[2][k] / known)}`;
    if (point !== points.at(-1)) points.push(point);
  }
  return `M${points.join("L")}`;
}

function oscrPanel(target, runs) {
  const areas = runs.map((run) => `${titleOf(run)}: ${percent(metric("oscr")(run))}`).join("; ");
  const { root, x, y, inner } = frame(
    300,
    270,
    { left: 34, right: 12, top: 10, bottom: 38 },
    `OSCR curves on ${target}. ${areas}`,
  );
  for (const share of [0, 0.25, 0.5, 0.75, 1])
    root.append(
      svg("text", { class: "tick", x: x(share), y: inner.bottom + 15, "text-anchor": "middle" }, String(100 * share)),
    );
  root.append(svg("text", { class: "axis", x: x(0.5), y: 266, "text-anchor": "middle" }, "unknown accepted, %"));
  for (const run of runs) {
    const chosen = run === state.run ? " chosen" : "";
    root.append(
      svg(
        "path",
        { class: lineOf(run) + chosen, d: oscrPath(run, x, y) },
        svg("title", {}, `${titleOf(run)}: OSCR ${percent(metric("oscr")(run))}`),
      ),
    );
    const rung = rungOf(run);
    if (rung === null) continue;
    const { accK, accU } = measureAt(run, rung);
    root.append(
      svg("circle", {
        class: `dot c${labels.indexOf(labelOf(run)) % 6}`,
        cx: x(1 - accU),
        cy: y(accK),
        r: run === state.run ? 5 : 3.5,
      }),
    );
  }
  return el(
    "figure",
    {},
    el("figcaption", {}, target, el("span", { class: "quiet" }, "known accepted and right, %")),
    root,
  );
}

function drawCurves(runs) {
  const able = runs.filter((run) => hasScores(run) && run.n_unknown);
  const legend = [...collect(able, labelOf).values()].map((same) =>
    el(
      "li",
      {},
      svg(
        "svg",
        { viewBox: "0 0 34 10", width: 34, height: 10, "aria-hidden": "true" },
        svg("path", { class: lineOf(same[0]), d: "M1 5L33 5" }),
      ),
      labelOf(same[0]),
    ),
  );
  byId("legend").replaceChildren(...legend);
  const several = distinct(able, (run) => run.protocol).length > 1;
  const name = (run) => (several ? `${run.target} (${run.protocol})` : run.target);
  const panels = [...collect(able, name)].map(([target, own]) => oscrPanel(target, own));
  const none = el(
    "p",
    { class: "note" },
    `No run shown here keeps per-image ${state.score} scores of known and unknown images.`,
  );
  byId("panels").replaceChildren(...(panels.length ? panels : [none]));
}

// Labels of the thresholds of rules above the chart and its scale, on as many lines as keep them apart.
function marks(run, x, top) {
  const rungs = rungValues(state.score).length;
  const placed = Object.entries(run.scores[state.score].rules)
    .filter(([, said]) => said.rung !== undefined)
    .map(([key, said]) => ({ name: ruleNamed(key).name, at: x(said.rung / (rungs - 1)) }))
    .sort((a, b) => a.at - b.at);
  const ends = [-Infinity, -Infinity, -Infinity];
  return placed.map(({ name, at }) => {
    const line = Math.max(
      0,
      ends.findIndex((end) => at - 40 > end),
    );
    ends[line] = at + 40;
    return svg(
      "g",
      { class: "mark" },
      svg("line", { x1: at, x2: at, y1: top - 8, y2: top + 6 }),
      svg("text", { x: at, y: top - 12 - 12 * line, "text-anchor": "middle" }, name),
    );
  });
}

const THREE = [
  { key: "accK", name: "acc_k", style: "line c0 d0" },
  { key: "accU", name: "acc_u", style: "line c1 d1" },
  { key: "h", name: "H", style: "line ink d0" },
];

function drawChart(run) {
  const place = byId("chart");
  const width = Math.max(260, place.clientWidth || 560);
  const { root, x, y, inner } = frame(
    width,
    310,
    { left: 30, right: 46, top: 50, bottom: 36 },
    `acc_k, acc_u and H of ${titleOf(run)} over the thresholds of ${state.score}`,
  );
  const values = rungValues(state.score);
  const last = values.length - 1;
  for (const share of width < 480 ? [0, 0.5, 1] : [0, 0.25, 0.5, 0.75, 1]) {
    const anchor = { 0: "start", 1: "end" }[share] ?? "middle";
    root.append(
      svg(
        "text",
        { class: "tick", x: x(share), y: inner.bottom + 15, "text-anchor": anchor },
        shown(values[Math.round(share * last)]),
      ),
    );
  }
  root.append(
    svg(
      "text",
      { class: "axis", x: x(0.5), y: 306, "text-anchor": "middle" },
      `threshold on ${state.score}, steps of equal numbers of images`,
    ),
  );
  root.append(...marks(run, x, inner.top));
  const curves = values.length > 1 ? Array.from(values, (_, rung) => measureAt(run, rung)) : [];
  const taken = [];
  for (const { key, name, style } of THREE) {
    if (curves.length === 0 || curves[0][key] === null) continue;
    root.append(
      svg("path", { class: style, d: `M${curves.map((at, rung) => `${x(rung / last)} ${y(at[key])}`).join("L")}` }),
    );
    let at = y(curves[last][key]) + 3.5;
    while (taken.some((other) => Math.abs(other - at) < 12)) at -= 12;
    taken.push(at);
    root.append(svg("text", { class: `end ${style}`, x: inner.right + 6, y: at }, name));
  }
  const rung = rungOf(run);
  if (rung !== null && curves.length) {
    const at = x(rung / last);
    root.append(svg("line", { class: "cursor", x1: at, x2: at, y1: inner.top, y2: inner.bottom }));
    for (const { key, style } of THREE)
      if (curves[rung][key] !== null)
        root.append(svg("circle", { class: `dot ${style.split(" ")[1]}`, cx: at, cy: y(curves[rung][key]), r: 4 }));
  }
  place.replaceChildren(root);
}

function share(name, count, all) {
  const piece = el("span", { class: `piece ${name}`, hidden: count === 0, title: `${OUTCOMES[name]}: ${count}` });
  piece.style.flexGrow = all ? count / all : 0;
  return piece;
}

// Every image by what became of it: two bars, and the key to the marks of the plane.
function drawOutcomes(run) {
  const rung = rungOf(run);
  if (rung === null) return byId("outcomes").replaceChildren();
  const { counts } = measureAt(run, rung);
  const parts = [
    ["right", "wrong", "rejected"],
    ["out", "in"],
  ];
  const blocks = parts.map((names) => {
    const all = names.reduce((sum, name) => sum + counts[name], 0);
    const items = names.map((name) =>
      el(
        "li",
        {},
        svg(
          "svg",
          { viewBox: "-8 -8 16 16", width: 16, height: 16, "aria-hidden": "true" },
          svg("path", { class: `point ${name}`, d: SHAPES[name] }),
        ),
        `${OUTCOMES[name]}: ${counts[name].toLocaleString("en")}`,
        el("span", { class: "quiet" }, ` ${percent(all ? counts[name] / all : null, 1)} %`),
      ),
    );
    return el(
      "div",
      { class: "block" },
      el("div", { class: "stack", "aria-hidden": "true" }, ...names.map((name) => share(name, counts[name], all))),
      el("ul", { class: "outcomes" }, ...items),
    );
  });
  return byId("outcomes").replaceChildren(...blocks);
}
