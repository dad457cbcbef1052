// Words: the summary, the commands that made the runs, what was left out.

function drawWords() {
  const methods = distinct(data.runs, (run) => run.method).length;
  const protocols = distinct(data.runs, (run) => run.protocol).length;
  byId("summary").textContent =
    `${counted(data.runs.length, "run")} of ${counted(methods, "method")} under ${counted(protocols, "protocol")}.` +
    (protocols > 1 ? " Each protocol has a ranking of its own." : "");
  const when = data.made.replace("T", " ").replace("+00:00", " UTC");
  byId("made").textContent =
    `Made by OpenDG ${data.opendg}, ${when}. Everything is inside this file; it asks no network.`;
  const sentence = (text) => `${text.charAt(0).toUpperCase()}${text.slice(1)}.`;
  const rules = data.rules.map((rule) => [rule.name, `${sentence(rule.idea)} What it saw: ${rule.saw}.`]);
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

const commandOf = (run) =>
  typeof run.origin.command === "string" && run.origin.command ? run.origin.command : "The record does not say.";

// The text of a command, whose lines break between words: never after the first hyphen of an option.
const wordsOf = (text) =>
  text.split(/(\s+)/).map((part, number) => (number % 2 ? part : el("span", { class: "word" }, part)));

function originOf(run) {
  const names = ["commit", "created", "machine", "opendg", "versions", "starting_weights", "settings", "recipe"];
  const facts = names.flatMap((name) => fact(name, run.origin[name])).concat(fact("chosen", run.chosen));
  return el("dl", {}, ...facts);
}

// Each note once, with the runs that it is said of where it is not all of them.
function notesOf(runs) {
  const said = collect(
    runs.flatMap((run) => run.notes.map((note) => [note, run])),
    ([note]) => note,
  );
  return [...said].map(([note, pairs]) => {
    const of = pairs.length < runs.length ? `${pairs.map(([, run]) => titleOf(run)).join("; ")}: ` : "";
    return el("p", { class: "quiet" }, of + note);
  });
}

// One command of a method, and the runs that it made.
function command(runs) {
  const [run] = runs;
  const code = el("code", {}, ...wordsOf(commandOf(run)));
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
  const single = runs.length === 1;
  const title = single ? [titleOf(run), run.name] : [labelOf(run), counted(runs.length, "run")];
  const origins = runs.flatMap((each) => [
    single ? null : el("h4", {}, titleOf(each), el("span", { class: "quiet" }, ` ${each.name}`)),
    originOf(each),
  ]);
  return el(
    "li",
    {},
    el("h3", {}, title[0], el("span", { class: "quiet" }, ` ${title[1]}`)),
    el("div", { class: "command" }, el("pre", { tabindex: "0" }, code), copy),
    el("details", {}, el("summary", {}, "Settings and origin"), ...origins),
    ...notesOf(runs),
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
  const sets = [...collect(runs, (run) => `${labelOf(run)}\n${commandOf(run)}`).values()];
  const wanted = sets.map((set) => {
    const key = set.map((run) => run.number).join();
    if (!commands.has(key)) commands.set(key, command(set));
    return commands.get(key);
  });
  const there = [...byId("command-list").children];
  if (wanted.length !== there.length || wanted.some((node, number) => node !== there[number]))
    byId("command-list").replaceChildren(...wanted);
}
