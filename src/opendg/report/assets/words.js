// Words: the summary, the commands that made the runs, what was left out.

function drawWords() {
  const methods = distinct(data.runs, (run) => run.method).length;
  const protocols = distinct(data.runs, (run) => run.protocol).length;
  byId("summary").textContent =
    `${counted(data.runs.length, "run")} of ${counted(methods, "method")} under ${counted(protocols, "protocol")}. ` +
    "Each protocol has a ranking of its own.";
  const when = data.made.replace("T", " ").replace("+00:00", " UTC");
  byId("made").textContent =
    `Made by OpenDG ${data.opendg}, ${when}. Everything is inside this file; it asks no network.`;
  const rules = data.rules.map((rule) => [rule.name, `${rule.idea}. What it saw: ${rule.saw}.`]);
  byId("rules").prepend(...rules.flatMap(([name, text]) => [el("dt", {}, name), el("dd", {}, text)]));
  if (data.left_out.length) {
    const items = data.left_out.map((text) => el("li", {}, text));
    byId("left-out").replaceChildren(el("h3", {}, "Left out"), el("ul", {}, ...items));
  }
}

function drawCount(runs) {
  const text = runs.length
    ? `Showing ${runs.length} of ${counted(data.runs.length, "run")}.`
    : "No run fits these filters.";
  if (byId("count").textContent !== text) byId("count").textContent = text;
}

function fact(name, value) {
  const text =
    value !== null && typeof value === "object"
      ? Object.entries(value)
          .map(([key, each]) => `${key}=${typeof each === "object" ? JSON.stringify(each) : each}`)
          .join("  ")
      : value;
  return text ? [el("dt", {}, name), el("dd", {}, text)] : [];
}

function command(run) {
  const text = run.origin.command;
  const said = typeof text === "string" && text ? text : "The record does not say.";
  const code = el("code", {}, said);
  const copy = el(
    "button",
    {
      type: "button",
      class: "copy",
      "data-focus": `copy ${run.number}`,
      onclick: (event) => copyText(event.target, code),
    },
    "Copy",
  );
  const names = ["commit", "created", "machine", "opendg", "versions", "starting_weights", "settings", "recipe"];
  const facts = names.flatMap((name) => fact(name, run.origin[name])).concat(fact("chosen", run.chosen));
  const notes = run.notes.map((note) => el("p", { class: "quiet" }, note));
  return el(
    "li",
    {},
    el("h3", {}, titleOf(run), el("span", { class: "quiet" }, ` ${run.name}`)),
    el("div", { class: "command" }, el("pre", { tabindex: "0" }, code), copy),
    el("details", {}, el("summary", {}, "Settings and origin"), el("dl", {}, ...facts)),
    ...notes,
  );
}

function copyText(button, code) {
  const done = () => {
    button.textContent = "Copied";
    setTimeout(() => {
      button.textContent = "Copy";
    }, 1500);
  };
  const mark = () => getSelection().selectAllChildren(code);
  if (navigator.clipboard) navigator.clipboard.writeText(code.textContent).then(done, mark);
  else mark();
}

const commands = new Map();

function drawCommands(runs) {
  for (const run of runs) if (!commands.has(run)) commands.set(run, command(run));
  const wanted = runs.map((run) => commands.get(run));
  const there = [...byId("command-list").children];
  if (wanted.length !== there.length || wanted.some((node, number) => node !== there[number]))
    byId("command-list").replaceChildren(...wanted);
}
