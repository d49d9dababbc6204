// A paper's study: begin it, see its cases come in, cancel it, see the answer in its place.
(() => {
  const section = document.querySelector(".run");
  if (!section) return;
  const key = section.dataset.key;
  const form = section.querySelector("form");
  const [go, stop] = [section.querySelector(".go"), section.querySelector(".stop")];
  const box = section.querySelector(".progress");
  const [told, bar, cases] = [box.querySelector(".told"), box.querySelector("progress"), box.querySelector(".cases")];
  const command = section.querySelector("code");
  const PARTS = [".opening .chips", "section[aria-labelledby=plot]", "section[aria-labelledby=claims]", "section[aria-labelledby=table]",
    "section[aria-labelledby=provenance]", "section[aria-labelledby=runs]", "section[aria-labelledby=take]"];
  let current = null;

  const wanted = () => {
    const data = new FormData(form);
    return { key, size: data.get("size"), seeds: data.get("seeds").trim(), first_seed: Number(data.get("first_seed") || 0),
      on: data.get("on").trim() || "local", fresh: data.has("fresh") };
  };

  // The view's state lives in the address; the command follows it.
  function remember() {
    const want = wanted();
    const state = new URLSearchParams(location.search);
    for (const [name, value] of Object.entries(want)) {
      const usual = { key, size: "quick", seeds: "", first_seed: 0, on: "local", fresh: false }[name];
      value === usual ? state.delete(name) : state.set(name, value === true ? "1" : value);
    }
    history.replaceState(null, "", location.pathname + (state.size ? `?${state}` : "") + location.hash);
    form.elements.seeds.placeholder = want.size === "full" ? "10" : "5";
    const words = ["assay", "run", key];
    if (want.size === "full") words.push("--full");
    if (want.seeds) words.push("--seeds", want.seeds.replaceAll(" ", ""));
    if (want.first_seed) words.push("--first-seed", want.first_seed);
    if (want.on !== "local") words.push("--on", want.on);
    if (want.fresh) words.push("--fresh");
    command.textContent = words.join(" ");
  }

  function heard(event) {
    if (event.event === "progress") told.textContent = bench.measured(bar, event);
    else if (event.event === "away") told.textContent = event.message;
    else if (event.event === "lost") {
      finish({ state: "failed", message: "the workbench was started anew; finished cases are kept, running it again goes on with them" });
    } else if (event.event === "case") {
      const item = bench.made("li", `${event.case} `);
      item.append(bench.made("span", `${Number(event.seconds.toPrecision(2))} s`));
      cases.prepend(item);
      while (cases.children.length > 60) cases.lastChild.remove();
    } else if (event.event === "end") finish(event);
  }

  async function finish(event) {
    current = null;
    go.disabled = false;
    stop.hidden = true;
    if (event.state !== "done") {
      told.textContent = event.state === "stopped" ? event.message || "cancelled" : `It failed: ${event.message}`;
      box.classList.add("ended");
      return;
    }
    const state = new URLSearchParams(location.search);
    state.delete("run");
    state.delete("with");
    history.replaceState(null, "", location.pathname + (state.size ? `?${state}` : ""));
    if (!(await bench.renew(PARTS))) return location.reload(); // the first result of all brings new parts
    told.textContent = "Done: the answers below are new.";
    bar.value = bar.max;
    document.querySelector("#claims")?.scrollIntoView({ behavior: "smooth", block: "start" });
  }

  function join(job) {
    if (current === job.id) return;
    current = job.id;
    box.hidden = false;
    box.classList.remove("ended");
    cases.replaceChildren();
    bar.removeAttribute("value");
    told.textContent = "starting …";
    go.disabled = true;
    stop.hidden = false;
    bench.follow(job.id, heard);
  }

  form.addEventListener("input", remember);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    box.hidden = false;
    try {
      join(await bench.ask("/api/runs", wanted()));
    } catch (error) {
      told.textContent = error.message;
    }
  });
  stop.addEventListener("click", async () => {
    stop.hidden = true;
    told.textContent = "cancelling: the finished cases stay …";
    await bench.ask(`/api/jobs/${current}`, undefined, "DELETE").catch((error) => (told.textContent = error.message));
  });
  document.addEventListener("jobs", (event) => {
    const mine = event.detail.find((job) => job.kind === "run" && job.name === key);
    if (mine) join(mine);
  });
  remember();
})();
