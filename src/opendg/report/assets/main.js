// Controls, and what is drawn when something changes.

const ALL = "";

function option(value, text = value, chosen = false) {
  return el("option", { value, selected: chosen }, text);
}

function buildFilters() {
  const names = { dataset: "Dataset", backbone: "Backbone", target: "Target", method: "Method" };
  const filters = Object.entries(names).map(([name, title]) => {
    const values = distinct(data.runs, (run) => run[name]).sort();
    const select = el(
      "select",
      {
        id: `filter-${name}`,
        onchange: (event) => {
          state.filters[name] = event.target.value;
          render();
        },
      },
      option(ALL, "all"),
      ...values.map((value) => option(value)),
    );
    return el("label", {}, `${title} `, select);
  });
  const rows = { runs: "single runs", methods: "means of methods" };
  const choices = Object.entries(rows).map(([name, title]) =>
    el(
      "label",
      {},
      el("input", {
        type: "radio",
        name: "rows",
        value: name,
        checked: state.rows === name,
        onchange: () => {
          state.rows = name;
          render();
        },
      }),
      ` ${title}`,
    ),
  );
  byId("filters").replaceChildren(...filters, el("fieldset", {}, el("legend", {}, "Rows"), ...choices));
  byId("filters").addEventListener("submit", (event) => event.preventDefault());
}

// From a method's mean to its runs.
function drill(row) {
  state.rows = "runs";
  state.filters.method = row.runs[0].method;
  byId("filter-method").value = state.filters.method;
  document.querySelector('input[name="rows"][value="runs"]').checked = true;
  choose(row.runs.find((run) => hasScores(run)) ?? row.runs[0]);
}

function choose(run) {
  state.run = run;
  render();
}

function buildBar() {
  const names = Object.keys(data.scores);
  const runsWith = (name) => data.runs.filter((run) => run.scores[name]).length;
  const most = Math.max(...names.map(runsWith));
  const common = names.filter((name) => runsWith(name) === most);
  state.score = common.includes("bcls") ? "bcls" : common[0];
  byId("score").replaceChildren(...names.map((name) => option(name, name, name === state.score)));
  byId("score").addEventListener("change", (event) => {
    state.score = event.target.value;
    fitRule();
    render();
  });
  byId("rule").addEventListener("change", (event) => {
    if (event.target.value === HAND)
      state.rung = (state.run && rungOf(state.run)) ?? Math.floor(rungValues(state.score).length / 2);
    state.rule = event.target.value;
    render();
  });
  byId("slider").addEventListener("input", (event) => {
    state.rule = HAND;
    state.rung = Number(event.target.value);
    render();
  });
  fitRule();
}

// The rules that this score has a threshold for; and by hand, where the page holds per-image scores.
function fitRule() {
  const has = data.rules.filter((rule) => data.runs.some((run) => run.scores[state.score]?.rules[rule.key]));
  const able = rungValues(state.score) !== null;
  const fits = state.rule === HAND ? able : has.some((rule) => rule.key === state.rule);
  if (!fits)
    state.rule = (has.find((rule) => rule.key === "h@source95") ?? has[0])?.key ?? (able ? HAND : "h@source95");
  if (state.rule === HAND) state.rung = Math.min(state.rung, rungValues(state.score).length - 1);
  byId("rule").replaceChildren(
    ...has.map((rule) => option(rule.key, `by ${rule.name}`)),
    ...(able ? [option(HAND, "by hand, the same for all")] : []),
  );
}

function drawBar() {
  const values = rungValues(state.score);
  const rung = state.run && hasScores(state.run) ? rungOf(state.run) : state.rule === HAND ? state.rung : null;
  byId("rule").value = state.rule;
  const slider = byId("slider");
  slider.disabled = values === null;
  slider.max = values === null ? 0 : values.length - 1;
  if (rung !== null) slider.value = rung;
  const own = state.rule !== HAND && state.run ? ruleOf(state.run)?.threshold : null;
  const value = own ?? (rung === null || values === null ? null : values[rung]);
  byId("value").textContent = value === null ? "–" : shown(value);
  slider.setAttribute("aria-valuetext", value === null ? "no threshold" : `${state.score} of ${shown(value)} or more`);
  const now = state.run ? measure(state.run) : { accK: null, accU: null, h: null };
  const cells = [
    ["acc_k", now.accK],
    ["acc_u", now.accU],
    ["H", now.h],
  ].map(([name, share]) =>
    el("span", { "data-now": name, "data-value": share }, el("b", {}, name), ` ${percent(share)}`),
  );
  byId("now").replaceChildren(...cells, el("span", { class: "quiet" }, state.run ? titleOf(state.run) : ""));
}

function drawRun(runs) {
  const pick = byId("pick");
  pick.replaceChildren(...runs.map((run) => option(run.number, titleOf(run), run === state.run)));
  const run = state.run;
  if (!run) return;
  byId("run-facts").textContent =
    `${run.name}: trained on ${run.sources.join(", ")}; tested on ${run.target} ` +
    `with ${run.n_known ?? "?"} known and ${run.n_unknown ?? "?"} unknown images. Weights: ${run.selection}.`;
  const able = hasScores(run);
  byId("detail").hidden = !able;
  if (!able) {
    const reasons = run.images
      ? [`The record's ${state.score} was fitted on images that a run does not keep: choose another score.`]
      : run.notes;
    return byId("gallery").replaceChildren(...reasons.map((note) => el("p", { class: "note" }, note)));
  }
  drawChart(run);
  drawOutcomes(run);
  drawPlane(run);
  drawGallery(run);
}

function draw() {
  const runs = visibleRuns();
  if (!runs.includes(state.run)) state.run = runs.find((run) => hasScores(run)) ?? runs[0] ?? null;
  byId("run").hidden = runs.length === 0;
  const focus = document.activeElement?.dataset?.focus;
  drawCount(runs);
  drawBar();
  drawTables(runs);
  drawCurves(runs);
  drawRun(runs);
  drawCommands(runs);
  const again = focus && [...document.querySelectorAll("[data-focus]")].find((node) => node.dataset.focus === focus);
  if (again && again !== document.activeElement) again.focus({ preventScroll: true });
}

let waiting = false;

// Many changes of one moment are drawn once.
function render() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    draw();
  });
}

state.rows = distinct(data.runs, (run) => run.group).length < data.runs.length ? "methods" : "runs";
buildFilters();
buildBar();
byId("pick").addEventListener("change", (event) => choose(data.runs[Number(event.target.value)]));
drawWords();
draw();
addEventListener("resize", render);
