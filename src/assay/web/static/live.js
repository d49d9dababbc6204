// Gateways and watched jobs, read every two seconds while somebody looks; all their words are set as text.
(() => {
  const { made, ask } = bench;
  const [told, gateways, watches, idle] = [".told", ".gateways", ".watches", ".idle"].map((at) => document.querySelector(at));
  const form = document.querySelector(".places");
  const secret = form.querySelector(".secret");
  const past = new Map(); // by place: what was said before, for rates and lines
  const known = (value) => value !== null && value !== undefined;
  const seconds = (s) => (!known(s) || !s ? "–" : s < 1 ? `${Number((s * 1000).toPrecision(3))} ms` : `${Number(s.toPrecision(3))} s`);
  const count = (n) => (known(n) ? Math.round(n).toLocaleString("en") : "–");
  const share = (r) => (known(r) ? `${Math.round(100 * r)} %` : "–");

  function drawn(tag, attributes) {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    return node;
  }
  function line(label, values, text) {
    const figure = made("figure", undefined, { class: "spark" });
    const top = Math.max(1e-9, ...values.filter(known));
    const svg = drawn("svg", { viewBox: "0 0 300 60", preserveAspectRatio: "none", role: "img", "aria-label": `${label}: ${text}` });
    const points = values.map((v, i) => (known(v) ? `${300 - 3 * (values.length - 1 - i)},${57 - (54 * v) / top}` : null)).filter(known);
    svg.append(drawn("polyline", { points: points.join(" ") }));
    const caption = made("figcaption", label);
    caption.append(made("b", text));
    figure.append(caption, svg);
    return figure;
  }
  function table(label, heads, rows) {
    const sheet = made("div", undefined, { class: "sheet", role: "region", "aria-label": label, tabindex: "0" });
    const whole = made("table");
    const head = whole.createTHead().insertRow();
    for (const name of heads) head.append(made("th", name, { scope: "col" }));
    const body = whole.createTBody();
    for (const row of rows) {
      const made_row = body.insertRow();
      for (const cell of row) cell instanceof Node ? made_row.insertCell().append(cell) : (made_row.insertCell().textContent = cell);
    }
    sheet.append(whole);
    return sheet;
  }
  function bar(value, most) {
    const svg = drawn("svg", { class: "load", width: "90", height: "10", "aria-hidden": "true" });
    svg.append(drawn("rect", { width: String((90 * value) / Math.max(most, 1)), height: "10" }));
    return svg;
  }
  function remember(url, page) {
    const [now, kept] = [performance.now() / 1000, past.get(url) ?? { ttft: [], rate: [], queue: [] }];
    const rate = kept.at ? Math.max(0, page.requests - kept.requests) / (now - kept.at) : null;
    for (const [name, value] of Object.entries({ ttft: page.ttft_p50, rate, queue: page.queue })) {
      kept[name].push(value);
      if (kept[name].length > 100) kept[name].shift();
    }
    Object.assign(kept, { at: now, requests: page.requests });
    past.set(url, kept);
    return kept;
  }

  // An address that stands in a link is asked once the owner says so.
  function named(kind, url) {
    const button = made("button", `Look at ${url}`, { type: "button", class: "pick" });
    button.addEventListener("click", () => ask("/api/live", { kind, url }).then(look, (error) => (told.textContent = error.message)));
    return button;
  }
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const state = new URLSearchParams();
    try {
      for (const kind of ["gateway", "watch"]) {
        const url = form.elements[kind].value.trim();
        if (!url) continue;
        state.set(kind, url);
        await ask("/api/live", { kind, url });
      }
      history.replaceState(null, "", location.pathname + (state.size ? `?${state}` : ""));
      await look();
    } catch (error) {
      told.textContent = error.message;
    }
  });

  function gateway({ url, said, error, unnamed }) {
    const section = made("section", undefined, { class: "chart", "aria-label": `Gateway at ${url}` });
    section.append(made("h2", `gateway ${url}`));
    if (error) return section.append(made("p", error, { class: "pending" }), ...(unnamed ? [named("gateway", url)] : [])), section;
    const kept = remember(url, said);
    const up = said.engines.filter((engine) => engine.state === "up").length;
    section.append(made("p", `${said.policy}: ${up} of ${said.engines.length} engines up, ${count(said.requests)} requests`, { class: "why" }));
    const lines = made("div", undefined, { class: "sparks" });
    const rate = kept.rate.at(-1);
    lines.append(line("requests a second ", kept.rate, known(rate) ? rate.toFixed(1) : "–"),
      line("first token, median ", kept.ttft, seconds(said.ttft_p50)), line("waiting here ", kept.queue, count(said.queue)));
    const most = Math.max(1, ...said.engines.map((engine) => engine.aboard));
    const of = (engine) => [engine.name, engine.state, engine.models.join(", "), bar(engine.aboard, most), count(engine.aboard),
      count(engine.prefill_tokens), seconds(engine.ttft), share(engine.hit_ratio), count(engine.errors)];
    section.append(lines, table("Engines", ["engine", "state", "models", "load", "aboard", "prompt tokens to do", "first token", "in cache", "failed"],
      said.engines.map(of)));
    const notes = said.engines.filter((engine) => engine.note);
    if (notes.length) {  // below the table: beside its figures they would be cut off
      const list = made("ul", undefined, { class: "trust", "aria-label": "Notes on engines" });
      list.append(...notes.map((engine) => made("li", `${engine.name}: ${engine.note}`)));
      section.append(list);
    }
    const { shadow, canary } = said;
    if (shadow) section.append(made("p", `Shadow ${shadow.policy} agrees in ${share(shadow.agreement)} of ${count(shadow.decisions)} decisions; it would have found ` +
      `${share(shadow.match_ratio)} of prompt tokens in caches, ${share(shadow.match_ratio_real)} were found.`, { class: "trust" }));
    if (canary) section.append(made("p", `Canary ${canary.policy} decides about ${share(canary.share)}: ${canary.verdict}.`, { class: "trust" }));
    const scores = (decision) => (decision.scores ?? []).map((s, i) => (known(s) ? `${decision.engines?.[i] ?? i}: ${Number(s.toPrecision(3))}` : "")).filter((s) => s).join("  ");
    if (said.decisions.length) {
      section.append(made("h3", "Last decisions"), table("Last decisions", ["request", "engine", "prompt tokens", "cached there", "scores of who could take it, smallest wins"],
        said.decisions.slice(-10).reverse().map((one) => [one.request, one.engine, count(one.prompt), count(one.matched), scores(one)])));
    }
    return section;
  }

  function watch({ url, said, error, unnamed }) {
    const section = made("section", undefined, { class: "chart", "aria-label": `Watched job at ${url}` });
    section.append(made("h2", `watched job ${url}`));
    if (error) return section.append(made("p", error, { class: "pending" }), ...(unnamed ? [named("watch", url)] : [])), section;
    const first = said.suspects[0];
    const who = first ? `Rank ${first.rank} holds the others up in ${first.stage}: ${seconds(first.score)} a step. ${first.next}` : said.why || "Nobody holds the others up.";
    section.append(made("p", `${said.reporting} of ${said.expected} ranks report; a step takes ${seconds(said.step)}. ${who}`, { class: said.hang ? "why bad" : "why" }));
    const stages = said.stages.length ? said.stages : [...new Set(said.ranks.flatMap((row) => Object.keys(row.stages)))];
    const longest = Math.max(1e-9, ...said.ranks.flatMap((row) => Object.values(row.stages)));
    const cell = (row, stage) => {
      const value = row.stages[stage];
      const blamed = said.suspects.some((one) => one.rank === row.rank && one.stage === stage);
      const svg = drawn("svg", { class: blamed ? "heat blamed" : "heat", width: "84", height: "22", role: "img", "aria-label": `${stage} ${seconds(value)}${blamed ? ", suspect" : ""}` });
      svg.append(drawn("rect", { width: "84", height: "22", "fill-opacity": String(known(value) ? 0.08 + (0.72 * value) / longest : 0) }));
      const text = drawn("text", { x: "42", y: "15", "text-anchor": "middle" });
      text.textContent = seconds(value);
      svg.append(text);
      return svg;
    };
    section.append(table("Ranks and stages", ["rank", "state", "step", ...stages, "host"],
      said.ranks.slice(0, 256).map((row) => [count(row.rank), row.state, count(row.last_step), ...stages.map((stage) => cell(row, stage)), row.host])));
    return section;
  }

  async function look() {
    if (document.visibilityState === "visible") {
      const key = form.elements.key.value;
      try {
        const answer = await fetch(`/api/live${location.search}`, { cache: "no-store", headers: key ? { "x-gateway-key": key } : {} });
        const now = await answer.json();
        if (!answer.ok) throw new Error(now.error);
        secret.hidden = !now.gateways.some((one) => /key/.test(one.error ?? "")) && !key;
        gateways.replaceChildren(...now.gateways.map(gateway));
        watches.replaceChildren(...now.watches.map(watch));
        idle.hidden = now.gateways.length + now.watches.length > 0;
        told.textContent = idle.hidden ? `as of ${new Date().toLocaleTimeString()}` : "";
      } catch (error) {
        told.textContent = error.message;
      }
    }
  }
  async function always() {
    await look();
    setTimeout(always, 2000);
  }
  always();
})();
