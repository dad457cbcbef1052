// What is on the page and what the reader has chosen. Numbers at a threshold are counted here.

// Objects without a prototype: a score that someone named "constructor" is then a score like any other.
const data = JSON.parse(byId("data").textContent, (_, value) =>
  value && typeof value === "object" && !Array.isArray(value) ? Object.assign(Object.create(null), value) : value,
);
const HAND = "hand";
data.runs.forEach((run, number) => {
  run.number = number;
});

const state = {
  score: "",
  rule: "h@source95",
  rung: 0, // of the slider, when the threshold is set by hand
  rows: "runs",
  sort: { column: "oscr", down: true },
  filters: { dataset: "", backbone: "", target: "", method: "" },
  run: null,
};

const visibleRuns = () =>
  data.runs.filter((run) => Object.entries(state.filters).every(([name, wanted]) => !wanted || run[name] === wanted));

const labelOf = (run) => (run.variant ? `${run.method}, ${run.variant}` : run.method);

const labels = distinct(data.runs, labelOf);

const shortTitle = (run) => `${labelOf(run)} → ${run.target}, seed ${run.seed ?? "?"}`;

// Runs of one short title, as when each class is the unknown one in turn, are told apart by their protocols.
function titleOf(run) {
  const twins = once("titles", () => collect(data.runs, shortTitle)).get(shortTitle(run));
  return twins.length > 1 ? `${shortTitle(run)} (${run.protocol})` : shortTitle(run);
}

const remembered = new Map();

function once(key, make) {
  if (!remembered.has(key)) remembered.set(key, make());
  return remembered.get(key);
}

// What users see of each rung's threshold: a probability for cls and bcls.
function rungValues(score) {
  const packed = data.scores[score].values;
  return packed === null ? null : once(`values ${score}`, () => unpack(packed, Float64Array));
}

const placesOf = (run, score) =>
  once(`places ${run.number} ${score}`, () => unpack(run.images.places[score], Uint16Array));

const kindsOf = (run) => once(`kinds ${run.number}`, () => unpack(run.images.kind, Uint8Array));

const hasScores = (run, score = state.score) => Boolean(run.images && run.images.places[score]);

// above[kind][k]: images of a kind (0 unknown, 1 known and wrong, 2 known and right) that rung k accepts.
function tally(run, score = state.score) {
  return once(`tally ${run.number} ${score}`, () => {
    const rungs = rungValues(score).length;
    const above = [0, 1, 2].map(() => new Int32Array(rungs + 1));
    const [kinds, places] = [kindsOf(run), placesOf(run, score)];
    places.forEach((place, image) => {
      if (place > 0) above[kinds[image]][place - 1] += 1;
    });
    for (const counts of above) for (let k = rungs - 1; k >= 0; k -= 1) counts[k] += counts[k + 1];
    const total = [0, 1, 2].map((kind) => kinds.reduce((sum, each) => sum + (each === kind), 0));
    return { above, total, rungs };
  });
}

function measureAt(run, rung, score = state.score) {
  const { above, total } = tally(run, score);
  const [unknown, wrong, right] = above.map((counts) => counts[rung]);
  const known = total[1] + total[2];
  const accK = known ? right / known : null;
  const accU = total[0] ? (total[0] - unknown) / total[0] : null;
  const h = accK === null || accU === null ? null : accK + accU > 0 ? (2 * accK * accU) / (accK + accU) : 0;
  return {
    accK,
    accU,
    h,
    counts: { right, wrong, rejected: known - right - wrong, out: total[0] - unknown, in: unknown },
  };
}

const ruleOf = (run) => run.scores[state.score]?.rules[state.rule] ?? null;

const rungOf = (run) => (state.rule === HAND ? state.rung : (ruleOf(run)?.rung ?? null));

// acc_k, acc_u and H at the present threshold: counted where the run has its images, else as the record says.
function measure(run) {
  const rung = rungOf(run);
  if (hasScores(run) && rung !== null) return measureAt(run, rung);
  const said = ruleOf(run);
  return said ? { accK: said.acc_k, accU: said.acc_u, h: said.h } : { accK: null, accU: null, h: null };
}

const OUTCOMES = {
  right: "known, accepted and right",
  wrong: "known, taken for another class",
  rejected: "known, rejected",
  out: "unknown, rejected",
  in: "unknown, accepted",
};

// The outcome of a shown image at the present threshold.
function outcome(run, position) {
  const image = run.images.rows[position];
  const accepted = placesOf(run, state.score)[image] > rungOf(run);
  const kind = kindsOf(run)[image];
  if (kind === 0) return accepted ? "in" : "out";
  return accepted ? ["", "wrong", "right"][kind] : "rejected";
}

const scoreOf = (run, position) =>
  once(`shown ${run.number} ${state.score}`, () => unpack(run.images.values[state.score], Float32Array))[position];

const ruleNamed = (key) => data.rules.find((rule) => rule.key === key);

const thresholdText = () =>
  state.rule === HAND ? `${state.score} ≥ ${shown(rungValues(state.score)[state.rung])}` : ruleNamed(state.rule).name;
