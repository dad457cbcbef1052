// Images: the plane of t-SNE and the gallery of mistakes.

const SHAPES = {
  right: "M0 -4A4 4 0 1 0 0 4A4 4 0 1 0 0 -4Z",
  wrong: "M0 -5.5L5 4L-5 4Z",
  rejected: "M0 -4A4 4 0 1 0 0 4A4 4 0 1 0 0 -4Z",
  out: "M-3.5 -3.5L3.5 3.5M-3.5 3.5L3.5 -3.5",
  in: "M-4.5 -4.5L4.5 4.5M-4.5 4.5L4.5 -4.5",
};
const SIDE = 600;

function picture(run, position, alt) {
  const number = run.images.thumbnails[position];
  if (number === undefined || number < 0)
    return el("span", { class: "no-image", role: "img", "aria-label": alt }, "image not at hand");
  return el("img", {
    src: `data:image/webp;base64,${data.thumbnails[number]}`,
    alt,
    loading: "lazy",
    decoding: "async",
  });
}

function describe(run, position) {
  const { classes, predicted } = run.images;
  const what = {
    right: "accepted",
    wrong: `taken for ${predicted[position]}`,
    rejected: "rejected",
    out: "rejected",
    in: `taken for ${predicted[position]}`,
  };
  return `${classes[position]}, ${what[outcome(run, position)]}`;
}

// Where each image lies, of the run on show; kept so that the slider only changes marks.
let plane = { run: null, points: [], at: -1 };

function buildPlane(run) {
  const { at, xy } = run.images.plane;
  const places = unpack(xy, Uint16Array);
  const scale = (value) => round(14 + (value / 65535) * (SIDE - 28));
  const points = at.map((position, number) => {
    const [x, y] = [scale(places[2 * number]), scale(65535 - places[2 * number + 1])];
    return { position, x, y, node: svg("path", { transform: `translate(${x} ${y})` }) };
  });
  const ring = svg("circle", { class: "ring", r: 10, visibility: "hidden" });
  const canvas = svg(
    "svg",
    {
      viewBox: `0 0 ${SIDE} ${SIDE}`,
      tabindex: "0",
      role: "application",
      "aria-roledescription": "map of images",
      "aria-label": `t-SNE of ${counted(points.length, "image")}; arrow keys go from image to image`,
      "aria-describedby": "plane-tip",
      "data-focus": "plane",
    },
    svg("g", {}, ...points.map((point) => point.node)),
    ring,
  );
  const tip = el("div", { class: "tip", id: "plane-tip", role: "status", hidden: true });
  plane = { run, points, at: -1, ring, tip, canvas };
  canvas.addEventListener("pointermove", (event) => hover(event));
  canvas.addEventListener("pointerdown", (event) => hover(event));
  canvas.addEventListener("pointerleave", () => point(-1));
  canvas.addEventListener("blur", () => point(-1));
  canvas.addEventListener("keydown", walk);
  byId("plane").replaceChildren(canvas, tip);
}

const nearest = (x, y, fits = () => true) =>
  plane.points.reduce(
    (best, each, number) => {
      const far = (each.x - x) ** 2 + (each.y - y) ** 2;
      return fits(each) && far < best.far ? { number, far } : best;
    },
    { number: -1, far: Infinity },
  );

function hover(event) {
  const box = plane.canvas.getBoundingClientRect();
  const [x, y] = [event.clientX - box.left, event.clientY - box.top].map((place) => (place * SIDE) / box.width);
  const { number, far } = nearest(x, y);
  point(far < 400 ? number : -1);
}

// An arrow key goes to the nearest image within 45 degrees of its direction.
function walk(event) {
  const [dx, dy] = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key] ?? [0, 0];
  if (event.key === "Escape") point(-1);
  if (!dx && !dy) return;
  event.preventDefault();
  const here = plane.points[plane.at] ?? { x: SIDE / 2, y: SIDE / 2 };
  const ahead = (each) => {
    const [along, aside] = [
      (each.x - here.x) * dx + (each.y - here.y) * dy,
      (each.x - here.x) * dy + (each.y - here.y) * dx,
    ];
    return along > 0 && Math.abs(aside) <= along;
  };
  const { number } = nearest(here.x, here.y, plane.at < 0 ? undefined : ahead);
  if (number >= 0) point(number);
}

