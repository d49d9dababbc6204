// What every view has: copying a command, talking to the server, following a job, and what runs elsewhere.
const bench = (() => {
  async function ask(path, body, method = body === undefined ? "GET" : "POST") {
    const options = { method, cache: "no-store" };
    if (body !== undefined) {
      options.headers = { "content-type": "application/json" };
      options.body = JSON.stringify(body);
    }
    let answer;
    try {
      answer = await fetch(path, options);
    } catch {
      throw new Error("the workbench does not answer; is 'assay web' still running?");
    }
    const told = await answer.json().catch(() => ({ error: `the workbench answered ${answer.status}` }));
    if (!answer.ok) throw Object.assign(new Error(told.error ?? `the workbench answered ${answer.status}`), { status: answer.status });
    return told;
  }

  // Calls `heard` with every event of a job, to its end. It asks now and then: a browser has six connections for all its
  // tabs, and a stream in each of six would leave none. While the workbench is away it says so and goes on asking; one
  // that was started anew knows the job no more, which is the event "lost".
  function follow(id, heard) {
    const began = performance.now();
    let [after, before] = [0, ""];
    async function look() {
      let told;
      try {
        told = await ask(`/api/jobs/${id}/events?after=${after}`);
      } catch (error) {
        if (error.status === 404) return heard({ event: "lost" });
        heard({ event: "away", message: error.message });
        return setTimeout(look, 1000);
      }
      after = told.next;
      const progress = JSON.stringify(told.progress);
      if (told.progress.experiment && progress !== before) heard({ event: "progress", ...told.progress });
      before = progress;
      told.events.forEach(heard);
      if (told.events.at(-1)?.event === "end") return;
      setTimeout(look, document.hidden ? 2000 : performance.now() - began < 3000 ? 100 : 400);
    }
    look();
  }

  // Of the first experiment a bar tells how much is done; how many follow nobody knows, and a bar never runs back.
  function measured(bar, { done, experiment, of_it, total }) {
    bar.hidden = false;
    if (experiment === 1) [bar.max, bar.value] = [total || 1, of_it];
    else bar.removeAttribute("value");
    return experiment === 1 ? `${of_it} of ${total} cases` : `${done} cases; of experiment ${experiment} ${of_it} of ${total}`;
  }

  // Puts parts of a freshly fetched page in the place of those shown: results appear without a reload.
  async function renew(selectors) {
    const answer = await fetch(location.href, { cache: "no-store" });
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const selector of selectors) {
      const [old, now] = [document.querySelectorAll(selector), fresh.querySelectorAll(selector)];
      for (const [i, part] of [...old].entries()) now[i] ? part.replaceWith(document.importNode(now[i], true)) : part.remove();
      if (now.length > old.length && old.length === 0) return false;
    }
    return true;
  }

  function made(tag, text, attributes = {}) {
    const node = document.createElement(tag);
    if (text !== undefined) node.textContent = text; // as text: policies and traces choose some of it
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    return node;
  }

  document.addEventListener("click", async (event) => {
    const button = event.target.closest(".copy");
    if (!button) return;
    const code = button.parentElement.querySelector("code");
    let word = "Copied";
    try {
      await navigator.clipboard.writeText(code.textContent);
    } catch {
      getSelection().selectAllChildren(code); // one keystroke is left
      word = "Selected";
    }
    button.textContent = word;
    setTimeout(() => (button.textContent = "Copy"), 2000);
  });

  // Jobs that run, wherever they were begun: every page lists them, and can end them.
  const line = document.querySelector(".running");
  let known = "";
  function running(job) {
    const [where, word] = job.kind === "run" ? [`/papers/${job.name}.html`, "study"] : [`/compare/${job.name}`, "comparison"];
    const [item, away] = [made("span", "", { class: "job", title: job.command }), made("button", "Cancel", { type: "button", "aria-label": `Cancel the ${word} ${job.name}` })];
    away.addEventListener("click", () => ((away.disabled = true), ask(`/api/jobs/${job.id}`, undefined, "DELETE").catch(() => {}).then(list)));
    item.append(made("a", job.name, { href: where }), ` (${word}) `, away);
    return item;
  }
  async function list() {
    let jobs;
    try {
      jobs = (await ask("/api/jobs")).filter((job) => job.state === "running");
    } catch (error) {
      known = "away";
      line.hidden = false;
      line.replaceChildren(error.message);
      return;
    }
    const now = jobs.map((job) => job.id).join();
    if (now === known) return;
    known = now;
    line.hidden = !jobs.length;
    line.replaceChildren(jobs.length ? "Running: " : "", ...jobs.flatMap((job, i) => [i ? ", " : "", running(job)]));
    document.dispatchEvent(new CustomEvent("jobs", { detail: jobs }));
  }
  async function look() {
    if (document.visibilityState === "visible") await list();
    setTimeout(look, 4000);
  }
  document.addEventListener("DOMContentLoaded", look); // when the page's other scripts listen
  return { ask, follow, list, measured, renew, made };
})();
