
"use strict";
(() => {
  const report = JSON.parse(document.getElementById("data").textContent);
  const devices = Object.fromEntries(report.devices.map((device) => [device.id, device]));
  const OUTCOMES = ["hit", "miss", "stale", "mismatch", "uncacheable"];
  const URGENT = ["stale", "miss", "mismatch", "uncacheable", "", "hit"];  // what is to be looked at comes first
  const PAGE = 25;
  const SHOWN = 200;  // candidates of a problem

  // Every text is shown as text: nothing of the data is ever read as HTML.
  function el(tag, attributes = {}, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("--")) node.style.setProperty(name, value);
      else if (typeof value === "function") node.addEventListener(name, value);
      else node.setAttribute(name, value);
    }
    for (const child of children.flat(Infinity)) {
      if (child !== null && child !== undefined && child !== "") node.append(child);
    }
    return node;
  }

  const code = (...parts) => el("span", { class: "code" }, parts);
  const quiet = (...parts) => el("span", { class: "quiet" }, parts);
  const clamped = (text, kind = "code") => el("span", { class: `clamp ${kind}`, title: text }, text);
  const link = (text, click, kind = "link") => el("button", { type: "button", class: kind, click }, text);
  const word = (outcome, became) => el("span", { class: `word ${outcome}` }, outcome || became || "tuned");

  function svg(tag, attributes, ...children) {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children);
    return node;
  }

  const number = (value) => value.toLocaleString("en");
  const count = (total, singular, plural = `${singular}s`) => `${number(total)} ${total === 1 ? singular : plural}`;
  const percent = (share) => `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %`;

  // Microseconds, in the unit that another time is shown in.
  function time(us, like = us) {
    if (us === null || us === undefined) return "";
    const [size, unit] = like >= 1e6 ? [1e6, "s"] : like >= 1e3 ? [1e3, "ms"] : [1, "µs"];
    return `${Number((us / size).toPrecision(4))} ${unit}`;
  }

  function seconds(s) {
    if (s === null) return "";
    if (s >= 5400) return `${(s / 3600).toFixed(1)} h`;
    if (s >= 90) return `${(s / 60).toFixed(1)} min`;
    return s && s < 1 ? `${Number((1000 * s).toPrecision(3))} ms` : `${Number(s.toPrecision(3))} s`;
  }

  // As Python writes them.
  const plain = (value) => (value === null ? "None" : value === true ? "True" : value === false ? "False" : value);

  function decodeCandidate(encoded) {
    if (!encoded) return null;
    const [number, took, label, failed, id] = encoded;
    const parts = Object.entries(report.params[number]).map(([name, value]) => `${name}=${plain(value)}`);
    const spread = /^\+-([\d.e+-]+) us$/.exec(label);
    return { id, parts: parts.length ? parts : [label || id || "default"], time: took, failed,
      spread: spread ? Number(spread[1]) : 0, label: spread || !parts.length ? "" : label };
  }

  const configuration = (candidate) => (candidate ? candidate.parts.join(", ") : "");
  const isSame = (candidate, other) => candidate.id === other.id && configuration(candidate) === configuration(other);

  const rows = report.lookups.map((lookup) => {
    const row = { ...lookup, outcome: lookup.outcome || "", name: `${lookup.tuner}:${lookup.kernel}` };
    row.choice = decodeCandidate(lookup.choice);
    row.time = row.choice && row.choice.time;
    row.tuned = lookup.tuned ? lookup.tuning_seconds : null;
    row.candidates = lookup.candidates.map(decodeCandidate);
    row.chosen = row.choice ? row.candidates.findIndex((candidate) => isSame(candidate, row.choice)) : -1;
    row.became = lookup.failed ? "failed" : lookup.unrecorded ? "unrecorded" : "";
    const { name, arch } = devices[lookup.device];
    row.device = `${name} (${arch})`;
    row.isInterpreted = arch === "interpreter";
    const words = [row.outcome, row.name, row.key, row.device, row.label, row.reason, row.mode_remarks];
    row.words = [...words, configuration(row.choice), ...row.tests].join("\n").toLowerCase();
    return row;
  });

  // A table whose headers sort it and whose rows come in pages; `detail` makes what a row unfolds to.
  function sortedTable({ label, columns, detail, sort = null }) {
    let shown = [];
    let order = sort;
    let page = 0;
    const opened = new Set();
    const body = el("tbody");
    const headers = columns.map((column, index) =>
      el("th", { scope: "col", class: column.number ? "number" : "" },
        link(column.title, () => sortBy(index), "sort")));
    const before = link("← Previous", () => turn(-1));
    const after = link("Next →", () => turn(1));
    const where = el("span", { class: "quiet", "aria-live": "polite" });
    const pages = el("nav", { class: "pages", "aria-label": `Pages: ${label}` }, before, where, after);
    const table = el("table", { "aria-label": label }, el("thead", {}, el("tr", {}, headers)), body);

    function sortBy(index) {
      const isSame = order && order.index === index;
      order = { index, down: isSame ? !order.down : Boolean(columns[index].number) };
      arrange();
    }

    function turn(by) {
      page += by;
      draw();
    }

    function arrange() {
      if (order) {
        const { value } = columns[order.index];
        const sign = order.down ? -1 : 1;
        const keyed = shown.map((row, at) => [value(row), at, row]);
        const isNone = (value) => value === null || value === undefined || value === "";
        keyed.sort(([a, i], [b, j]) => {
          if (isNone(a) || isNone(b)) return isNone(a) - isNone(b) || i - j; // what is not known comes last
          return (a < b ? -sign : a > b ? sign : 0) || i - j;
        });
        shown = keyed.map(([, , row]) => row);
      }
      headers.forEach((header, index) => {
        const direction = order && order.index === index ? (order.down ? "descending" : "ascending") : null;
        if (direction) header.setAttribute("aria-sort", direction);
        else header.removeAttribute("aria-sort");
      });
      page = 0;
      draw();
    }

    function draw() {
      const first = page * PAGE;
      const part = shown.slice(first, first + PAGE);
      body.replaceChildren(...part.flatMap(drawn));
      if (!part.length) body.append(el("tr", {}, el("td", { colspan: columns.length }, quiet("Nothing to show."))));
      where.textContent = `${number(first + 1)} to ${number(first + part.length)} of ${number(shown.length)}`;
      before.disabled = page === 0;
      after.disabled = first + PAGE >= shown.length;
      pages.hidden = shown.length <= PAGE;
    }

    function drawn(row) {
      const cells = columns.map((column) => el("td", { class: column.number ? "number" : "" }, column.cell(row)));
      const line = el("tr", {}, cells);
      if (!detail) return [line];
      const button = el("button", { type: "button", class: "open", "aria-expanded": opened.has(row),
        "aria-label": `Details of ${row.name} ${row.key}`, click: () => toggle(row, line, button) });
      cells[0].prepend(button);
      return opened.has(row) ? [line, unfolded(row)] : [line];
    }

    const unfolded = (row) => el("tr", { class: "detail" }, el("td", { colspan: columns.length }, detail(row)));

    function toggle(row, line, button) {
      if (opened.delete(row)) line.nextSibling.remove();
      else {
        opened.add(row);
        line.after(unfolded(row));
      }
      button.setAttribute("aria-expanded", opened.has(row));
    }

    function show(some) {
      shown = [...some];
      arrange();
    }

    return { node: el("div", {}, el("div", { class: "scroll" }, table), pages), show };
  }

  // A name with what it is in below: the function, then its module and tuner; the test, then its file.
  function nameCell(full, separator, more = "") {
    const at = full.lastIndexOf(separator, (full + "[").indexOf("["));
    const [name, where] = at < 0 ? [full, ""] : [full.slice(at + separator.length), full.slice(0, at)];
    const parts = name.split(/(?<=[_-])|(?=\[)/).flatMap((part) => [part, el("wbr")]);
    const under = [where, more].filter(Boolean).join(" · ");
    return el("div", { class: "name", title: full }, code(parts), el("small", { class: "under" }, under));
  }

  const kernelCell = ({ tuner, kernel }) => nameCell(kernel, ".", tuner);
  const keyCell = (row) => clamped(row.key, "code quiet");
  function why(row) {
    const remarks = row.mode_word ? el("small", { class: "reason stale" }, row.mode_remarks) : null;
    return [row.reason ? el("small", { class: `reason ${row.outcome}` }, row.reason) : null, remarks];
  }

  const testCell = (test) => nameCell(test, "::");

  // The times of a problem's candidates on one line, the chosen one marked.
  function strip(row) {
    const timed = row.candidates.filter((candidate) => candidate.time !== null && !candidate.failed);
    if (timed.length < 2) return quiet(row.candidates.length || "");
    const [best, limit] = scale(timed);
    const at = (us) => 3 + 114 * Math.min(us / (limit || 1), 1);
    const tick = ({ time: us }, kind) => svg("line", { x1: at(us), x2: at(us), y1: 3, y2: 15, class: kind });
    const chosen = row.candidates[row.chosen];
    const rivals = timed.slice(0, SHOWN).filter((candidate) => candidate !== chosen);
    const marks = rivals.map((candidate) => tick(candidate, ""));
    if (chosen && chosen.time !== null) marks.push(tick(chosen, "chosen"));
    const label = `${count(row.candidates.length, "candidate")}, the fastest takes ${time(best)}`;
    return svg("svg", { class: "strip", viewBox: "0 0 120 18", role: "img", "aria-label": label },
      svg("line", { x1: 3, x2: 117, y1: 9, y2: 9, class: "axis" }), ...marks);
  }

  // The fastest time, and where a scale ends: slow candidates would hide how the others differ.
  function scale(timed) {
    const best = timed.reduce((least, candidate) => Math.min(least, candidate.time), Infinity);
    const most = timed.reduce((largest, candidate) => Math.max(largest, candidate.time), 0);
    return [best, Math.min(most, best * 4)];
  }

  function chart(row) {
    if (!row.candidates.length) return [];
    const timed = row.candidates.filter((candidate) => candidate.time !== null && !candidate.failed);
    const [best, limit] = timed.length ? scale(timed) : [0, 1];
    const all = row.candidates.map((candidate) => candidate.parts);
    const common = new Set(all[0].filter((part) => all.length > 1 && all.every((parts) => parts.includes(part))));
    const order = (candidate) => (candidate.failed || candidate.time === null ? Infinity : candidate.time);
    const isShown = (candidate, at) => at < SHOWN || candidate === row.candidates[row.chosen];
    const sorted = [...row.candidates].sort((a, b) => order(a) - order(b) || 0).filter(isShown);
    const isAsGood = (candidate) => candidate.time <= best * (1.0001 + row.tie);  // numbers here are rounded
    const hasTies = timed.filter(isAsGood).length > 1;
    const isTie = (candidate) => hasTies && isAsGood(candidate);
    const hasSpread = timed.some((candidate) => candidate.spread || candidate.label);
    const lines = sorted.map((candidate) => {
      const isChosen = candidate === row.candidates[row.chosen];
      const name = candidate.parts.filter((part) => !common.has(part)).join(", ") || configuration(candidate);
      const head = el("th", { scope: "row", class: "code" }, name, isChosen ? " ★ chosen" : "");
      if (candidate.failed || candidate.time === null) {
        const why = candidate.failed ? `failed: ${candidate.failed}` : "not measured";
        return el("tr", { class: isChosen ? "chosen" : "" }, head, el("td", { colspan: 4, class: "why" }, why));
      }
      const isBeyond = candidate.time > limit;
      const track = el("div", { class: isBeyond ? "track beyond" : "track" },
        el("i", { "--time": percentOf(Math.min(candidate.time, limit) / limit) }));
      if (candidate.spread && !isBeyond) {
        const from = Math.max(candidate.time - candidate.spread, 0);
        const to = Math.min(candidate.time + candidate.spread, limit);
        track.append(el("u", { "--from": percentOf(from / limit), "--spread": percentOf((to - from) / limit) }));
      }
      return el("tr", { class: isChosen ? "chosen" : "" }, head, el("td", {}, track),
        el("td", { class: "number" }, time(candidate.time)),
        hasSpread ? el("td", { class: "number quiet" }, spreadOf(candidate)) : null,
        el("td", { class: "number" }, isTie(candidate) ? "a tie" : `${(candidate.time / best).toFixed(2)} ×`));
    });
    const titles = ["Candidate", "", "Time", ...(hasSpread ? ["Spread"] : []), "Of the best"];
    const headers = titles.map((title, at) =>
      (title ? el("th", { scope: "col", class: at > 1 ? "number" : "" }, title) : el("td")));
    const table = el("table", { class: "chart", "aria-label": "Times of the candidates" },
      el("thead", {}, el("tr", {}, headers)), el("tbody", {}, lines));
    const alike = common.size ? el("p", {}, quiet("All candidates: "), code([...common].join(", "))) : null;
    const hidden = row.candidates.length - sorted.length;
    const more = hidden > 0 ? el("p", {}, quiet(`${count(hidden, "slower candidate is", "slower candidates are")} not shown.`)) : null;
    const means = row.isInterpreted
      ? el("p", {}, quiet("These are times of Python under Triton's interpreter: they say nothing of a GPU.")) : null;
    return [means, alike, el("div", { class: "scroll fit" }, table), more];
  }

  const spreadOf = (candidate) => (candidate.spread ? `± ${time(candidate.spread, candidate.time)}` : candidate.label);
  const percentOf = (share) => `${(100 * share).toFixed(2)}%`;

  function details(row) {
    const facts = [
      ["Key", row.key], ["Device", row.device], ["Why", row.reason], ["Known as", row.label],
      ["Asked by", row.tests.join(", ")], ["Choice", configuration(row.choice)], ["Moved from", row.moved_from],
      ["Tuned with", row.versions], ["Remarks", row.mode_remarks],
      ["Measured", row.disturbed ? "disturbed: another process may have used the device during the measurement" : ""],
    ].filter(([, text]) => text);
    const list = facts.flatMap(([name, text]) => [el("dt", {}, name), el("dd", { class: "code" }, text)]);
    const none = row.candidates.length ? null
      : el("p", {}, quiet("No times of candidates: nothing was measured in this run."));
    return [el("dl", {}, list), none, ...chart(row)];
  }

  // Which problems are shown: words, an outcome, a kernel.
  const filter = { words: "", outcome: "", kernel: "" };
  const input = el("input", {
    type: "search", id: "filter", placeholder: "Filter by kernel, key, test, reason…  ( / )",
    "aria-label": "Filter the problems", input: () => { filter.words = input.value; refresh(); },
  });
  const kernels = [...new Set(rows.map((row) => row.name))].sort();
  const select = el("select", { "aria-label": "Kernel", change: () => { filter.kernel = select.value; refresh(); } },
    el("option", { value: "" }, "All kernels"), kernels.map((name) => el("option", { value: name }, name)));
  const clear = link("Clear", reset);
  const shownOf = el("output", { for: "filter" });

  const problems = sortedTable({
    label: "Problems",
    detail: details,
    sort: { index: 0, down: false },
    columns: [
      { title: "Outcome", value: (row) => URGENT.indexOf(row.outcome), cell: (row) => word(row.outcome, row.became) },
      { title: "Kernel", value: (row) => row.kernel, cell: kernelCell },
      { title: "Key", value: (row) => row.key, cell: (row) => [keyCell(row), why(row)] },
      { title: "Choice", value: (row) => configuration(row.choice), cell: (row) => clamped(configuration(row.choice)) },
      { title: "Candidates", value: (row) => row.candidates.length, cell: strip },
      { title: "Time", number: true, value: (row) => row.time, cell: (row) => time(row.time) },
      { title: "Tuning", number: true, value: (row) => row.tuned, cell: (row) => seconds(row.tuned) },
      { title: "Test", value: (row) => row.tests[0], cell: (row) => testCell(row.tests[0] || "") },
    ],
  });

  const isOf = { tuned: (row) => row.tuned !== null && !row.became };
  const modeWords = [...new Set(rows.map((row) => row.mode_word).filter(Boolean))];
  for (const name of modeWords) isOf[name] = (row) => row.mode_word === name;
  for (const outcome of OUTCOMES) isOf[outcome] = (row) => row.outcome === outcome;

  function refresh() {
    const words = filter.words.toLowerCase().split(/\s+/).filter(Boolean);
    const shown = rows.filter((row) =>
      (!filter.outcome || isOf[filter.outcome](row)) &&
      (!filter.kernel || row.name === filter.kernel) && words.every((text) => row.words.includes(text)));
    problems.show(shown);
    shownOf.textContent = shown.length === rows.length ? count(rows.length, "problem")
      : `${number(shown.length)} of ${count(rows.length, "problem")}`;
    clear.hidden = !(filter.words || filter.outcome || filter.kernel);
    for (const tile of document.querySelectorAll("button.tile")) {
      tile.setAttribute("aria-pressed", tile.value === filter.outcome);
    }
  }

  function reset() {
    Object.assign(filter, { words: "", outcome: "", kernel: "" });
    input.value = select.value = "";
    refresh();
  }

  function look(changes) {
    reset();
    Object.assign(filter, changes);
    input.value = filter.words;
    select.value = filter.kernel;
    refresh();
    document.getElementById("problems").scrollIntoView();
    input.focus({ preventScroll: true });
  }

  const contents = el("nav", { class: "contents", "aria-label": "Contents" });

  function heading(id, title, more = "") {
    contents.append(el("a", { href: `#${id}` }, title));
    return el("h2", { id }, title, more ? [" ", el("small", {}, more)] : []);
  }

  function overview() {
    const tile = (name, many) => el("button", { type: "button", class: "tile", value: name, "aria-pressed": false,
      click: () => { filter.outcome = filter.outcome === name ? "" : name; refresh(); } },
      el("b", {}, number(many)), OUTCOMES.includes(name) ? word(name) : el("span", {}, name));
    const fact = (figure, what) => el("div", { class: "tile" }, el("b", {}, figure), el("span", {}, what));
    const { counts } = report;
    const known = OUTCOMES.filter((name) => counts[name] || (report.judged && name === "hit"));
    const tiles = [...known.map((name) => tile(name, counts[name])), tile("tuned", counts.tuned)];
    tiles.push(...modeWords.map((name) => tile(name, rows.filter(isOf[name]).length)));
    const others = ["failed", "unrecorded", "fallback", "unused", "untracked"].filter((name) => counts[name]);
    tiles.push(...others.map((name) => fact(number(counts[name]), name)));
    if (counts.tuned) tiles.push(fact(seconds(report.tuning_seconds), "of tuning"));
    if (report.saved_seconds >= 0.1) tiles.push(fact(seconds(report.saved_seconds), "of tuning saved"));
    const shares = known.filter((name) => counts[name]);
    const bar = shares.map((name) => el("i", { class: name, "--share": counts[name] }));
    return [el("div", { class: "tiles" }, tiles), el("div", { class: "shares", "aria-hidden": "true" }, bar)];
  }

  // The longest first, ten at once.
  function costs(title, list, find) {
    if (!list.length) return "";
    const total = list.reduce((sum, cost) => sum + cost.seconds, 0);
    const entry = (cost) => el("li", {},
      cost.name === "outside of tests" ? cost.name : link(cost.name, () => find(cost.name), "link code"),
      el("span", { class: "number" }, `${seconds(cost.seconds)} `,
        quiet(`${percent(cost.seconds / (total || 1))} · ${count(cost.problems, "search", "searches")}`)),
      el("div", { class: "share" }, el("i", { "--share": percentOf(cost.seconds / (list[0].seconds || 1)) })));
    return el("section", {}, el("h3", {}, title), longList(el("ol", { class: "costs" }), list, entry));
  }

  function longList(node, list, entry, first = 10) {
    node.append(...list.slice(0, first).map(entry));
    if (list.length <= first) return node;
    const more = link(`Show more of ${number(list.length)}`, () => {
      const from = node.children.length;
      node.append(...list.slice(from, from + 100).map(entry));
      more.hidden = node.children.length >= list.length;
    });
    return [node, more];
  }

  const byName = (name) => (kernels.includes(name) ? look({ kernel: name }) : look({ words: name }));

  // As the terminal has them: many problems of one kernel are one row.
  function findings() {
    const tested = (finding) => (finding.test ? [link(finding.test, () => look({ words: finding.test }), "link code"),
      finding.other_test_count ? quiet(` and ${count(finding.other_test_count, "more test")}`) : ""] : "");
    const table = sortedTable({
      label: "To look at",
      columns: [
        { title: "", value: (finding) => finding.at, cell: (finding) => word(finding.word.toLowerCase()) },
        { title: "Problem", value: (finding) => finding.problem, cell: (finding) => code(finding.problem) },
        { title: "Problems", number: true, value: (finding) => finding.problem_count,
          cell: (finding) => number(finding.problem_count) },
        { title: "Why", value: (finding) => finding.text, cell: (finding) => finding.text },
        { title: "Test", value: (finding) => finding.test, cell: tested },
      ],
    });
    table.show(report.findings.map((finding, at) => ({ ...finding, at })));
    return table.node;
  }

  function changes() {
    const list = report.changes.map((change) => {
      const [before, now] = [decodeCandidate(change.old), decodeCandidate(change.new)];
      const [oldTime, newTime] = [before && before.time, now && now.time];
      return { ...change, before, now, oldTime, newTime, ratio: oldTime && newTime ? newTime / oldTime : null };
    });
    const fromTo = (before, now) =>
      (before && before !== now ? [el("span", { class: "from" }, before), " → ", now || "nothing"] : [now]);
    // Of two configurations with the same parameters only those that differ.
    function moves(change) {
      const [before, now] = [change.before, change.now].map((side) => (side ? side.parts : []));
      const nameOf = (part) => part.split("=", 1)[0];
      const areAlike = before.length === now.length && before.every((part, at) => nameOf(part) === nameOf(now[at]));
      if (!areAlike) return fromTo(before.join(", "), now.join(", "));
      const differ = now.map((part, at) => [before[at], part]).filter(([old, part]) => old !== part);
      if (!differ.length) return now.join(", ");
      const value = (part) => part.slice(nameOf(part).length + 1);
      const shown = ([old, part]) =>
        [el("span", { class: "whole" }, `${nameOf(part)} `, fromTo(value(old) || "none", value(part) || "none"))];
      return differ.flatMap((pair, at) => [at ? ", " : "", ...shown(pair)]);
    }

    const times = (change) => fromTo(time(change.oldTime), time(change.newTime));

    function ratio(change) {
      if (change.ratio === null) return "";
      const kind = change.ratio < 0.97 ? "better" : change.ratio > 1.03 ? "worse" : "quiet";
      const by = Math.abs(100 * (change.ratio - 1)).toFixed(1);
      return el("span", { class: kind }, `${change.ratio < 1 ? "−" : "+"}${by} %`);
    }

    const table = sortedTable({
      label: "Changes",
      columns: [
        { title: "What", value: (change) => change.kind, cell: (change) => change.kind },
        { title: "Kernel", value: (change) => change.kernel, cell: kernelCell },
        { title: "Key", value: (change) => change.key, cell: keyCell },
        { title: "Choice", value: (change) => configuration(change.now), cell: (change) => code(moves(change)) },
        { title: "Time", number: true, value: (change) => change.newTime, cell: times },
        { title: "Change", number: true, value: (change) => change.ratio, cell: ratio },
      ],
    });
    table.show(list);
    return [el("p", {}, quiet(report.changed)), table.node];
  }

  const facts = document.getElementById("facts");
  report.facts.forEach(([name, text], at) => {
    const isAnother = at > 0 && report.facts[at - 1][0] === name;
    facts.append(el("dt", {}, isAnother ? "" : name), el("dd", {}, text));
  });
  report.hints.forEach((hint, at) => facts.append(el("dt", {}, at ? "" : "To do"), el("dd", {}, el("code", {}, hint))));

  const main = document.getElementById("main");
  const tools = el("div", { class: "tools", role: "search" }, input, select, shownOf, clear);
  main.append(...overview(), contents);
  if (report.findings.length) main.append(heading("findings", "To look at"), findings());
  main.append(heading("problems", "Problems"), tools, problems.node);
  if (report.by_kernel.length) {
    const pair = [costs("By kernel", report.by_kernel, byName), costs("By test", report.by_test, byName)];
    const title = heading("costs", "Where the tuning time went", seconds(report.tuning_seconds));
    main.append(title, el("div", { class: "pair" }, pair));
  }
  if (report.changes.length) main.append(heading("changes", `Different from ${report.dump ? "what the file held" : "the loaded cache"}`), ...changes());
  if (report.notes.length) {
    const notes = report.notes.map((note) => el("li", {}, note));
    main.append(heading("notes", "Notes"), el("ul", { class: "notes" }, notes));
  }
  refresh();

  document.addEventListener("keydown", (event) => {
    const isTyping = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
    if (event.key === "/" && !isTyping && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      input.focus();
      input.select();
    } else if (event.key === "Escape" && (event.target === input || !isTyping)) reset();
  });
  document.documentElement.dataset.ready = Math.round(performance.now());
})();