function point(number) {
  plane.at = number;
  const { run, tip, ring, points } = plane;
  tip.hidden = number < 0;
  ring.setAttribute("visibility", number < 0 ? "hidden" : "visible");
  if (number < 0) return;
  const { position, x, y } = points[number];
  ring.setAttribute("transform", `translate(${x} ${y})`);
  tip.replaceChildren(
    picture(run, position, ""),
    el(
      "p",
      {},
      el("strong", {}, run.images.classes[position]),
      ` ${describe(run, position).slice(run.images.classes[position].length + 2)}`,
    ),
    el("p", {}, `closest: ${run.images.predicted[position]}; ${state.score} ${shown(scoreOf(run, position))}`),
    el("p", { class: "quiet" }, run.images.keys[position]),
  );
  tip.classList.toggle("left", x > SIDE / 2);
  tip.classList.toggle("up", y > SIDE / 2);
  tip.style.setProperty("--x", `${(100 * x) / SIDE}%`);
  tip.style.setProperty("--y", `${(100 * y) / SIDE}%`);
}

function planeNote(run) {
  const { at } = run.images.plane;
  const unknown = at.filter((position) => kindsOf(run)[run.images.rows[position]] === 0).length;
  const of = `${at.length} of ${kindsOf(run).length} target images, ${unknown} of ${tally(run).total[0]} unknown ones`;
  return `t-SNE of pooled features: ${of}. Point at an image, or use the arrow keys.`;
}

function drawPlane(run) {
  const able = run.images.plane && rungOf(run) !== null;
  byId("plane-note").textContent = able ? planeNote(run) : "This run has no features to lay out in the plane.";
  if (!able) {
    plane = { run: null, points: [], at: -1 };
    return byId("plane").replaceChildren();
  }
  if (plane.run !== run) buildPlane(run);
  for (const { node, position } of plane.points) {
    const name = outcome(run, position);
    node.setAttribute("class", `point ${name}`);
    node.setAttribute("d", SHAPES[name]);
  }
  return point(plane.at);
}

function mistake(run, position) {
  const { classes, predicted, keys } = run.images;
  return el(
    "li",
    {},
    el(
      "figure",
      { title: keys[position] },
      picture(run, position, `${keys[position]}: ${describe(run, position)}`),
      el(
        "figcaption",
        {},
        el("strong", {}, classes[position]),
        ` as ${predicted[position]}`,
        el("span", { class: "quiet" }, shown(scoreOf(run, position))),
      ),
    ),
  );
}

function mistakes(run, part, wrong, title, words) {
  const chosen = run.images.mistakes[state.score][part].filter((position) => outcome(run, position) === wrong);
  const all = measureAt(run, rungOf(run)).counts[wrong];
  const lead = all
    ? `${counted(all, "image")}; ${all > chosen.length ? `the ${chosen.length} ${words}` : "all of them"}.`
    : "None at this threshold.";
  return el(
    "section",
    { class: "mistakes", "data-part": part },
    el("h3", {}, title),
    el("p", { class: "quiet" }, lead),
    el("ul", {}, ...chosen.map((position) => mistake(run, position))),
  );
}

function drawGallery(run) {
  if (rungOf(run) === null) return byId("gallery").replaceChildren();
  const missing = run.notes.filter((note) => note.startsWith("No thumbnails"));
  return byId("gallery").replaceChildren(
    ...missing.map((note) => el("p", { class: "note" }, `${note} Give the folder of the data with --root.`)),
    mistakes(run, "unknown", "in", "Unknown, accepted", "with the highest scores"),
    mistakes(run, "known", "rejected", "Known, rejected", "with the lowest scores"),
  );
}
